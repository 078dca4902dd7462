"""The driver's tracepoints, read from a tracefs made of files and a FIFO."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from node_agent.sources.kernel_log import Moment
from node_agent.sources.tracepoint import INSTANCE, Tracepoints, TraceReport, parse_trace
from tests.unit.agent.health.builders import CATALOGUE, GPU


NOW = Moment(wall=1_000_000.0, boot=500.0)
HEAD = "  kworker/3:1-123     [003] d.h1. "
XID = "nvidia_dev_xid: Xid (PCI:0000:18:00): "
EVENT = "nvidia/nvidia_dev_xid"


class FixedClock:
    def now(self) -> Moment:
        return NOW


def traced(text: str) -> TraceReport | None:
    return parse_trace(text, now=NOW, catalogue=CATALOGUE)


def test_a_line_is_the_report_that_the_log_would_give() -> None:
    found = traced(f"{HEAD}  498.500000: {XID}79, GPU has fallen off the bus.")
    assert found is not None
    assert (found.report.code, found.report.pci) == (79, GPU)
    assert found.report.message == "GPU has fallen off the bus."
    assert found.at == NOW.wall - 1.5


def test_a_switch_is_read_too() -> None:
    body = "nvswitch_dev_sxid: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    found = traced(f"{HEAD}  498.5: {body}")
    assert found is not None
    assert (found.report.kind, found.report.code, found.report.fatal) == ("sxid", 20034, True)


@pytest.mark.parametrize("stamp", ["501.0", "1.0", "99999999999.0"])
def test_a_time_that_cannot_be_is_now(stamp: str) -> None:
    found = traced(f"{HEAD}{stamp}: {XID}79, text")
    assert found is not None
    assert found.at == NOW.wall


@pytest.mark.parametrize(
    "text",
    [
        "",
        "CPU:3 [LOST 12 EVENTS]",
        f"{HEAD}498.5: sched_switch: {XID}79, text",
        f"{HEAD}498.5: nvidia_dev_xid: nonsense",
        "nvidia_dev_xid: Xid (PCI:0000:18:00): 79, text",
        f"{HEAD}498.5: nvswitch_dev_sxid: SXid (PCI:0000:05:00.0): 20034, Data {{0x1, 0x2}}",
    ],
)
def test_anything_else_is_no_report(text: str) -> None:
    assert traced(text) is None


class Running:
    """A source at work on a tracefs of files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.instance = root / "instances" / INSTANCE
        self.states: list[tuple[str, bool]] = []
        self.reports: list[TraceReport] = []
        self.source = Tracepoints(
            root=root, catalogue=CATALOGUE, clock=FixedClock(), on_state=self._on_state
        )
        self._changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self.source.run(self._deliver))

    def _on_state(self, reason: str, *, absent: bool = False) -> None:
        self.states.append((reason, absent))
        self._changed.set()

    def _deliver(self, report: TraceReport) -> None:
        self.reports.append(report)
        self._changed.set()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    def enabled(self) -> str:
        return (self.instance / "events" / EVENT / "enable").read_text()


def install(root: Path) -> None:
    for folder in (root, root / "instances" / INSTANCE):
        (folder / "events" / EVENT).mkdir(parents=True)
    os.mkfifo(root / "instances" / INSTANCE / "trace_pipe")


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    yield made
    if made.task is not None:
        made.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await made.task


async def test_it_reads_what_comes_in_pieces_and_counts_what_was_lost(running: Running) -> None:
    install(running.root)
    running.start()
    await running.until(lambda: ("", False) in running.states)
    assert running.enabled() == "1\n"
    assert (running.instance / "trace_clock").read_text() == "mono\n"
    writer = os.open(running.instance / "trace_pipe", os.O_RDWR)
    try:
        line = f"{HEAD}498.5: {XID}79, GPU has fallen off the bus.\n".encode()
        os.write(writer, b"CPU:3 [LOST 12 EVENTS]\n" + line + line[:40])
        await running.until(lambda: len(running.reports) == 1)
        os.write(writer, line[40:])
        await running.until(lambda: len(running.reports) == 2)
    finally:
        os.close(writer)
    assert running.source.lost == 12
    assert running.source.lines == 2


async def test_while_released_the_tracepoints_are_off(running: Running) -> None:
    install(running.root)
    running.start()
    await running.until(lambda: ("", False) in running.states)
    running.source.pause(paused=True)
    await running.until(lambda: running.states[-1][0].startswith("released"))
    assert running.enabled() == "0\n"
    running.source.pause(paused=False)
    await running.until(lambda: running.states[-1] == ("", False))
    assert running.enabled() == "1\n"


async def test_at_the_end_they_are_off(running: Running) -> None:
    install(running.root)
    running.start()
    await running.until(lambda: ("", False) in running.states)
    assert running.task is not None
    running.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running.task
    assert running.enabled() == "0\n"


async def test_a_machine_without_tracefs_or_tracepoints_has_no_such_view(running: Running) -> None:
    running.start()
    await running.until(lambda: bool(running.states))
    assert running.states[0][1]
    assert "not mounted" in running.states[0][0]
    (running.root / "events").mkdir()
    running.source.pause(paused=False)  # look again
    await running.until(lambda: "575" in running.states[-1][0])
    assert running.states[-1][1]


async def test_what_may_not_be_written_switches_the_view_off(running: Running) -> None:
    (running.root / "events" / EVENT).mkdir(parents=True)
    (running.root / "instances").write_text("in the way")
    running.start()
    await running.until(lambda: bool(running.states))
    reason, absent = running.states[0]
    assert not absent
    assert str(running.root / "instances") in reason
