"""The step `drain`: follows what decisions want, and says on the node how far it is.

A partial drain is a failed one. It goes on for as long as it is wanted; behind its deadline
nobody is asked to leave any more, and what is left is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from remediator.act.drain.engine import Drainer, Health
from remediator.act.drain.marks import (
    CLEARED,
    REFRESH_SECONDS,
    Marks,
    Wanted,
    ended,
    under_way,
)
from remediator.act.drain.report import Progress, line
from remediator.decide.decision import Outcome, Work
from remediator.decide.facts import NodeFacts
from remediator.policy.drain import Drain


class Facts(Protocol):
    """The latest view of every node; see :class:`remediator.signals.fleet.Fleet`."""

    def get(self, name: str) -> NodeFacts | None:
        """Return what is known of a node now."""


class Watchers(Protocol):
    """Told how long drains took; never waits, never fails."""

    def drained(self, seconds: float, *, done: bool) -> None:
        """One drain has ended."""


class DrainWorker:
    """Drains nodes; see :class:`remediator.act.work.Worker`.

    Args:
        drainer: what all drains share.
        facts: the nodes.
        marks: writes the conditions.
        observer: told of each end.
    """

    def __init__(
        self, *, drainer: Drainer, facts: Facts, marks: Marks, observer: Watchers | None = None
    ) -> None:
        self._drainer = drainer
        self._facts = facts
        self._marks = marks
        self._observer = observer

    async def run(self, work: Work, *, say: Callable[[str], None]) -> Outcome:
        """See :class:`remediator.act.work.Worker`."""
        said = _Said(self._marks, work)

        def tell(progress: Progress) -> None:
            text = line(progress, self._drainer.now())
            say(text)
            said.news(f"policy {work.policy}: {text}")

        writing = asyncio.create_task(said.write())
        try:
            end = await self._drainer.drain(
                work.node,
                work.spec.drain or Drain(),
                since=work.since,
                until=work.deadline,
                health=lambda: self._health(work),
                say=tell,
            )
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        note = f"policy {work.policy}: {end.note}"
        await self._marks.set(work.node, work.uid, ended(note, done=end.done, clean=end.clean))
        if self._observer is not None:
            self._observer.drained(self._drainer.now() - work.since, done=end.done)
        return Outcome(key=work.key, delivered=end.done, late=end.late, note=end.note)

    async def stop(self, work: Work) -> None:
        """Say that nobody drains the node any more. What was evicted stays so.

        Behind its deadline a drain was not called off: it has failed.
        """
        now = self._drainer.now()
        if self._observer is not None and now >= work.deadline:
            self._observer.drained(now - work.since, done=False)
        await self._marks.set(work.node, work.uid, CLEARED)

    def _health(self, work: Work) -> Health:
        facts = self._facts.get(work.node)
        if facts is None or facts.uid != work.uid:
            return Health(there=False)
        return Health(takes_pods=not facts.out_of_service, ready=facts.ready)


class _Said:
    """Writes the latest message, now and then: a condition is no place for a live display."""

    def __init__(self, marks: Marks, work: Work) -> None:
        self._marks = marks
        self._work = work
        self._wanted: Wanted = {}
        self._news = asyncio.Event()

    def news(self, message: str) -> None:
        """Have this written next."""
        self._wanted = under_way(message)
        self._news.set()

    async def write(self) -> None:
        """Write until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self._marks.set(self._work.node, self._work.uid, self._wanted)
            await asyncio.sleep(REFRESH_SECONDS)
