"""What a kernel-log source hands on, and what it counts.

A *sighting* is one or more lines of one fault that stand close together (neighbours at
most a second apart), so that a storm of 100,000 lines is a few sightings. A *batch*
carries the sightings of one bounded piece of the log and the *position* behind it: who
stores the position together with what it did with the batch never counts a line twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec


if TYPE_CHECKING:
    from node_agent.xid.parse import XidReport

BLOCK_BYTES: Final = 16384
"""Bytes handled before the event loop gets its turn: a quarter millisecond of one storm,
and below ten if every line is another fault and the machine is busy."""


class Mode(StrEnum):
    """Which source to read. ``auto``: kmsg if it opens, else syslog(2), else a file."""

    AUTO = "auto"
    KMSG = "kmsg"
    SYSLOG = "syslog"
    FILE = "file"
    FIFO = "fifo"


class Moment(NamedTuple):
    """Now, on both clocks: Unix time, and seconds since boot as the kernel log counts them."""

    wall: float
    boot: float


class Clock(Protocol):
    """Where a source takes the time from."""

    def now(self) -> Moment:
        """The present moment."""
        ...


class SystemClock:
    """The machine's clocks. The kernel stamps its log with CLOCK_MONOTONIC."""

    def now(self) -> Moment:
        """The present moment."""
        return Moment(time.time(), time.clock_gettime(time.CLOCK_MONOTONIC))


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the log has been read; valid within one boot only.

    kmsg: ``sequence`` of the last record. file: ``inode`` and ``offset`` behind the last
    complete line, ``check`` a CRC of the bytes before it, because a later file may be
    given the same inode. syslog: ``at`` (microseconds since boot) of the last line and how many
    lines carry that time. A FIFO has none.
    """

    source: str
    boot_id: str
    sequence: int = -1
    inode: int = 0
    offset: int = 0
    check: int = 0
    at: int = -1
    at_lines: int = 0


@dataclass(frozen=True, slots=True)
class Sighting:
    """``lines`` lines about one fault.

    ``first`` and ``last`` are seconds since boot on the kernel log's clock (for
    :class:`~node_agent.xid.episodes.EpisodeCounter`); the ``_wall`` pair is the same in
    Unix time, never in the future.
    """

    report: XidReport
    lines: int
    first: float
    last: float
    first_wall: float
    last_wall: float


class Batch(NamedTuple):
    """Sightings in log order, newly learned ``(pci, uuid)`` pairs, and where this ends.

    ``caught_up`` is false while the log of the current boot is being replayed; the batch
    that ends the replay comes even if it is empty.
    """

    sightings: tuple[Sighting, ...]
    identities: tuple[tuple[str, str], ...]
    position: Position | None
    caught_up: bool


@dataclass(slots=True)
class Counters:
    """What a source has met since start; for metrics."""

    lines: int = 0
    """Lines or records read."""
    matched: int = 0
    """Lines that were a fault, before grouping."""
    malformed: int = 0
    """Lines that claim to be a fault, or kmsg records, that could not be read."""
    oversized: int = 0
    """Lines cut at the length limit."""
    overruns: int = 0
    """Times the kernel's ring was overwritten before we had read it."""
    gaps: int = 0
    """Records missing between two sequence numbers."""
    rotations: int = 0
    truncations: int = 0
    lost_places: int = 0
    """Times the place up to which a file had been read was not found again."""
    earlier_boot: int = 0
    """Lines left out because they are of an earlier boot."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """Which source is read, whether it works, and if not, why, in words for people."""

    source: str
    working: bool
    reason: str = ""
