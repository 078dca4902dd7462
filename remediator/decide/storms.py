"""What breakers remember: which nodes match, which newly did, what is open, what people dropped.

A breaker has a *name*: that of a policy, or of a source that policies rest on, such as
``agents/all``, ``alertmanager/main`` or ``prometheus/main``. No policy has a slash in its name.
Memory only; when a breaker opens is decided in :mod:`remediator.decide.guards.breaker`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec


MAX_REMEMBERED: Final = 5000
"""New matches that are kept over a restart: a fifth of 20,000 nodes, with room."""


class OpenBreaker(msgspec.Struct, frozen=True, omit_defaults=True):
    """A breaker that is open: since when, and why in words."""

    at: float
    why: str


class Recent(NamedTuple):
    """When a node newly matched a policy, and the sources that this rested on."""

    at: float
    sources: tuple[str, ...] = ()


class Matching(NamedTuple):
    """Since when a node matches a policy, by which fault instances, on which sources."""

    since: float
    instances: tuple[str, ...]
    sources: tuple[str, ...]


class Calm(NamedTuple):
    """Since when no node joined those that match while a breaker is open, and who is left."""

    since: float
    left: frozenset[str]


@dataclass(slots=True)
class Watch:
    """What is remembered of one policy: nodes looked at, new matches in its window."""

    loaded_at: float
    scope: set[str] = field(default_factory=set)
    looked: set[str] = field(default_factory=set)
    backlog: set[str] = field(default_factory=set)
    """Nodes that were faulty already when somebody first looked."""
    matching: dict[str, Matching] = field(default_factory=dict)
    recent: dict[str, Recent] = field(default_factory=dict)
    """Nodes that newly matched, oldest first."""
    dropping: set[str] = field(default_factory=set)
    """Breakers that were reset before every node was looked at: older faults are dropped, too."""

    def on(self, source: str) -> list[str]:
        """Return the nodes that match and rest on a source."""
        return [uid for uid, one in self.matching.items() if source in one.sources]


def is_source(name: str) -> bool:
    """Tell whether a breaker is that of a source, and not of a policy."""
    return "/" in name


class Storms:
    """The memory of all breakers of one world."""

    def __init__(self) -> None:
        self.opened: dict[str, OpenBreaker] = {}
        self.dropped: dict[str, set[str]] = {}
        """By policy, the nodes that are left alone until their fault clears and returns."""
        self.watches: dict[str, Watch] = {}
        self.calm: dict[str, Calm] = {}
        """Of open breakers that may close by themselves."""
        self._changed = False
        self._remembered: dict[str, dict[str, Recent]] = {}
        self._unseen: set[str] = set()

    def take_changed(self) -> bool:
        """Tell whether anything that must survive a restart changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def watch(self, policy: str, loaded_at: float) -> Watch:
        """Return what is remembered of a policy; one that was loaded anew starts anew."""
        watch = self.watches.get(policy)
        if watch is None or watch.loaded_at != loaded_at:
            dropping = {one for one in self._unseen if is_source(one) or one == policy}
            recent = self._remembered.pop(policy, {})
            watch = self.watches[policy] = Watch(loaded_at, dropping=dropping, recent=recent)
            self._unseen.discard(policy)
        return watch

    def count(self, watch: Watch, uid: str, recent: Recent) -> None:
        """Count a node that newly matches; one that did so lately is counted already."""
        if uid not in watch.recent:
            watch.recent[uid] = recent
            self._changed = True

    def newly_on(self, source: str, since: float) -> dict[str, float]:
        """Return the nodes that newly matched on a source after a time, with when."""
        found: dict[str, float] = {}
        for watch in self.watches.values():
            for uid, one in watch.recent.items():
                if one.at > since and source in one.sources:
                    found[uid] = max(one.at, found.get(uid, one.at))
        return found

    def recent(self) -> dict[str, dict[str, Recent]]:
        """Return by policy what must survive a restart: new matches, the newest of many."""
        known = self._remembered | {name: watch.recent for name, watch in self.watches.items()}
        left = MAX_REMEMBERED
        kept: dict[str, dict[str, Recent]] = {}
        for policy, nodes in known.items():
            if nodes and left > 0:
                kept[policy] = dict(list(nodes.items())[-left:])
                left -= len(kept[policy])
        return kept

    def restore(self, recent: Mapping[str, Mapping[str, Recent]]) -> None:
        """Take over new matches that an earlier controller counted."""
        self._remembered = {
            policy: dict(sorted(nodes.items(), key=lambda one: one[1].at))
            for policy, nodes in recent.items()
        }

    def open(self, name: str, why: str, now: float) -> None:
        """Stop new disruptive steps until people reset it."""
        self.opened[name] = OpenBreaker(at=now, why=why)
        self._changed = True

    def reset(self, name: str, *, keep: bool) -> bool:
        """Close a breaker; tell whether it was open.

        Unless ``keep``, what matches now is left alone until it clears.
        """
        self.calm.pop(name, None)
        if self.opened.pop(name, None) is None:
            return False
        self._changed = True
        watches = list(self._watches_of(name))
        if not watches and not keep:  # nothing was looked at yet, after a restart
            self._unseen.add(name)
        for policy, watch in watches:
            settled = watch.on(name) if is_source(name) else list(watch.matching)
            if keep:
                watch.dropping.discard(name)
            else:
                self.drop(policy, settled)
                watch.dropping.add(name)
            watch.recent = {
                uid: one
                for uid, one in watch.recent.items()
                if is_source(name) and name not in one.sources
            }
            watch.backlog.update(settled)
        return True

    def _watches_of(self, name: str) -> Iterator[tuple[str, Watch]]:
        for policy, watch in self.watches.items():
            if is_source(name) or policy == name:
                yield policy, watch

    def drop(self, policy: str, uids: Iterable[str]) -> None:
        """Leave nodes alone until their fault clears and returns."""
        self.dropped.setdefault(policy, set()).update(uids)
        self._changed = True

    def undrop(self, policy: str, uid: str) -> None:
        """A dropped node's fault cleared: the next one counts again."""
        nodes = self.dropped.get(policy)
        if nodes is not None and uid in nodes:
            nodes.discard(uid)
            self._changed = True

    def forget(self, uid: str) -> None:
        """Drop a node that is gone."""
        for watch in self.watches.values():
            for known in (watch.scope, watch.looked, watch.backlog):
                known.discard(uid)
            watch.matching.pop(uid, None)
        for policy in self.dropped:
            self.undrop(policy, uid)
