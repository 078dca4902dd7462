"""The lab's clock and what is due when: things that happen, and nodes to look at."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final


MAX_ROUNDS: Final = 1000
"""Looks at one node at one instant: more is a loop that would never end."""


class LabError(Exception):
    """The lab cannot go on: the policies keep changing their mind at one instant."""


class Agenda:
    """Virtual time. It is the clock of a lab: :meth:`now` never goes back."""

    def __init__(self, start: float) -> None:
        self._now = start
        self._order = count()
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._looks: dict[str, float] = {}

    def now(self) -> float:
        """Return seconds since the epoch."""
        return self._now

    def run(self, until: float, look_at: Callable[[Sequence[str]], None]) -> None:
        """Let time pass, with all that is due meanwhile; it never goes back.

        Raises:
            LabError: looks go on for ever without time passing.
        """
        while (at := self._next()) is not None and at <= until:
            self._now = max(self._now, at)
            self._instant(look_at)
        self._now = max(self._now, until)

    def call_at(self, when: float, act: Callable[[], None]) -> None:
        """Have something happen at a time; of one time, in the order of the calls."""
        heapq.heappush(self._calls, (max(when, self._now), next(self._order), act))

    def look_now(self, name: str) -> None:
        """Have a node looked at now."""
        self._looks[name] = self._now

    def look_at(self, name: str, when: float) -> None:
        """Have a node looked at, then at the latest."""
        self._looks[name] = min(when, self._looks.get(name, when))

    def drop(self, name: str) -> None:
        """Look at a node no more."""
        self._looks.pop(name, None)

    def drop_looks(self) -> None:
        """Look at no node any more."""
        self._looks.clear()

    def _instant(self, look_at: Callable[[Sequence[str]], None]) -> None:
        """Do all that is due now, until nothing is."""
        names: list[str] = []
        for _ in range(MAX_ROUNDS):
            self._call_due()
            names = self._take_due()
            if not names:
                return
            look_at(names)
        raise LabError(f"{', '.join(names[:3])}: decided {MAX_ROUNDS} times at one instant")

    def _next(self) -> float | None:
        """Return when anything is due next."""
        first = self._calls[0][0] if self._calls else None
        look = min(self._looks.values(), default=None)
        return min((at for at in (first, look) if at is not None), default=None)

    def _call_due(self) -> None:
        """Have everything happen that is due now."""
        while self._calls and self._calls[0][0] <= self._now:
            heapq.heappop(self._calls)[2]()

    def _take_due(self) -> list[str]:
        """Return the nodes to look at now, and forget them."""
        names = [name for name, at in self._looks.items() if at <= self._now]
        for name in names:
            del self._looks[name]
        return names
