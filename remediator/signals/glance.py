"""One look at alerts and queries: each peer polled once, each query asked once.

It is the controller's own code, from the poll to the facts, with a board and a fleet that live
for one look. So what is refused, or cannot be trusted, is the same, and is said in its words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from remediator.clock import Clock
from remediator.decide.facts import AGENTS, WATCH, ClusterFacts, SourceFact
from remediator.decide.signal_clauses import ALERTMANAGER
from remediator.kube.objects import Node
from remediator.kube.podplace import PodFinder
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from remediator.policy.quantities import format_duration
from remediator.policy.when import QueryClause
from remediator.signals.board import Board
from remediator.signals.feeds import Feeds
from remediator.signals.fleet import Fleet
from remediator.signals.resolve import NodeIndex
from remediator.signals.sightings import Sightings


_TOLD_ONLY: Final = "webhookOnly: its alerts are told to the controller alone, and not known here"
_SHOWN: Final = 60


class Glance(NamedTuple):
    """What was seen, and for people what was not."""

    sightings: Sightings
    notes: tuple[str, ...]


class Nobody:
    """Counts nothing: there are no metrics where one only looks."""

    def unresolved(self, reason: str) -> None:
        """Do nothing."""

    def refused(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Do nothing."""

    def sources(self, ok: Mapping[str, bool]) -> None:
        """Do nothing."""


async def glance(
    cluster: ClusterSpec,
    policies: Iterable[RemediationPolicy],
    nodes: Iterable[Node],
    *,
    clock: Clock,
    finder: PodFinder,
) -> Glance:
    """Ask all that these policies rest on, once, within the deadlines of RemediatorConfig.

    Args:
        cluster: which sources there are; names of files as this process sees them.
        policies: whose alerts and queries count. What none of them needs is not asked.
        nodes: which an answer may name.
        clock: gives the facts their times.
        finder: finds the pods that answers speak of.
    """
    policies = tuple(policies)
    if not _ask_for_alerts(policies):
        cluster = cluster.model_copy(update={"alertmanagers": ()})
    fleet, index = Fleet(cluster=cluster, clock=clock), NodeIndex()
    for node in nodes:
        index.on_event(None, node)
        fleet.on_event(None, node)
    board = Board(cluster=cluster, fleet=fleet, index=index, clock=clock, observer=Nobody())
    board.use(policies)
    await Feeds(
        cluster=cluster, board=board, clock=clock, finder=finder, watch_staleness=lambda: 0.0
    ).once()
    seen = sighted(fleet, cluster, clock.now())
    told_only = [one.name for one in cluster.alertmanagers if one.webhook_only]
    return Glance(
        seen,
        (
            *(f"{ALERTMANAGER}{name}: {_TOLD_ONLY}" for name in told_only),
            *sorted(board.notes()),
            *_too_short(policies, seen),
        ),
    )


def sighted(fleet: Fleet, cluster: ClusterSpec, now: float) -> Sightings:
    """Return what a fleet knows by alerts and queries."""
    nodes = fleet.all()
    return Sightings(
        _around(fleet.cluster_facts, cluster, now),
        {one.name: one.alerts for one in nodes if one.alerts},
        {one.name: one.queries for one in nodes if one.queries},
    )


def _ask_for_alerts(policies: Iterable[RemediationPolicy]) -> bool:
    return any(
        any(entry.each("alert")) for policy in policies for entry in policy.spec.when
    ) or any(entry.alert is not None for policy in policies for entry in policy.spec.unless)


def _around(facts: ClusterFacts, cluster: ClusterSpec, now: float) -> ClusterFacts:
    """Return the sources that others are, without what the controller's webhook alone is told."""
    own = {AGENTS, WATCH}
    sources = {name: one for name, one in facts.sources.items() if name not in own}
    for one in cluster.alertmanagers:
        if one.webhook_only:
            sources[ALERTMANAGER + one.name] = SourceFact(ok=False, since=now, why=_TOLD_ONLY)
    return replace(facts, sources=sources)


def _too_short(policies: Iterable[RemediationPolicy], seen: Sightings) -> Iterator[str]:
    """Say of which queries one look cannot tell whether they have held for long enough."""
    for clause in dict.fromkeys(_queries(policies)):
        named = sum(
            clause.key in known and known[clause.key].holds for known in seen.queries.values()
        )
        if clause.for_ and named:
            text = " ".join(clause.promql.split())[:_SHOWN]
            yield (
                f"query {text} names {named} node{'s' if named > 1 else ''}: it would have to"
                f" hold for {format_duration(clause.for_)}, and one look cannot tell"
            )


def _queries(policies: Iterable[RemediationPolicy]) -> Iterator[QueryClause]:
    for policy in policies:
        for entry in policy.spec.when:
            yield from entry.each("query")
