"""Bytes of a plain kernel log to lines, prefixes and times.

A plain log is whatever a syslog daemon, ``dmesg`` or a test wrote: bare text, ``[ts]``,
classic syslog or RFC 3339 in front. Only lines *of the kernel* count: another program
that quotes an Xid (a monitor, this agent itself) must not be taken for the driver.

Parts without a fault are skipped at the speed of ``bytes.find``.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from node_agent.sources.kernel_log.grouping import CAUSE, DRIVER_PREFIXES, REPEAT_HEAD, cause_of


if TYPE_CHECKING:
    from node_agent.sources.kernel_log.grouping import Grouper
    from node_agent.sources.kernel_log.model import Counters, Moment

MAX_LINE: Final = 8192
"""Bytes of a line that are looked at; syslog daemons cut at 8 KiB or less."""
_CLOCK_SLACK_SECONDS: Final = 60.0

# An optional priority, then an optional daemon's prefix that must name the kernel, then
# the kernel's own time (and caller, where the kernel is built to print it).
_PREFIX = (
    rb"(?:<\d{1,3}>)?"
    rb"(?:(\d{4}-\d\d-\d\d[T ][^ \n]{8,32}|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) [^ \n]+ kernel: )?"
    rb"(?:\[ *(\d{1,9}\.\d{1,9})\](?:\[ *[TC]\d+\])? ?)?"
)
_LINE_PREFIX = re.compile(_PREFIX)
_STORM_LINE = re.compile(_PREFIX + rb"(" + REPEAT_HEAD + rb")")
_DMESG_T = re.compile(rb"\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ")
_BANNER: Final = b"Linux version "


class Prefix(NamedTuple):
    """What stands in front of a kernel line: daemon's stamp, kernel's seconds, text's start."""

    stamp: bytes | None
    kernel: float | None
    end: int


def read_prefix(line: bytes) -> Prefix:
    """Split off the log prefix. A line that is not the kernel's keeps its whole text."""
    match = _LINE_PREFIX.match(line)
    if match is None:  # cannot be: every part is optional
        return Prefix(None, None, 0)
    stamp, kernel = match.groups()
    end = match.end()
    if end == 0 and (human := _DMESG_T.match(line)):
        return Prefix(human.group(1), None, human.end())
    return Prefix(stamp, float(kernel) if kernel else None, end)


def is_boot_banner(line: bytes) -> bool:
    """Whether a line is the kernel's first one after a boot."""
    prefix = read_prefix(line)
    stamped = prefix.kernel is not None or prefix.stamp is not None
    return stamped and not prefix.kernel and line.startswith(_BANNER, prefix.end)


def stamp_to_wall(stamp: bytes, now: float) -> float | None:
    """A daemon's or dmesg's time to Unix time; None if unreadable.

    A classic stamp has no year and no zone: this machine's zone, and the latest year
    that does not lie in the future, are the best guess there is.
    """
    text = stamp.decode("ascii", "replace")
    try:
        if text[0].isdigit():
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return moment.timestamp()
        if len(text) > len("Dec  2 09:20:01"):
            return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))
        year = time.localtime(now).tm_year
        wall = time.mktime(time.strptime(f"{year} {text}", "%Y %b %d %H:%M:%S"))
        if wall > now + 86400:
            wall = time.mktime(time.strptime(f"{year - 1} {text}", "%Y %b %d %H:%M:%S"))
    except (ValueError, OverflowError):
        return None
    return wall


class LineSplitter:
    """Chunks of bytes to blocks of complete lines, however the chunks were cut.

    NUL bytes (holes of a truncated file) vanish; a line beyond the limit is cut. What is
    held back is at most one line's limit.
    """

    def __init__(self) -> None:
        """Start with nothing held back."""
        self._part = b""
        self._cut = False
        self.held = 0
        """Bytes taken in that are not part of a complete line yet."""

    def push(self, chunk: bytes) -> bytes:
        """Take a chunk; return the lines that are complete now, with their newlines."""
        end = chunk.rfind(b"\n") + 1
        if end == 0:
            self.held += len(chunk)
            self._hold(chunk)
            return b""
        self.held = len(chunk) - end
        block = self._part + _without_nul(chunk[:end])
        self._part, self._cut = b"", False
        self._hold(chunk[end:])
        return block

    def flush(self) -> bytes:
        """The last line of a log that ended without a newline."""
        part, self._part, self._cut, self.held = self._part, b"", False, 0
        return part + b"\n" if part else b""

    def _hold(self, chunk: bytes) -> None:
        if self._cut:
            return
        self._part += _without_nul(chunk)
        if len(self._part) > MAX_LINE:
            self._part, self._cut = self._part[: MAX_LINE + 1], True


def _without_nul(chunk: bytes) -> bytes:
    return chunk.replace(b"\0", b"") if b"\0" in chunk else chunk


class LogText:
    """Blocks of complete lines of a plain log to the grouper, with the times of each line.

    ``live``: the lines were written just now, so now is their wall time; otherwise they
    are a replay and the time comes from the line.
    """

    def __init__(self, *, grouper: Grouper, counters: Counters) -> None:
        """``grouper`` collects the sightings."""
        self._grouper = grouper
        self._counters = counters

    def read(self, block: bytes, now: Moment, *, live: bool, only_this_boot: bool = False) -> None:
        """Take a block of complete lines. ``only_this_boot``: leave out older stamps."""
        self._counters.lines += block.count(b"\n")
        if b"NVRM" not in block and b"SXid" not in block:
            return
        caused = CAUSE in block
        for line in block.split(b"\n"):
            if self._is_repeat(line, now, live=live, caused=caused, only_this_boot=only_this_boot):
                continue
            if b"NVRM" in line or b"SXid" in line:
                self._line(line, now, live=live, only_this_boot=only_this_boot)

    def _is_repeat(
        self, line: bytes, now: Moment, *, live: bool, caused: bool, only_this_boot: bool
    ) -> bool:
        """Count a line of a storm. Kept short: it runs for each of 100,000 lines."""
        match = _STORM_LINE.match(line)
        if match is None:
            return False
        stamp, kernel, key = match.group(1, 2, 3)
        if kernel is None and not live:
            return False  # its time must be read from the daemon's stamp
        at = float(kernel) if kernel else now.boot
        if only_this_boot and (stamp is not None or at > now.boot + _CLOCK_SLACK_SECONDS):
            return False  # it may be of an earlier boot
        if caused:
            key += cause_of(line)
        return self._grouper.repeat(key, at, _wall_of(at, now, live=live))

    def _line(self, line: bytes, now: Moment, *, live: bool, only_this_boot: bool) -> None:
        prefix = read_prefix(line)
        text = line[prefix.end : MAX_LINE]
        if not text.startswith(DRIVER_PREFIXES):
            return  # another program that quotes the driver
        if len(line) > MAX_LINE:
            self._counters.oversized += 1
        if only_this_boot and _is_older(prefix, now):
            self._counters.earlier_boot += 1
            return
        at, wall = line_times(prefix, now, live=live)
        self._grouper.add(text, at, wall)


def line_times(prefix: Prefix, now: Moment, *, live: bool) -> tuple[float, float]:
    """``(seconds since boot, Unix time)`` of a line; the wall time is never in the future."""
    if prefix.kernel is not None:
        return prefix.kernel, _wall_of(prefix.kernel, now, live=live)
    stamped = stamp_to_wall(prefix.stamp, now.wall) if prefix.stamp and not live else None
    if stamped is None:
        return now.boot, now.wall
    wall = min(stamped, now.wall)
    return now.boot - (now.wall - wall), wall


def _wall_of(kernel: float, now: Moment, *, live: bool) -> float:
    """Unix time of a kernel stamp. One ahead of this boot's clock is of another machine."""
    age = now.boot - kernel
    return now.wall if live or age < 0 else now.wall - age


def _is_older(prefix: Prefix, now: Moment) -> bool:
    """Whether a line tells by itself that it is of an earlier boot (exact stamps only)."""
    if prefix.stamp and prefix.stamp[:1].isdigit():
        stamped = stamp_to_wall(prefix.stamp, now.wall)
        return stamped is not None and stamped < now.wall - now.boot - _CLOCK_SLACK_SECONDS
    return prefix.kernel is not None and prefix.kernel > now.boot + _CLOCK_SLACK_SECONDS
