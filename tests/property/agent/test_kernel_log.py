"""Whatever the bytes and however they arrive: the counts are the same, and nothing raises."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.contract import FaultKind
from node_agent.sources.kernel_log import (
    Batch,
    Counters,
    KernelLog,
    KernelLogPaths,
    Mode,
    Moment,
    Position,
)
from node_agent.sources.kernel_log.grouping import Grouper
from node_agent.sources.kernel_log.kmsg import parse_record
from node_agent.sources.kernel_log.text import LineSplitter, LogText
from node_agent.xid.assemble import LineAssembler
from node_agent.xid.catalogue import load_catalogue
from node_agent.xid.episodes import EPISODE_WINDOW_SECONDS, EpisodeCounter, FaultKey
from node_agent.xid.parse import parse
from tests.property.cases import cases


CATALOGUE = load_catalogue()
NOW = Moment(wall=1_800_000_000.0, boot=1_000_000.0)

TEXTS = st.sampled_from(
    [
        b"NVRM: Xid (PCI:0000:9b:00): 45, pid=1, name=x, Ch 00000001",
        b"NVRM: Xid (PCI:0000:9b:00): 45, pid=1, name=x, Ch 00000002 caused by previous Xid 149",
        b"NVRM: Xid (PCI:0000:9b:00): 45, pid=2, name=y, Ch 00000003",
        b"NVRM: Xid (PCI:0000:9c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off",
        b"NVRM: Xid (PCI:0000:9c:00): 119, pid=7, name=z, Timeout after 6s",
        b"NVRM: Xid (PCI:0000:9c:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 1 (0x004505c6 0x0)",
        b"NVRM: Xid (PCI:0000:9c:00): abc",
        b"NVRM: Xid (PCI:0000:9b:00): 154, changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        b"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        b"NVRM: The NVIDIA GPU 0000:b3:00.0",
        b"NVRM: (PCI ID: 10de:26b5) installed in this system has",
        b"NVRM: fallen off the bus and is not responding to commands.",
        b"usb 1-1: new device",
        b"",
    ]
)
GAPS = st.one_of(st.just(0.0), st.floats(0.0, 2.0), st.floats(0.0, 70.0))


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """A kernel log with times that only grow, NULs and an overlong line here and there."""
    at, lines = 1.0, []
    for text, gap in draw(st.lists(st.tuples(TEXTS, GAPS), max_size=60)):
        at += gap
        lines.append(b"[%.6f] " % at + text + b"\n")
    log = b"".join(lines)
    if draw(st.booleans()):
        log += b"\0" * 5000 + b"x" * draw(st.integers(8000, 9000)) + b"\n" + log
    return log


def read(log: bytes, cuts: list[int]) -> tuple[dict[FaultKey, int], int, int]:
    """Lines per fault, episodes, malformed lines of a log that arrives in pieces."""
    counters = Counters()
    grouper = Grouper(catalogue=CATALOGUE, counters=counters)
    text = LogText(grouper=grouper, counters=counters)
    splitter, episodes = LineSplitter(), EpisodeCounter()
    lines: dict[FaultKey, int] = {}
    opened = 0
    bounds = [0, *sorted(cut % (len(log) + 1) for cut in cuts), len(log)]
    for begin, end in itertools.pairwise(bounds):
        text.read(splitter.push(log[begin:end]), NOW, live=False)
        for s in grouper.take():
            seen = episodes.add(s.report, first=s.first, last=s.last, lines=s.lines)
            lines[seen.key] = lines.get(seen.key, 0) + seen.lines
            opened += seen.new_episode
    assert splitter.held == len(log) - (log.rfind(b"\n") + 1)
    return lines, opened, counters.malformed


@given(log=logs(), cuts=st.lists(st.integers(0, 1 << 20), max_size=20))
def test_where_the_stream_is_cut_never_changes_a_count(log: bytes, cuts: list[int]) -> None:
    assert read(log, cuts) == read(log, [])


@given(log=logs())
def test_reading_byte_by_byte_changes_nothing(log: bytes) -> None:
    log = log[:2000]
    assert read(log, list(range(len(log)))) == read(log, [])


@given(st.one_of(st.binary(max_size=300), st.text(max_size=300)))
def test_no_bytes_make_the_parser_raise(raw: bytes | str) -> None:
    parse(raw, catalogue=CATALOGUE)
    head = "NVRM: Xid (PCI:0000:01:00): "
    tail = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    for code in ("", "13, ", "144, ", "154, "):
        parse(head + code + tail, catalogue=CATALOGUE)
    parse("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): " + tail, catalogue=CATALOGUE)
    LineAssembler(catalogue=CATALOGUE).feed("NVRM: " + tail)


@given(st.binary(max_size=300))
def test_no_bytes_make_the_record_reader_raise(raw: bytes) -> None:
    parse_record(raw)
    parse_record(b"4,1,2,-;" + raw)


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=50))
def test_an_episode_ends_where_the_log_was_silent_for_the_window(gaps: list[float]) -> None:
    report = parse("NVRM: Xid (PCI:0000:01:00): 119, x", catalogue=CATALOGUE)
    assert report is not None
    counter = EpisodeCounter()
    at, count = 1000.0, 0
    last = at
    expected = 0
    for n, gap in enumerate(gaps):
        at += gap
        expected += n == 0 or at - last > EPISODE_WINDOW_SECONDS
        last = at
        count += counter.add(report, first=at).new_episode
        assert count == expected


class FixedClock:
    def now(self) -> Moment:
        return NOW


async def follow_once(path: Path, boot_id: Path, resume: Position | None) -> list[Batch]:
    """Run the file source until it has read all there is."""
    log = KernelLog(
        catalogue=CATALOGUE,
        mode=Mode.FILE,
        paths=KernelLogPaths(files=(path,), boot_id=boot_id),
        resume=resume,
        clock=FixedClock(),
    )
    batches: list[Batch] = []
    caught_up = asyncio.Event()

    def deliver(batch: Batch) -> None:
        batches.append(batch)
        if batch.caught_up:
            caught_up.set()

    task = asyncio.create_task(log.run(deliver))
    await caught_up.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return batches


@settings(max_examples=cases(25))
@given(
    log=logs(),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=4),
    rotate_at=st.integers(0, 4),
)
def test_restarts_at_any_position_count_every_line_once(
    log: bytes, cuts: list[int], rotate_at: int
) -> None:
    """The agent stops and starts while the log grows, is rotated once, and ends mid-line."""
    bounds = [0, *sorted(cut % (len(log) + 1) for cut in cuts), len(log)]
    with tempfile.TemporaryDirectory() as directory:
        path, boot_id = Path(directory, "kern.log"), Path(directory, "boot")
        boot_id.write_text("boot")
        path.touch()
        position, matched = None, 0
        for n, (begin, end) in enumerate(itertools.pairwise(bounds)):
            piece = log[begin:end]
            if n == rotate_at and log[:begin].endswith(b"\n"):
                path.rename(f"{path}.1")
            with path.open("ab") as file:
                file.write(piece)
            batches = asyncio.run(follow_once(path, boot_id, position))
            position = batches[-1].position
            matched += sum(
                s.lines
                for b in batches
                for s in b.sightings
                if s.report.kind is not FaultKind.LOST  # three lines; a restart may part them
            )
    lines, _, _ = read(log, [])
    assert matched == sum(n for key, n in lines.items() if key.kind is not FaultKind.LOST)
