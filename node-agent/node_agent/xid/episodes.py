"""One fault, one count: reports of every source to episodes.

An episode is a run of lines about one fault in which no two neighbours are more than
30 s apart. Its identity is the device, the code (with its NVLink unit), the MIG
instance and, for application errors only, the process: two processes that each fault
are two faults, while one hung GSP is one fault although eight processes report it.
The driver prints some lines of one fault with the process and some without it, so an
unknown process joins the running episode of any.

Three sources report the same fault: the kernel log (everything), NVML (no text, so no
NVLink unit, no process) and the driver's tracepoint (no process, no MIG instance). A report
of a source that cannot know all of the identity is *partial*: what it lacks matches
anything, whichever comes first. So one fault is one episode in any order of sources, and
each episode knows who saw it first.

Pure: times come with the reports, on one clock that all sources share.
Memory is bounded: at most ``capacity`` faults are remembered, the one seen least
recently goes first, and is counted.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from node_agent.contract import FaultKind, Severity
from node_agent.xid.parse import FALLEN_OFF_BUS


if TYPE_CHECKING:
    from node_agent.xid.parse import XidReport

EPISODE_WINDOW_SECONDS: Final = 30.0
ROOT_CAUSE_WINDOW_SECONDS: Final = 10.0
"""A code that opens an episode this soon after a graver one on the same device follows it."""
DEFAULT_CAPACITY: Final = 1024
_RANK: Final = {Severity.INFO: 0, Severity.WARNING: 1, Severity.FATAL: 2}


class FaultKey(NamedTuple):
    """Which fault of which device; the process is not part of it."""

    kind: FaultKind
    pci: str
    code: int | None
    subcode: str
    gi: int | None
    ci: int | None

    @classmethod
    def of(cls, report: XidReport) -> FaultKey:
        """The identity of the fault that a report is about."""
        return cls(report.kind, report.pci, report.code, report.subcode, report.gi, report.ci)


class Source(StrEnum):
    """Who reports Xids."""

    KERNEL_LOG = "kernel-log"
    NVML = "nvml"
    TRACEPOINT = "tracepoint"


class Observation(NamedTuple):
    """What some lines about one fault add to what is known.

    ``new_episode`` is true for the lines that open one: add it to the fault's count.
    ``lines`` is how many raw lines these are: add it to the fault's lines.
    ``root_cause`` is the code this one follows, by the driver's word or by time.
    ``new_source``: this source had not reported the episode yet; ``lag`` is by how many
    seconds it came after the first one that did.
    """

    key: FaultKey
    new_episode: bool
    lines: int
    root_cause: int | None
    new_source: bool = False
    lag: float = 0.0


@dataclass(slots=True)
class _Episode:
    last: float
    root_cause: int | None
    partial: bool
    sources: dict[Source, float]


_Name = tuple[FaultKey, int | None]
"""An episode's name: the fault, and the process where the application is to blame."""
_Found = tuple[_Name, _Episode]


@dataclass(frozen=True, slots=True)
class _Root:
    code: int | None
    rank: int
    since: float


class EpisodeCounter:
    """Decides which lines open a new episode. ``evicted`` counts what the bound forgot."""

    def __init__(
        self, *, window: float = EPISODE_WINDOW_SECONDS, capacity: int = DEFAULT_CAPACITY
    ) -> None:
        """``window`` in seconds of the log's clock; ``capacity`` in faults and processes."""
        self._window = window
        self._capacity = capacity
        self._episodes: OrderedDict[_Name, _Episode] = OrderedDict()
        self._roots: OrderedDict[str, _Root] = OrderedDict()
        self._last_partial = float("-inf")
        self.evicted = 0

    def __len__(self) -> int:
        """How many episodes are remembered."""
        return len(self._episodes)

    def add(
        self,
        report: XidReport,
        *,
        first: float,
        last: float | None = None,
        lines: int = 1,
        source: Source = Source.KERNEL_LOG,
        partial: bool = False,
        seen_at: float | None = None,
    ) -> Observation:
        """Take ``lines`` lines about one fault, seen from ``first`` to ``last`` (seconds).

        ``partial``: the source cannot know what is empty in the report's identity.
        ``seen_at``: when it reached us, on any clock that all sources share.
        """
        last = first if last is None else max(first, last)
        seen_at = first if seen_at is None else seen_at
        if partial:
            self._last_partial = max(self._last_partial, last)
        key = FaultKey.of(report)
        running = (
            self._running_79(report, first)
            or self._running(key, report, first)
            or self._alike(key, report, first, partial=partial)
        )
        if running is None:
            cause = report.caused_by or self._follows(report, first)
            pid = report.pid if report.application else None
            self._remember((key, pid), _Episode(last, cause, partial, {source: seen_at}))
            return Observation(
                key, new_episode=True, lines=lines, root_cause=cause, new_source=True
            )
        name, episode = running
        episode.last = max(episode.last, last)
        self._episodes.move_to_end(name)
        new = source not in episode.sources
        episode.sources.setdefault(source, seen_at)
        return Observation(
            name[0],
            new_episode=False,
            lines=lines,
            root_cause=report.caused_by or episode.root_cause,
            new_source=new,
            lag=max(0.0, seen_at - min(episode.sources.values())) if new else 0.0,
        )

    def end(self, key: FaultKey) -> None:
        """Somebody says that this fault is over: what comes from now on is another episode."""
        for name in [name for name in self._episodes if name[0] == key]:
            del self._episodes[name]

    def _running(self, key: FaultKey, report: XidReport, at: float) -> _Found | None:
        """The episode these lines belong to: of this process, or with either one unknown."""
        pid = report.pid if report.application else None
        if pid is None:
            # The newest running episode, whoever it is of.
            if report.application:
                for name in reversed(self._episodes):
                    if name[0] == key and self._is_running(self._episodes[name], at):
                        return name, self._episodes[name]
                return None
            return self._named((key, None), at)
        return self._named((key, pid), at) or self._adopt(key, pid, at)

    def _named(self, name: _Name, at: float) -> _Found | None:
        episode = self._episodes.get(name)
        return (name, episode) if episode and self._is_running(episode, at) else None

    def _adopt(self, key: FaultKey, pid: int, at: float) -> _Found | None:
        """A running episode without a process learns whose it is."""
        found = self._named((key, None), at)
        if found is None:
            return None
        episode = self._episodes.pop(found[0])
        self._episodes[key, pid] = episode
        return (key, pid), episode

    def _alike(
        self, key: FaultKey, report: XidReport, at: float, *, partial: bool
    ) -> _Found | None:
        """A running episode that may be this fault, as far as both sides know of it."""
        if at - self._last_partial > self._window:
            return None  # nobody who reported lately lacks anything
        pid = report.pid if report.application else None
        for name in reversed(self._episodes):
            other, other_pid = name
            episode = self._episodes[name]
            if (
                other[:3] == key[:3]
                and (partial or episode.partial)
                and self._is_running(episode, at)
                and _may_be_same(key, other, one_partial=partial, other_partial=episode.partial)
                and (pid is None or other_pid in {None, pid})
            ):
                if pid is None or other_pid is not None:
                    return name, episode
                self._episodes[other, pid] = self._episodes.pop(name)
                return (other, pid), episode
        return None

    def _running_79(self, report: XidReport, at: float) -> _Found | None:
        """The text without a code that the driver prints beside Xid 79 is the same fault."""
        if report.kind is not FaultKind.LOST:
            return None
        same = FaultKey(FaultKind.XID, report.pci, FALLEN_OFF_BUS, "", None, None)
        return self._named((same, None), at)

    def _is_running(self, episode: _Episode, at: float) -> bool:
        return at - episode.last <= self._window

    def _follows(self, report: XidReport, at: float) -> int | None:
        """The graver or equal code that opened on this device a moment ago, if any."""
        rank = _RANK[report.severity]
        root = self._roots.get(report.pci)
        fresh = root is not None and 0 <= at - root.since <= ROOT_CAUSE_WINDOW_SECONDS
        if root is not None and fresh and root.rank >= rank:
            return root.code if root.code != report.code else None
        self._roots[report.pci] = _Root(report.code, rank, at)
        self._roots.move_to_end(report.pci)
        if len(self._roots) > self._capacity:
            self._roots.popitem(last=False)
        return None

    def _remember(self, name: _Name, episode: _Episode) -> None:
        self._episodes[name] = episode
        self._episodes.move_to_end(name)
        while len(self._episodes) > self._capacity:
            self._episodes.popitem(last=False)
            self.evicted += 1


def _may_be_same(one: FaultKey, other: FaultKey, *, one_partial: bool, other_partial: bool) -> bool:
    """Whether two identities differ only in what a partial report cannot know."""
    return all(
        mine == theirs or (one_partial and mine in _EMPTY) or (other_partial and theirs in _EMPTY)
        for mine, theirs in zip(one[3:], other[3:], strict=True)
    )


_EMPTY: Final = (None, "")
