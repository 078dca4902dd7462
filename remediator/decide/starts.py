"""What rates remember: when actions were started lately, by action, pool and owner.

An *owner* is the one whose rate it counts for: a policy, or "" for the cluster. A start that came
to nothing can be undone; one that an earlier controller counted cannot, its node is not known.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from remediator.policy.quantities import Rate


MAX_STARTS: Final = 5000
"""Starts remembered per rate: enough for any rate that is meant to bind."""


class Start(NamedTuple):
    """One start of an action on a node."""

    at: float
    uid: str


class Starts:
    """The starts of one world. Times are epoch seconds of the controller."""

    def __init__(self) -> None:
        self._known: defaultdict[tuple[str, str, str], deque[Start]]
        self._known = defaultdict(partial(deque, maxlen=MAX_STARTS))
        self.lost: float | None = None
        """When the memory of starts was lost: there may have been as many as the rate allows."""
        self._changed = False

    def room(self, action: str, pool: str, owner: str, rate: Rate, now: float) -> float | None:
        """Return None if one more start is within the rate, else when it will be."""
        if self.lost is not None and now < self.lost + rate.seconds:
            return self.lost + rate.seconds
        starts = self._known.get((action, pool, owner))
        if starts is None:
            return None
        while starts and starts[0].at <= now - rate.seconds:
            starts.popleft()
            self._changed = True
        if len(starts) < rate.starts:
            return None
        return starts[len(starts) - rate.starts].at + rate.seconds

    def count(self, action: str, pool: str, owners: Iterable[str], uid: str, now: float) -> None:
        """Count one start for the rates of these owners."""
        for owner in owners:
            self._known[action, pool, owner].append(Start(now, uid))
        self._changed = True

    def undo(self, uid: str, at: float) -> None:
        """Count what was started then on this node no more."""
        for starts in self._known.values():
            with suppress(ValueError):
                starts.remove(Start(at, uid))
                self._changed = True

    # --- surviving a restart ------------------------------------------------------------

    def take_changed(self) -> bool:
        """Tell whether :meth:`state` changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def state(self) -> dict[str, tuple[float, ...]]:
        """Return what must survive a restart: times by ``action pool owner``."""
        return {
            " ".join(key): tuple(round(start.at, 3) for start in starts)
            for key, starts in self._known.items()
            if starts
        }

    def restore(self, state: Mapping[str, tuple[float, ...]]) -> None:
        """Take over what an earlier controller remembered."""
        for name, times in state.items():
            action, pool, owner = (*name.split(" "), "", "")[:3]
            self._known[action, pool, owner].extend(Start(at, "") for at in sorted(times))
