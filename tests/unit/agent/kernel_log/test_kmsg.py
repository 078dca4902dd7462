r"""/dev/kmsg: its record format, its errors, and the real device where it can be opened."""

# ruff: noqa: ASYNC240, E501 -- a record is written at once; records stand as read

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from node_agent.sources.kernel_log import Batch, Counters, Mode, Position
from node_agent.sources.kernel_log.grouping import Grouper
from node_agent.sources.kernel_log.kmsg import KmsgLog, Record, parse_record
from node_agent.sources.kernel_log.source import can_open_kmsg


if TYPE_CHECKING:
    from collections.abc import Iterable

    from conftest import FixedClock, Follow  # type: ignore[import-not-found]

    from node_agent.xid.catalogue import Catalogue

BOOT = "this boot"
DEVICE = Path("/dev/kmsg")

# As read from a real GPU node.
REAL = [
    b"4,359,44115545,c;NVRM: GPU at PCI:0000:00:06: GPU-991ca6af-7183-dbcc-7426-ca20a423fd21\n",
    b"4,360,44115556,c;NVRM: GPU Board Serial Number: 1653924184695\n",
    (
        b"4,361,44115558,c;NVRM: Xid (PCI:0000:00:06): 31, pid=490, name=python3, channel 0x0000000a,"
        b" intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x0_00000000."
        b" Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:06\n"
    ),
    (
        b"4,362,46331296,c;NVRM: Xid (PCI:0000:00:06): 13, Graphics SM Warp Exception on (GPC 1, TPC 4,"
        b" SM 0): Misaligned Address\n"
    ),
]


def xid(sequence: int, code: int = 79) -> bytes:
    return b"4,%d,1000000,-;NVRM: Xid (PCI:0000:9b:00): %d, pid=1, name=x, t\n" % (sequence, code)


@pytest.mark.parametrize(
    ("raw", "record"),
    [
        (b"6,339,5140900,-;NET: Registered\n", Record(339, 5140900, b"NET: Registered")),
        (b"7,160,424069,-,caller=T1;pci\n SUBSYSTEM=acpi\n", Record(160, 424069, b"pci")),
        (rb"4,1,2,-;a\x0ab\x5cx41", Record(1, 2, b"a\nb\\x41")),
        (b"", None),
        (b"no record", None),
        (b"4,x,2,-;text", None),
        (b"4,1;text", None),
        (b"4,99999999999999999999999,2,-;text", None),
    ],
)
def test_record_format(raw: bytes, record: Record | None) -> None:
    assert parse_record(raw) == record


class Device:
    """Answers reads from a list: bytes are a record, a number is an errno."""

    def __init__(self, answers: Iterable[bytes | int]) -> None:
        """After the last answer the device has nothing more."""
        self._answers = list(answers)

    def read(self, _fd: int, _size: int) -> bytes:
        if not self._answers:
            raise BlockingIOError
        answer = self._answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer


class Harness:
    """A kmsg reader on a list of answers."""

    def __init__(self, catalogue: Catalogue, clock: FixedClock) -> None:
        """The fixed clock gives wall times."""
        self.counters = Counters()
        self.batches: list[Batch] = []
        self._catalogue = catalogue
        self._clock = clock

    async def read(self, *answers: bytes | int, resume: Position | None = None) -> list[int | None]:
        """Read the answers; one code a line."""
        log = KmsgLog(
            Path("/dev/null"),
            boot_id=BOOT,
            clock=self._clock,
            grouper=Grouper(catalogue=self._catalogue, counters=self.counters),
            counters=self.counters,
            resume=resume,
            report_state=lambda _: None,
            read=Device(answers).read,
        )
        caught_up = asyncio.Event()

        def deliver(batch: Batch) -> None:
            self.batches.append(batch)
            if batch.caught_up:
                caught_up.set()

        # /dev/null cannot be waited for; what matters here is before the first wait.
        loop = asyncio.get_running_loop()
        loop.add_reader = lambda *_: None  # type: ignore[method-assign]
        loop.remove_reader = lambda *_: False  # type: ignore[method-assign]
        task = asyncio.create_task(log.run(deliver))
        waiting = asyncio.create_task(caught_up.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        for each in (task, waiting):
            each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return [s.report.code for b in self.batches for s in b.sightings for _ in range(s.lines)]


@pytest.fixture
def harness(catalogue: Catalogue, clock: FixedClock) -> Harness:
    return Harness(catalogue, clock)


async def test_real_records(harness: Harness, clock: FixedClock) -> None:
    assert await harness.read(*REAL) == [31, 13]
    batch = harness.batches[-1]
    first = batch.sightings[0]
    assert first.report.gpu_uuid == "GPU-991ca6af-7183-dbcc-7426-ca20a423fd21"
    assert first.first == pytest.approx(44.115558)
    assert first.first_wall == pytest.approx(clock.now().wall - (clock.now().boot - 44.115558))
    assert batch.position == Position("kmsg", BOOT, sequence=362)


async def test_a_text_of_three_lines_in_one_record(harness: Harness) -> None:
    raw = (
        rb"4,1,1,-;NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: (PCI ID: 10de:26b5) installed in this"
        rb" system has\x0aNVRM: fallen off the bus and is not responding to commands.\x0a"
    )
    assert await harness.read(raw) == [None]
    assert harness.batches[-1].sightings[0].report.pci == "0000:b3:00.0"


async def test_a_program_that_quotes_the_driver_is_not_the_driver(harness: Harness) -> None:
    quoted = b"14,2,1000000,-;monitor[12]: saw NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=x, t\n"
    assert await harness.read(quoted, xid(3, 119)) == [119]


async def test_overruns_gaps_and_garbage_are_counted_and_survived(harness: Harness) -> None:
    codes = await harness.read(
        xid(1), errno.EPIPE, xid(50), b"\xff\xff\0", errno.EINVAL, xid(51), xid(55)
    )
    assert codes == [79, 79, 79, 79]
    counters = harness.counters
    assert (counters.overruns, counters.malformed, counters.gaps) == (1, 2, 48 + 3)


async def test_a_saved_sequence_counts_nothing_twice(harness: Harness) -> None:
    saved = Position("kmsg", BOOT, sequence=2)
    assert await harness.read(xid(1), xid(2), xid(3, 119), resume=saved) == [119]


async def test_what_was_overwritten_while_the_agent_was_away_is_counted(harness: Harness) -> None:
    saved = Position("kmsg", BOOT, sequence=2)
    assert await harness.read(xid(10), resume=saved) == [79]
    assert harness.counters.gaps == 7


async def test_a_sequence_of_another_boot_is_not_used(harness: Harness) -> None:
    saved = Position("kmsg", "another boot", sequence=2)
    assert await harness.read(xid(1), xid(2), resume=saved) == [79, 79]


async def test_a_long_ring_is_read_in_bounded_batches(harness: Harness) -> None:
    codes = await harness.read(*(xid(n) for n in range(5000)))
    assert len(codes) == 5000
    assert len(harness.batches) == 20
    assert [b.caught_up for b in harness.batches] == [False] * 19 + [True]


async def test_a_device_that_only_fails_gives_up(harness: Harness) -> None:
    with pytest.raises(OSError, match="Broken pipe"):
        await harness.read(*[errno.EPIPE] * 200)


@pytest.mark.skipif(
    not can_open_kmsg(DEVICE), reason="the kernel refuses /dev/kmsg here (no CAP_SYSLOG or device)"
)
async def test_the_real_device(follow: Follow) -> None:
    """The replay of this boot ends, and a record written now wakes the reader up."""
    async with follow(Mode.AUTO, DEVICE) as log:
        await log.until(lambda: log.caught_up)
        assert log.log.state.source == "kmsg"
        assert log.log.counters.lines > 0
        before = log.position
        with contextlib.suppress(OSError):  # a kernel that takes no records from us
            while log.position == before:  # it may take one, and drop it without a word
                DEVICE.write_bytes(b"<7>gpu-remediator test: nothing to see here")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(log.until(lambda: log.position != before), 2.0)
