"""syslog(2): joining one answer to the next, and the real call where it is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from node_agent.sources.kernel_log import Batch, Counters, Mode, Position
from node_agent.sources.kernel_log.grouping import Grouper
from node_agent.sources.kernel_log.source import can_read_ring
from node_agent.sources.kernel_log.syslog import SyslogRing


if TYPE_CHECKING:
    from pathlib import Path

    from conftest import FixedClock, Follow  # type: ignore[import-not-found]

    from node_agent.xid.catalogue import Catalogue

BOOT = "this boot"


def xid(code: int, at: float) -> bytes:
    return f"<4>[{at:12.6f}] NVRM: Xid (PCI:0000:9b:00): {code}, pid=1, name=x, t\n".encode()


def noise(at: float) -> bytes:
    return f"<6>[{at:12.6f}] usb 1-1: new device at {at}\n".encode()


class Ring:
    """A kernel ring of limited size that tests append to."""

    def __init__(self, catalogue: Catalogue, clock: FixedClock, size: int = 65536) -> None:
        """``size`` bytes are kept."""
        self.text = b""
        self.counters = Counters()
        self.batches: list[Batch] = []
        self._size = size
        self._catalogue = catalogue
        self._clock = clock
        self.reader = self.new_reader(None)

    def new_reader(self, resume: Position | None) -> SyslogRing:
        """As after a restart of the agent."""
        self.counters = Counters()
        self.batches = []
        self.reader = SyslogRing(
            boot_id=BOOT,
            clock=self._clock,
            grouper=Grouper(catalogue=self._catalogue, counters=self.counters),
            counters=self.counters,
            resume=resume,
            report_state=lambda _: None,
            read=self.read,
            size=lambda: self._size,
        )
        return self.reader

    def read(self, size: int) -> bytes:
        """The last whole lines that fit."""
        kept = self.text[-self._size :] if len(self.text) > self._size else self.text
        kept = kept if len(kept) <= size else kept[-size:]
        return kept if kept == self.text else kept[kept.find(b"\n") + 1 :]

    async def poll(self, *lines: bytes) -> list[int | None]:
        """Append lines, poll once; one code a line of what is new."""
        self.text += b"".join(lines)
        before = len(self.batches)
        await self.reader._poll(self._size, self.batches.append)
        return [
            s.report.code
            for b in self.batches[before:]
            for s in b.sightings
            for _ in range(s.lines)
        ]


@pytest.fixture
def ring(catalogue: Catalogue, clock: FixedClock) -> Ring:
    return Ring(catalogue, clock)


async def test_each_line_is_taken_once(ring: Ring) -> None:
    assert await ring.poll(noise(1), xid(48, 2)) == [48]
    assert ring.batches[-1].caught_up
    assert await ring.poll() == []
    assert await ring.poll(xid(48, 2), xid(79, 3)) == [48, 79], "an equal line is another line"
    assert ring.counters.overruns == 0


async def test_an_empty_ring_is_caught_up(ring: Ring) -> None:
    assert await ring.poll() == []
    assert ring.batches[-1].caught_up
    assert await ring.poll(xid(79, 3)) == [79]


async def test_more_than_the_short_answer_holds_is_asked_for_again(ring: Ring) -> None:
    await ring.poll(noise(1))
    assert await ring.poll(xid(79, 2), *(noise(n) for n in range(3, 800))) == [79]
    assert ring.counters.overruns == 0


async def test_an_overwritten_ring_is_counted(ring: Ring) -> None:
    await ring.poll(noise(1))
    assert await ring.poll(*(noise(n) for n in range(2, 4000)), xid(79, 5000)) == [79]
    assert ring.counters.overruns == 1


async def test_a_saved_position_counts_nothing_twice(ring: Ring) -> None:
    await ring.poll(xid(48, 1), xid(62, 2), xid(62, 2))
    saved = ring.batches[-1].position
    assert saved == Position("syslog", BOOT, at=2_000_000, at_lines=2)
    ring.text += xid(62, 2) + xid(79, 3)
    ring.new_reader(saved)
    assert await ring.poll() == [62, 79]
    assert ring.batches[-1].position == Position("syslog", BOOT, at=3_000_000, at_lines=1)


async def test_a_position_of_another_boot_is_not_used(ring: Ring) -> None:
    await ring.poll(xid(48, 1))
    ring.new_reader(Position("syslog", "another boot", at=2_000_000, at_lines=1))
    assert await ring.poll() == [48]


@pytest.mark.skipif(not can_read_ring(), reason="the kernel refuses syslog(2) here (CAP_SYSLOG)")
async def test_the_real_call(follow: Follow, tmp_path: Path) -> None:
    async with follow(Mode.SYSLOG, tmp_path) as log:
        await log.until(lambda: log.caught_up)
        assert log.log.state.working
        assert log.position is not None
