"""Whatever NVML and the log say, the page can be read, and what is counted never falls."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from node_agent.health.fold import observe
from node_agent.nvml.model import Device, NvmlState, Process, Reading
from tests.unit.agent.health.builders import xid
from tests.unit.agent.publish.builders import (
    FIELDS,
    NOW,
    World,
    counters,
    device,
    everything,
    mig,
    pci,
    uuid,
    view,
)


QUANTITIES = sorted({f.quantity for f in FIELDS.by_name.values() if f.source == "reading"})
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-5, 2**64).map(float)


@st.composite
def devices(draw: st.DrawFn) -> Device:
    return device(
        draw(st.integers(0, 2)),
        name=draw(TEXT),
        serial=draw(TEXT),
        mig_enabled=draw(st.booleans()),
        mig=tuple(mig(gi, draw(TEXT)) for gi in draw(st.lists(st.integers(0, 2), max_size=3))),
    )


@st.composite
def readings(draw: st.DrawFn) -> dict[str, Reading]:
    names = [*map(uuid, range(3)), "MIG-0-0", "MIG-1-0"]
    return {
        name: Reading(name, NOW - draw(st.integers(-9, 400)), draw(VALUES))
        for name in draw(st.sets(st.sampled_from(names)))
    }


VALUES = st.dictionaries(st.sampled_from(QUANTITIES), NUMBERS, max_size=6)
PROCESSES = st.lists(
    st.builds(
        Process,
        uuid=st.sampled_from([uuid(0), uuid(1), "GPU-other"]),
        pid=st.integers(0, 3),
        kind=st.sampled_from(["compute", "graphics"]),
        memory_bytes=st.none() | st.integers(0, 100),
        sm_util=st.none() | NUMBERS,
        gi=st.none() | st.integers(0, 2),
    ),
    max_size=5,
)


@given(
    gpus=st.lists(devices(), max_size=4),
    values=readings(),
    processes=PROCESSES,
    lost=st.sets(st.sampled_from([uuid(0), "GPU-gone"])),
    state=st.sampled_from(NvmlState),
    line=st.sampled_from(["4.8", "4.9"]),
)
def test_the_page_can_always_be_read(
    *,
    gpus: list[Device],
    values: dict[str, Reading],
    processes: list[Process],
    lost: set[str],
    state: NvmlState,
    line: str,
) -> None:
    world = World(on=ALL[line])
    world.nvml = view(
        device(), processes=tuple(processes), lost=tuple(lost), state=state, readings=values
    )
    world.nvml = msgspec.structs.replace(world.nvml, devices=tuple(gpus))
    classic = world.text()
    series = [text.rpartition(" ")[0] for text in classic.split("\n") if text[:1] not in {"", "#"}]
    assert len(series) == len(set(series))
    read = [s for f in text_string_to_metric_families(classic) for s in f.samples]
    assert len(read) == len(series)
    assert all(math.isfinite(sample.value) for sample in read)
    modern = world.page.serve("application/openmetrics-text", "").body.decode()
    families: list[Metric] = list(openmetrics_families(modern))  # type: ignore[no-untyped-call]
    assert sum(len(family.samples) for family in families) == len(series)


ALL = {line: everything(line) for line in ("4.8", "4.9")}
XIDS = st.lists(
    st.tuples(st.sampled_from([13, 31, 79, 45]), st.integers(0, 400), st.integers(0, 1)), max_size=4
)


@given(steps=st.lists(st.tuples(XIDS, st.integers(0, 200), st.booleans()), max_size=6))
def test_totals_never_fall_and_the_window_is_part_of_them(
    steps: list[tuple[list[tuple[int, int, int]], int, bool]],
) -> None:
    world = World(
        on=counters(
            "DCGM_EXP_XID_ERRORS_TOTAL, counter, T.\nDCGM_EXP_XID_ERRORS_COUNT, gauge, C.\n"
        )
    )
    world.nvml = view(device(0), device(1))
    world.text()
    before: dict[tuple[str, str], float] = {}
    for lines, passed, cleared in steps:
        world.now += passed
        seen = [xid(code, world.now - age, pci=pci(gpu)) for code, age, gpu in lines]
        world.health = observe(world.health, seen, boot_id="b")
        if cleared:
            world.health = msgspec.structs.replace(world.health, faults={})
        totals = _by_code(world, "DCGM_EXP_XID_ERRORS_TOTAL")
        window = _by_code(world, "DCGM_EXP_XID_ERRORS_COUNT")
        assert all(totals[key] >= value for key, value in before.items())
        assert all(value <= totals[key] for key, value in window.items() if key[1])
        before = totals


def _by_code(world: World, name: str) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["gpu"], sample.labels.get("xid", "")): sample.value
        for family in text_string_to_metric_families(world.text())
        for sample in family.samples
        if sample.name.removesuffix("_total") == name
    }
