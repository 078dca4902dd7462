"""syslog(2): the kernel's ring as text, for containers that may not open /dev/kmsg.

The device cgroup of an unprivileged container refuses /dev/kmsg even with CAP_SYSLOG;
the system call needs only the capability. It cannot be waited for, so it is polled, and
each answer is the whole ring (or its last part): what is new stands behind the last
lines of the answer before. If those are gone the ring was overwritten in between.
Source: syslog(2); SYSLOG_ACTION_READ_ALL copies the *last* bytes that fit.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from typing import TYPE_CHECKING, Final

from node_agent.sources.kernel_log.model import BLOCK_BYTES, Batch, Clock, Counters, Position
from node_agent.sources.kernel_log.text import LogText, read_prefix


if TYPE_CHECKING:
    from collections.abc import Callable

    from node_agent.sources.kernel_log.grouping import Grouper

SOURCE: Final = "syslog"
DEFAULT_POLL_SECONDS: Final = 1.0
_READ_ALL: Final = 3
_SIZE_BUFFER: Final = 10
_REST: Final = 400
"""Rest this many times as long as an answer took: at most a quarter percent of a core."""
_MAX_POLL_SECONDS: Final = 5.0
_TAIL_BYTES: Final = 16384
"""First only so much is asked for: enough for what a healthy kernel prints in a second."""
_ANCHOR_LINES: Final = 3
_MAX_RING_BYTES: Final = 1 << 26


def klogctl(action: int, size: int) -> bytes:
    """One syslog(2) call that reads. Raises OSError (EPERM without CAP_SYSLOG)."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(size)
    result = libc.klogctl(action, buffer, size)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return buffer.raw[:result]


def ring_size() -> int:
    """Bytes of the kernel's ring."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.klogctl(_SIZE_BUFFER, None, 0)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return min(int(result), _MAX_RING_BYTES)


def read_ring(size: int) -> bytes:
    """The last ``size`` bytes of the ring as text. Raises OSError."""
    return klogctl(_READ_ALL, size)


def new_part(text: bytes, anchor: bytes) -> int:
    """Offset behind the last lines of the answer before; -1 if they are not in this one."""
    if not anchor:
        return 0
    found = text.rfind(anchor)
    return found + len(anchor) if found >= 0 else -1


def anchor_of(text: bytes) -> bytes:
    """The last complete lines of an answer, by which the next one is joined to it."""
    end = text.rfind(b"\n") + 1
    start = end
    for _ in range(_ANCHOR_LINES):
        start = text.rfind(b"\n", 0, max(0, start - 1)) + 1
        if start == 0:
            break
    return text[start:end]


class SyslogRing:
    """Polls the ring. Raises OSError when the call is refused."""

    def __init__(
        self,
        *,
        boot_id: str,
        clock: Clock,
        grouper: Grouper,
        counters: Counters,
        resume: Position | None,
        report_state: Callable[[str], None],
        poll_seconds: float = DEFAULT_POLL_SECONDS,
        read: Callable[[int], bytes] = read_ring,
        size: Callable[[], int] = ring_size,
    ) -> None:
        """``read`` and ``size`` are the system calls, replaced in tests."""
        self._boot_id = boot_id
        self._clock = clock
        self._grouper = grouper
        self._counters = counters
        self._text = LogText(grouper=grouper, counters=counters)
        self._report_state = report_state
        self._poll_seconds = poll_seconds
        self._read = read
        self._size = size
        usable = resume and resume.source == SOURCE and resume.boot_id == boot_id != ""
        self._resume = resume if usable else None
        self._anchor = b""
        self._at = resume.at if resume and usable else -1
        self._at_lines = resume.at_lines if resume and usable else 0
        self._caught_up = False

    async def run(self, deliver: Callable[[Batch], None]) -> None:
        """Poll until cancelled."""
        size = self._size()
        # Each line of the ring grows a time stamp in this form of it.
        whole = 2 * size
        self._report_state("")
        while True:
            begun = self._clock.now().boot
            await self._poll(whole, deliver)
            # The kernel walks its whole ring for each answer: a large one is asked less often.
            spent = self._clock.now().boot - begun
            await asyncio.sleep(min(max(self._poll_seconds, spent * _REST), _MAX_POLL_SECONDS))

    async def _poll(self, whole: int, deliver: Callable[[Batch], None]) -> None:
        text = self._read(_TAIL_BYTES) if self._caught_up else self._read(whole)
        start = new_part(text, self._anchor)
        if start < 0 and self._caught_up:
            text = self._read(whole)
            start = new_part(text, self._anchor)
        if start < 0:
            self._counters.overruns += 1
            start = 0
        fresh = text[start:]
        if self._resume is not None:
            fresh = _behind(fresh, self._resume)
            self._resume = None
        if fresh or not self._caught_up:
            self._anchor = anchor_of(text) or self._anchor
            await self._take(fresh, deliver)

    async def _take(self, fresh: bytes, deliver: Callable[[Batch], None]) -> None:
        """Hand the lines on in bounded blocks."""
        begin = 0
        while begin < len(fresh):
            end = begin + BLOCK_BYTES
            end = len(fresh) if end >= len(fresh) else fresh.rfind(b"\n", begin, end) + 1
            end = end if end > begin else len(fresh)
            block = fresh[begin:end]
            begin = end
            self._text.read(block, self._clock.now(), live=self._caught_up)
            self._advance(block)
            self._caught_up = self._caught_up or begin >= len(fresh)
            self._deliver(deliver)
            await asyncio.sleep(0)
        if not self._caught_up:
            self._caught_up = True
            self._deliver(deliver)

    def _advance(self, block: bytes) -> None:
        """Move the position behind a block: its last stamp, and how many lines carry it."""
        for line in reversed(block.splitlines()):
            at = _microseconds(line)
            if at is None:
                continue
            if at > self._at:
                self._at, self._at_lines = at, 0
            same = sum(1 for other in block.splitlines() if _microseconds(other) == self._at)
            self._at_lines += same
            return

    def _deliver(self, deliver: Callable[[Batch], None]) -> None:
        position = Position(SOURCE, self._boot_id, at=self._at, at_lines=self._at_lines)
        deliver(
            Batch(self._grouper.take(), self._grouper.take_identities(), position, self._caught_up)
        )


def _microseconds(line: bytes) -> int | None:
    kernel = read_prefix(line).kernel
    return None if kernel is None else round(kernel * 1e6)


def _behind(text: bytes, saved: Position) -> bytes:
    """What stands behind a saved position: later stamps, and further lines of its stamp."""
    left = saved.at_lines
    kept: list[bytes] = []
    for line in text.splitlines(keepends=True):
        at = _microseconds(line)
        if at is None or at > saved.at:
            kept.append(line)
        elif at == saved.at:
            if left <= 0:
                kept.append(line)
            left -= 1
    return b"".join(kept)
