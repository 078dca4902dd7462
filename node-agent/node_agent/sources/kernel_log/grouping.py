"""Lines to sightings: count first, parse once.

In a storm nearly every line repeats the one before up to its process id. Such lines
share a key, cut out by one short regular expression; only the first line of a key is
parsed, the rest are counted. What could change the verdict (NVLink 5 words, a root
cause) is part of the key, and an Xid 154 is never grouped: its order matters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from node_agent.sources.kernel_log.model import Counters, Sighting
from node_agent.xid.assemble import LineAssembler


if TYPE_CHECKING:
    from node_agent.xid.catalogue import Catalogue
    from node_agent.xid.parse import XidReport

NEIGHBOUR_SECONDS: Final = 1.0
"""Lines of one key further apart than this are separate sightings."""
_MAX_KNOWN: Final = 512
REPEAT_HEAD: Final = rb"NVRM: Xid \([^)\n]{1,64}\): \d{1,9}(?:, pid=(?:\d+|'<unknown>'))?"
"""Up to the process id: what lines of a storm have in common."""
DRIVER_PREFIXES: Final = (b"NVRM: ", b"nvidia-nvswitch")
"""How a line of the driver begins; another program may quote one, but not begin so."""
CAUSE: Final = b" caused by previous Xid "
_CAUSE_BYTES: Final = 40
_KEY_BYTES: Final = 512
_HEAD = re.compile(REPEAT_HEAD)
_CODE = re.compile(rb"\): (\d+)")
_WHOLE_TEXT: Final = frozenset(b"%d" % code for code in range(144, 151))
_NEVER: Final = b"154"


@dataclass(slots=True)
class _Group:
    report: XidReport
    lines: int
    first: float
    last: float
    first_wall: float
    last_wall: float


class Grouper:
    """Collects lines; :meth:`take` gives the sightings so far and starts anew."""

    def __init__(self, *, catalogue: Catalogue, counters: Counters) -> None:
        """``counters`` is shared with the source that feeds the lines."""
        self._assembler = LineAssembler(catalogue=catalogue)
        self._counters = counters
        self._known: dict[bytes, XidReport] = {}
        self._open: dict[bytes, _Group] = {}
        self._groups: list[_Group] = []
        self._told: set[str] = set()

    def repeat(self, key: bytes, at: float, wall: float) -> bool:
        """Count a line whose key has just been seen. False: the line must be added in full."""
        group = self._open.get(key)
        if group is None or not 0.0 <= at - group.last <= NEIGHBOUR_SECONDS:
            return False
        group.lines += 1
        group.last = at
        group.last_wall = wall
        return True

    def add(self, text: bytes, at: float, wall: float) -> None:
        """One line without its log prefix. ``at``: seconds since boot; ``wall``: Unix time."""
        if not text.startswith(DRIVER_PREFIXES):
            return
        key = line_key(text)
        if key is not None and self.repeat(key, at, wall):
            return
        report = self._known.get(key) if key is not None else None
        if report is None:
            report = self._assembler.feed(text.decode("utf-8", "replace"))
            self._counters.malformed += self._assembler.malformed
            self._assembler.malformed = 0
            if report is None:
                return
        group = _Group(report, 1, at, at, wall, wall)
        self._groups.append(group)
        if key is not None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = report
            self._open[key] = group

    def take(self) -> tuple[Sighting, ...]:
        """The sightings since the last call, in the order of their first lines."""
        groups, self._groups = self._groups, []
        self._open.clear()
        self._counters.matched += sum(group.lines for group in groups)
        return tuple(
            Sighting(
                self._assembler.with_identity(g.report),
                g.lines,
                g.first,
                g.last,
                g.first_wall,
                g.last_wall,
            )
            for g in groups
        )

    def take_identities(self) -> tuple[tuple[str, str], ...]:
        """GPUs whose UUID the log has named since the last call."""
        new = tuple(
            (pci, uuid) for pci, uuid in self._assembler.identities.items() if pci not in self._told
        )
        self._told.update(pci for pci, _ in new)
        return new


def line_key(text: bytes) -> bytes | None:
    """What lines that count as repeats of each other have in common; None: never a repeat."""
    match = _HEAD.match(text)
    if match is None:
        return None
    head = match.group()
    found = _CODE.search(head)
    code = found.group(1) if found else _NEVER
    if code in _WHOLE_TEXT:
        return text[:_KEY_BYTES]
    if code == _NEVER:
        return None
    return head + cause_of(text)


def cause_of(text: bytes) -> bytes:
    """The root cause at the end of a line, as part of its key; empty if there is none."""
    found = text.rfind(CAUSE)
    return text[found : found + _CAUSE_BYTES] if found >= 0 else b""
