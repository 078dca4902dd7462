"""The page as a scraper meets it: formats, encodings, and that a scrape is no work."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterator

import msgspec
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from node_agent.health.fold import observe
from node_agent.nvml.model import NvmlState
from node_agent.publish.dcgm_rows import LabelOptions
from node_agent.publish.exposition import Block, Family, Format, block, merged, text_of
from node_agent.publish.metrics import SelfMetrics
from node_agent.publish.page import negotiated
from tests.unit.agent.health.builders import xid
from tests.unit.agent.publish.builders import (
    NOW,
    POD,
    VALUES,
    World,
    device,
    everything,
    mig,
    pods,
    process,
    uuid,
    view,
)


Parser = Callable[[str], Iterator[Metric]]
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def rich_world() -> World:
    """Everything on, eight GPUs, MIG, pods, processes, faults."""
    world = World(
        on=everything("4.8"),
        options=LabelOptions("n1"),
        extra=SelfMetrics(node="n1").blocks,
    )
    gpus = [device(n) for n in range(7)]
    gpus.append(device(7, mig_enabled=True, mig=(mig(1), mig(2))))
    world.nvml = view(
        *gpus,
        processes=tuple(process(n, 2**20, uuid=uuid(n % 8), sm_util=3.0) for n in range(300)),
        lost=(uuid(6),),
    )
    world.pods = pods(POD)
    world.text()
    world.health = observe(world.health, [xid(79, NOW), xid(31, NOW)], boot_id="b")
    return world


# -- formats ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "encoding", "expected"),
    [
        (PROMETHEUS, "gzip", (Format.OPENMETRICS, True)),
        ("", "", (Format.TEXT, False)),
        ("*/*", "identity", (Format.TEXT, False)),
        ("text/plain", "gzip;q=0", (Format.TEXT, False)),
        ("text/plain;q=0.9,application/openmetrics-text;q=0.1", "*", (Format.TEXT, True)),
        ("application/openmetrics-text;q=0", "deflate, GZIP", (Format.TEXT, True)),
        ("application/openmetrics-text;q=much", "", (Format.TEXT, False)),
        (",;,", ",;q=", (Format.TEXT, False)),
    ],
)
def test_the_client_chooses(accept: str, encoding: str, expected: tuple[Format, bool]) -> None:
    assert negotiated(accept, encoding) == expected


def test_both_formats_say_the_same_in_the_same_order() -> None:
    world = rich_world()
    pages = [world.text(), world.page.serve(PROMETHEUS, "").body.decode()]
    classic, modern = ([s for s in page.splitlines() if s[0] != "#"] for page in pages)
    assert len(classic) > 1000
    assert classic == modern


@pytest.mark.parametrize("parse", [text_string_to_metric_families, openmetrics_families])
def test_parsers_of_others_read_the_whole_page(parse: Parser) -> None:
    world = rich_world()
    accept = PROMETHEUS if parse is openmetrics_families else ""
    page = world.page.serve(accept, "").body.decode()
    lines = sum(line[0] != "#" for line in page.splitlines())
    assert sum(len(family.samples) for family in parse(page)) == lines


def test_a_counter_that_openmetrics_would_not_allow_keeps_its_name() -> None:
    body = rich_world().page.serve(PROMETHEUS, "").body.decode()
    assert "# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER unknown\n" in body
    assert "\nDCGM_FI_DEV_PCIE_REPLAY_COUNTER{" in body
    assert "# TYPE gpu_energy_joules counter\n" in body
    assert "# TYPE gpu_device info\n" in body
    assert body.endswith("# EOF\n")


def test_gzip_is_the_same_page() -> None:
    page = rich_world().page
    plain, packed = page.serve("", ""), page.serve("", "gzip")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) * 5 < len(plain.body)


def test_families_are_sorted_and_stand_once() -> None:
    heads = [line for line in rich_world().text().splitlines() if line.startswith("# TYPE")]
    names = [head.split()[2] for head in heads]
    assert names == sorted(set(names))


def test_nothing_stands_twice_and_the_first_one_wins() -> None:
    family = Family("x", "gauge", "X.")
    blocks = [Block(family, [("x", "1"), ('x{a="b"}', "2")]), Block(family, [("x", "3")])]
    (merged_block,), repeated = merged(blocks)
    assert merged_block.samples == [("x", "1"), ('x{a="b"}', "2")]
    assert repeated == 1


def test_repeated_devices_do_not_blank_the_page() -> None:
    world = World()
    world.nvml = view(device(0), device(0))
    world.text()
    assert len(world.lines("DCGM_FI_DEV_GPU_TEMP{")) == 1
    (line,) = world.lines("gpu_agent_page_repeated_series_total")
    assert float(line.split()[1]) > 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_left_out(value: float) -> None:
    assert block(Family("x", "gauge", "X."), [({}, value)]).samples == []


def test_a_counter_is_never_negative() -> None:
    assert block(Family("x_total", "counter", "X."), [({}, -1.0)]).samples == []


def test_help_may_contain_anything() -> None:
    family = Family("x", "gauge", 'back\\slash, new\nline and "quotes"')
    for form, parse in (
        (Format.TEXT, text_string_to_metric_families),
        (Format.OPENMETRICS, openmetrics_families),
    ):
        (found,) = parse(text_of([block(family, [({}, 1.0)])], form))
        assert found.documentation == family.doc


# -- a scrape is no work --------------------------------------------------------------------------


def test_unchanged_pages_are_the_same_bytes() -> None:
    world = World()
    first = world.page.serve(PROMETHEUS, "gzip")
    assert world.page.serve(PROMETHEUS, "gzip") is first
    world.nvml = view(values={**VALUES, "gpu_temp_c": 99.0})
    assert world.page.serve(PROMETHEUS, "gzip") is first  # values wait for the tick
    world.page.render()
    again = world.page.serve(PROMETHEUS, "gzip")
    assert b"} 99\n" in gzip.decompress(again.body)


def test_a_new_fault_shows_in_the_very_next_scrape() -> None:
    world = World()
    world.page.serve("", "")
    world.health = observe(world.health, [xid(79, NOW)], boot_id="b")
    assert b'code="79"' in world.page.serve("", "").body


@pytest.mark.parametrize("change", [{"state": NvmlState.HUNG}, {"lost": (uuid(0),)}])
def test_a_hang_and_a_loss_show_in_the_very_next_scrape(change: dict[str, object]) -> None:
    world = World()
    before = world.page.serve("", "").body
    world.nvml = msgspec.structs.replace(world.nvml, **change)
    assert world.page.serve("", "").body != before


def test_a_page_that_was_touched_is_made_anew() -> None:
    world = World()
    assert b"job-0" not in world.page.serve("", "").body
    world.pods = pods(POD)
    world.page.touch()
    assert b"job-0" in world.page.serve("", "").body


def test_odd_headers_do_not_pile_up() -> None:
    page = World().page
    for number in range(1000):
        page.serve(f"text/plain;x={number}", "")
    assert len(page._accepts) <= 64
    assert len(page._kept) == 1
