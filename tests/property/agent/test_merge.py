"""Whoever tells of a fault first, in whatever order: one fault, one count, all that is known."""

from typing import Final, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from node_agent.health.faults import OpenFault
from node_agent.health.fold import observe
from node_agent.health.merge import WAIT_SECONDS, Merger, Report
from node_agent.health.state import NodeHealth
from node_agent.nvml.model import NvmlEvent
from node_agent.sources.nvml_events import XID_BIT, xid_report
from node_agent.xid.episodes import Source
from node_agent.xid.parse import XidReport, parse
from tests.unit.agent.health.builders import CATALOGUE, GPU, OTHER_GPU


FAR: Final = 100.0
"""Seconds between two faults: more than a window of 30 s and any lag."""
NVLINK5: Final = "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)"


class Happening(NamedTuple):
    """One real fault of one device."""

    code: int
    pci: str
    pid: int
    gi: int | None


HAPPENINGS = st.builds(
    Happening,
    code=st.sampled_from([13, 31, 48, 63, 79, 94, 95, 119, 145, 149, 777]),
    pci=st.sampled_from([GPU, OTHER_GPU]),
    pid=st.integers(1, 4),
    gi=st.sampled_from([None, 1, 5]),
)


class Telling(NamedTuple):
    """How the sources tell of it: who does, and by how much each is late."""

    sources: frozenset[Source]
    lags: tuple[float, float, float]


TELLINGS = st.builds(
    Telling,
    sources=st.frozensets(st.sampled_from(Source), min_size=1),
    lags=st.tuples(*(st.floats(0.0, WAIT_SECONDS - 0.1) for _ in Source)),
)


def text_of(happening: Happening) -> str:
    return NVLINK5 if happening.code == 149 else f"text of {happening.code}"


def line(happening: Happening, *, process: str, instance: str) -> XidReport:
    address = f"{happening.pci[:-2]}{instance}"
    text = f"NVRM: Xid (PCI:{address}): {happening.code}, {process}{text_of(happening)}"
    report = parse(text, catalogue=CATALOGUE)
    assert report is not None
    return report


def told(happening: Happening, source: Source, at: float, seen_at: float) -> Report:
    """What a source says of it, as the monitor would hand it on."""
    has_mig = happening.gi is not None
    if source is Source.KERNEL_LOG:
        instance = f" GPU-I:{happening.gi:02d}" if has_mig else ""
        report = line(happening, process=f"pid={happening.pid}, name=x, ", instance=instance)
        return Report(report, at, at, source, seen_at, lines=1)
    if source is Source.TRACEPOINT:
        report = line(happening, process="", instance="")
        return Report(report, at, at, source, seen_at, partial=has_mig, incomplete=has_mig)
    event = NvmlEvent(at=at, uuid="GPU-1", bits=XID_BIT, data=happening.code, gi=happening.gi)
    vague = xid_report(event, pci=happening.pci, catalogue=CATALOGUE)
    assert vague is not None
    incomplete = happening.code in range(144, 151)
    return Report(vague, at, at, source, seen_at, partial=True, vague=True, incomplete=incomplete)


def play(reports: list[Report], *, log_works: bool) -> tuple[NodeHealth, Merger]:
    """Take them in the order in which they reach us; time is theirs."""
    merger = Merger(pods_of=lambda _: ())
    health = NodeHealth()
    totals: dict[str, int] = {}
    for report in sorted(reports, key=lambda r: r.seen_at):
        seen = merger.due(report.seen_at, log_works=log_works)
        seen += merger.take(report, log_works=log_works)
        health = observe(health, seen, boot_id="b")
        for key, total in health.totals.items():
            assert total.episodes >= totals.get(key, 0)
            totals[key] = total.episodes
    health = observe(health, merger.due(float("inf"), log_works=log_works), boot_id="b")
    return health, merger


def episodes(health: NodeHealth) -> int:
    return sum(total.episodes for total in health.totals.values())


@given(st.lists(st.tuples(HAPPENINGS, TELLINGS), min_size=1, max_size=12))
def test_one_fault_is_one_count_whoever_tells_of_it(
    history: list[tuple[Happening, Telling]],
) -> None:
    reports = []
    for number, (happening, telling) in enumerate(history):
        at = FAR * number
        for source, lag in zip(Source, telling.lags, strict=True):
            if source in telling.sources:
                reports.append(told(happening, source, at, at + lag))
    health, merger = play(reports, log_works=True)
    assert episodes(health) == len(history)
    assert sum(fault.count for fault in health.faults.values()) == len(history)
    assert sum(stats.first for stats in merger.stats.values()) == len(history)


@given(HAPPENINGS, st.permutations(list(Source)), st.booleans())
def test_what_one_source_lacks_the_others_add(
    happening: Happening,
    order: list[Source],
    log_works: bool,  # noqa: FBT001
) -> None:
    reports = [told(happening, source, 0.0, 0.1 * n) for n, source in enumerate(order)]
    health, _ = play(reports, log_works=log_works)
    (fault,) = health.faults.values()
    assert set(fault.sources) == set(Source)
    assert (fault.pid, fault.process, fault.lines) == (happening.pid, "x", 1)
    assert fault.message == one_by_the_log(happening).message
    assert fault.severity == one_by_the_log(happening).severity


def one_by_the_log(happening: Happening) -> OpenFault:
    health, _ = play([told(happening, Source.KERNEL_LOG, 0.0, 0.0)], log_works=True)
    (fault,) = health.faults.values()
    return fault


@given(st.lists(HAPPENINGS, min_size=1, max_size=6, unique_by=lambda h: (h.pci, h.code, h.gi)))
def test_faults_at_the_same_moment_stay_apart(happenings: list[Happening]) -> None:
    """The driver's log names everything, so nothing is merged that is not one."""
    reports = []
    for number, happening in enumerate(happenings):
        for lag, source in enumerate((Source.KERNEL_LOG, Source.NVML)):
            reports.append(told(happening, source, 0.01 * number, 0.01 * number + lag))
    health, _ = play(reports, log_works=True)
    assert episodes(health) == len(happenings)


@given(HAPPENINGS)
def test_a_fault_that_only_nvml_saw_is_late_at_most(happening: Happening) -> None:
    merger = Merger(pods_of=lambda _: ())
    report = told(happening, Source.NVML, 0.0, 0.0)
    at_once = merger.take(report, log_works=True)
    assert bool(at_once) != report.incomplete
    assert len(at_once + merger.due(WAIT_SECONDS, log_works=True)) == 1
    assert merger.next_due is None


@given(HAPPENINGS)
def test_nothing_waits_for_a_log_that_does_not_work(happening: Happening) -> None:
    merger = Merger(pods_of=lambda _: ())
    assert len(merger.take(told(happening, Source.NVML, 0.0, 0.0), log_works=False)) == 1
