"""Reports of three sources to one stream: which fault they are about, and who saw it first.

A report that is complete enough to be named is counted at once, whoever brings it first. Two
kinds are not: an NVML event of a code whose text decides how bad it is (144-150), and a
tracepoint's report of a GPU with MIG, which does not say which instance. While the kernel log
works they wait :data:`WAIT_SECONDS` for its line, then they are counted as they are: a fault
that only they report is late, never lost.

No I/O and no clock: times are epoch seconds that come as arguments.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from node_agent.health.faults import OpenFault, Seen
from node_agent.xid.catalogue import NVLINK5_CODES
from node_agent.xid.episodes import EpisodeCounter, FaultKey, Source
from node_agent.xid.parse import RECOVERY_ACTION_CHANGED


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from node_agent.xid.parse import XidReport

WAIT_SECONDS: Final = 3.0
"""Longer than any lag of the kernel log: syslog(2) is read each second."""
_MAX_WAITING: Final = 1024
TEXT_DECIDES: Final = NVLINK5_CODES | {RECOVERY_ACTION_CHANGED}


class Report(NamedTuple):
    """What one source says: ``lines`` raw lines of the kernel log (0 for the others).

    ``seen_at`` is when it reached the agent. ``live``: not the replay of an old log, so that
    lag and pods mean something. ``incomplete``: better to wait for the kernel log.
    """

    report: XidReport
    first: float
    last: float
    source: Source
    seen_at: float
    lines: int = 0
    live: bool = True
    partial: bool = False
    vague: bool = False
    incomplete: bool = False


@dataclass(slots=True)
class SourceStats:
    """What one source was good for, since start: episodes it saw first, and how late it was."""

    first: int = 0
    """Episodes that it reported before the others."""
    later: int = 0
    """Episodes that another source had reported before."""
    lag_seconds: float = 0.0
    """Sum of the lags of ``later``."""


@dataclass(slots=True)
class Merger:
    """Names the fault of each report, in the order of their coming.

    Args:
        pods_of: the pods (``namespace/name``) that a live fault has hit.
    """

    pods_of: Callable[[XidReport], tuple[str, ...]]
    stats: dict[Source, SourceStats] = field(
        default_factory=lambda: {source: SourceStats() for source in Source}
    )
    dropped: int = 0
    """Incomplete reports that found no room to wait; counted at once."""
    _episodes: EpisodeCounter = field(default_factory=EpisodeCounter)
    _waiting: deque[tuple[float, Report]] = field(default_factory=deque)

    @property
    def forgotten(self) -> int:
        """Episodes that were one too many to be remembered."""
        return self._episodes.evicted

    def take(self, report: Report, *, log_works: bool) -> list[Seen]:
        """One report; what it adds, now. Nothing if it has to wait."""
        if report.incomplete and log_works:
            if len(self._waiting) < _MAX_WAITING:
                self._waiting.append((report.seen_at + WAIT_SECONDS, report))
                return []
            self.dropped += 1
        return [self._count(report)]

    def due(self, now: float, *, log_works: bool) -> list[Seen]:
        """What has waited long enough; everything once the log has ceased to work."""
        found = []
        while self._waiting and (not log_works or self._waiting[0][0] <= now):
            found.append(self._count(self._waiting.popleft()[1]))
        return found

    def end(self, faults: Iterable[OpenFault]) -> None:
        """These faults are over by an operator's word; their next report opens an episode."""
        for f in faults:
            self._episodes.end(FaultKey(f.kind, f.pci, f.code, f.subcode, f.gi, f.ci))

    @property
    def next_due(self) -> float | None:
        """When :meth:`due` has something (epoch seconds)."""
        return self._waiting[0][0] if self._waiting else None

    def _count(self, one: Report) -> Seen:
        found = self._episodes.add(
            one.report,
            first=one.first,
            last=one.last,
            lines=one.lines,
            source=one.source,
            partial=one.partial,
            seen_at=one.seen_at,
        )
        if one.live and found.new_source:
            stats = self.stats[one.source]
            if found.new_episode:
                stats.first += 1
            else:
                stats.later += 1
                stats.lag_seconds += found.lag
        return Seen(
            report=one.report,
            first=one.first,
            last=one.last,
            new_episode=found.new_episode,
            lines=found.lines,
            root_cause=found.root_cause,
            key=found.key,
            source=str(one.source),
            vague=one.vague,
            pods=self.pods_of(one.report) if one.live else (),
        )
