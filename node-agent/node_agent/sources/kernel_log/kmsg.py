r"""/dev/kmsg: the kernel's own ring, one record a read, woken by the event loop.

A record is ``priority,sequence,microseconds,flags[,…];text`` with ``\xNN`` escapes,
then optional `` KEY=VALUE`` lines that do not matter here. The ring is read from its
oldest record, which is the replay of the current boot; a saved position skips what was
handled before. What the kernel overwrote before we read it is counted, never fatal.
Source: Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from node_agent.sources.kernel_log.model import Batch, Clock, Counters, Moment, Position


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from node_agent.sources.kernel_log.grouping import Grouper

SOURCE: Final = "kmsg"
_RECORD_BYTES: Final = 16384
"""Larger than any record (8 KiB): a smaller buffer would get EINVAL."""
_BATCH_RECORDS: Final = 256
_MAX_FAILURES: Final = 100
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_MARKERS: Final = (b"NVRM", b"SXid")


class Record(NamedTuple):
    """One kmsg record. ``at`` is microseconds since boot."""

    sequence: int
    at: int
    text: bytes


def parse_record(raw: bytes) -> Record | None:
    """One record as read from the device; None if it has not its shape."""
    head, semicolon, body = raw.partition(b";")
    fields = head.split(b",", 4)
    if not semicolon or len(fields) < 4:  # noqa: PLR2004 -- priority, sequence, time, flags
        return None
    sequence, at = fields[1], fields[2]
    if not (sequence.isdigit() and at.isdigit() and len(sequence) < 20 and len(at) < 20):  # noqa: PLR2004 -- 64 bits
        return None
    text = body.partition(b"\n")[0]
    if b"\\x" in text:
        text = _ESCAPE.sub(lambda found: bytes((int(found.group(1), 16),)), text)
    return Record(int(sequence), int(at), text)


class KmsgLog:
    """Reads one kmsg device. Raises OSError when it cannot be opened or fails for good."""

    def __init__(
        self,
        path: Path,
        *,
        boot_id: str,
        clock: Clock,
        grouper: Grouper,
        counters: Counters,
        resume: Position | None,
        report_state: Callable[[str], None],
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        """``resume`` is used if it is of this boot and source. ``report_state("")``: it works."""
        self._path = path
        self._boot_id = boot_id
        self._clock = clock
        self._grouper = grouper
        self._counters = counters
        self._report_state = report_state
        self._read = read
        usable = resume and resume.source == SOURCE and resume.boot_id == boot_id != ""
        self._sequence = resume.sequence if resume and usable else -1
        self._expected = self._sequence + 1 if self._sequence >= 0 else -1
        self._failures = 0

    async def run(self, deliver: Callable[[Batch], None]) -> None:
        """Read until cancelled."""
        fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        self._report_state("")
        loop.add_reader(fd, readable.set)
        caught_up = False
        try:
            while True:
                readable.clear()
                before = self._counters.lines
                emptied = self._read_some(fd)
                caught_up_now = emptied and not caught_up
                caught_up = caught_up or emptied
                if caught_up_now or self._counters.lines > before:
                    self._deliver(deliver, caught_up=caught_up)
                if emptied:
                    await readable.wait()
                else:
                    await asyncio.sleep(0)
        finally:
            loop.remove_reader(fd)
            os.close(fd)

    def _read_some(self, fd: int) -> bool:
        """Read up to a batch of records. True if the ring has no more for now."""
        now = self._clock.now()
        for _ in range(_BATCH_RECORDS):
            try:
                raw = self._read(fd, _RECORD_BYTES)
            except BlockingIOError:
                self._failures = 0
                return True
            except OSError as error:
                self._failed(error)
                continue
            self._failures = 0
            if not raw:
                return True
            self._counters.lines += 1
            self._take(raw, now)
        return False

    def _failed(self, error: OSError) -> None:
        """Overwritten (EPIPE) or unfit (EINVAL) records are counted; the next read goes on."""
        self._failures += 1
        if error.errno == errno.EPIPE:
            self._counters.overruns += 1
        elif error.errno == errno.EINVAL:
            self._counters.malformed += 1
        else:
            raise error
        if self._failures > _MAX_FAILURES:
            raise error

    def _take(self, raw: bytes, now: Moment) -> None:
        record = parse_record(raw)
        if record is None:
            self._counters.malformed += 1
            return
        if 0 <= self._expected < record.sequence:
            self._counters.gaps += record.sequence - self._expected
        self._expected = record.sequence + 1
        if record.sequence <= self._sequence:
            return  # handled before the restart
        self._sequence = record.sequence
        if not any(marker in record.text for marker in _MARKERS):
            return
        at = record.at / 1e6
        wall = now.wall - max(0.0, now.boot - at)
        for line in record.text.split(b"\n"):
            self._grouper.add(line, at, wall)

    def _deliver(self, deliver: Callable[[Batch], None], *, caught_up: bool) -> None:
        position = Position(SOURCE, self._boot_id, sequence=self._sequence)
        deliver(Batch(self._grouper.take(), self._grouper.take_identities(), position, caught_up))
