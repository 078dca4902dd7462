"""Whether agents as a whole can be believed, in the lab: judged by what the controller asks.

The controller walks all heartbeats each :data:`AGENTS_SECONDS` from when it took over. The lab
gives its answers at the same times, but walks only where one may be another than before: when the
word of an agent runs out, and when one appears, leaves, or is heard again. So weeks of a large
fleet cost a walk in some minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

from remediator.decide.facts import AGENTS, ClusterFacts, NodeFacts, SourceFact
from remediator.decide.sanity import agents_now, heard_until
from remediator.lab.agenda import Agenda
from remediator.policy.cluster import Sanity
from remediator.signals.board import AGENTS_SECONDS


class Agents:
    """What is made of the heartbeats of all nodes.

    Args:
        sanity: RemediatorConfig's.
        nodes: returns the facts of all nodes.
        agenda: the lab's.
        changed: called when they are believed no more, or again.
    """

    def __init__(
        self,
        *,
        sanity: Sanity,
        nodes: Callable[[], Iterable[NodeFacts]],
        agenda: Agenda,
        changed: Callable[[], None],
    ) -> None:
        self._sanity = sanity
        self._nodes = nodes
        self._agenda = agenda
        self._changed = changed
        self.take_over()

    def take_over(self) -> None:
        """Begin anew: another controller counts from now."""
        self._begin = self._agenda.now()
        self._fact: SourceFact | None = None
        self._until: dict[str, float] = {}
        """By agent: until when it counts as heard."""
        self._due = math.inf

    def among(self, around: ClusterFacts) -> dict[str, SourceFact]:
        """Return all sources: those beside the nodes, and agents once they were judged."""
        return {**around.sources, **({} if self._fact is None else {AGENTS: self._fact})}

    def heard(self, name: str, facts: NodeFacts | None) -> None:
        """Take in a version of a node; None: it is gone."""
        until = None if facts is None else heard_until(facts)
        before = self._until.pop(name, None)
        if until is not None:
            self._until[name] = until
        was_silent = before is not None and before <= self._agenda.now()
        if was_silent or (until is None) is not (before is None):
            self.soon()

    def soon(self) -> None:
        """Judge at the controller's next time."""
        self._judge_at(self._agenda.now())

    def judge(self) -> None:
        """Walk all heartbeats now."""
        now, nodes, before = self._agenda.now(), list(self._nodes()), self._fact
        self._fact = agents_now(nodes, sanity=self._sanity, before=before, now=now)
        found = {facts.name: heard_until(facts) for facts in nodes}
        self._until = {name: until for name, until in found.items() if until is not None}
        self._due = math.inf
        following = min((until for until in self._until.values() if until > now), default=None)
        if following is not None:
            self._judge_at(following)
        if self._fact.ok is not (before is None or before.ok):
            self._changed()

    def _judge_at(self, when: float) -> None:
        """Judge at the first of the controller's times that is not before this one."""
        turns = math.ceil((when - self._begin) / AGENTS_SECONDS)
        at = self._begin + turns * AGENTS_SECONDS
        at = at if at > self._agenda.now() else at + AGENTS_SECONDS
        if at < self._due:
            self._due = at
            self._agenda.call_at(at, partial(self._judge_if_due, at))

    def _judge_if_due(self, at: float) -> None:
        if at == self._due:
            self.judge()
