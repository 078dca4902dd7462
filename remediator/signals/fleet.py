"""The latest observation of every node: what the watch told, and what we wrote ourselves.

A write of ours is folded in as soon as its answer is there, long before the watch
tells of it. The watch may then still bring versions from before that write; they
are skipped, so that facts never go back in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import structlog

from remediator.clock import Clock
from remediator.decide.facts import (
    NOTHING_KNOWN,
    AlertFact,
    ClusterFacts,
    NodeFacts,
    QueryFact,
)
from remediator.kube.objects import Node
from remediator.policy.cluster import ClusterSpec
from remediator.signals.nodes import Observation, observe, restart_ages, significant


_log = structlog.get_logger(__name__)

Listener = Callable[[NodeFacts], None]
Queries = Mapping[str, QueryFact]


class SignalsOfNode(NamedTuple):
    """What alerts and queries say of a node."""

    alerts: tuple[AlertFact, ...] = ()
    queries: Queries = MappingProxyType({})


def _ignore(_facts: NodeFacts) -> None:
    """Nobody listens yet: a follower only keeps its view warm."""


def _follow_none(_facts: NodeFacts) -> bool:
    """No node is in a session that does not stand on it."""
    return False


def _ignore_surroundings() -> None:
    """As above."""


class Fleet:
    """Facts of all nodes by name.

    Args:
        cluster: which nodes are ours, and how they are grouped.
        clock: gives facts their times.

    Attributes:
        on_change: called with the facts of a node that appeared or changed in a way
            that matters. Heartbeats only refresh the facts.
        on_gone: called with the last facts of a node that is gone.
        on_surroundings: called when what concerns every node changed in a way that matters.
        follows: asked whether a node is in a session of dry-run: its heartbeats matter then.
    """

    def __init__(self, *, cluster: ClusterSpec, clock: Clock) -> None:
        self.cluster = cluster
        self.on_change: Listener = _ignore
        self.on_gone: Listener = _ignore
        self.on_surroundings: Callable[[], None] = _ignore_surroundings
        self.follows: Callable[[NodeFacts], bool] = _follow_none
        self._clock = clock
        self._surroundings = NOTHING_KNOWN
        self._nodes: dict[str, Observation] = {}

    def get(self, name: str) -> NodeFacts | None:
        """Return what is known of a node now."""
        known = self._nodes.get(name)
        return None if known is None else known.facts

    def node(self, name: str) -> Node | None:
        """Return the version of the node that the facts rest on."""
        known = self._nodes.get(name)
        return None if known is None else known.node

    def all(self) -> Iterable[NodeFacts]:
        """Return the facts of every node."""
        return [known.facts for known in self._nodes.values()]

    def problems(self) -> dict[str, str]:
        """Return the nodes with an annotation of ours that is left aside, and why."""
        return {name: known.problem for name, known in self._nodes.items() if known.problem}

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._nodes)

    def on_event(self, old: Node | None, new: Node | None) -> None:
        """Take in what the watch tells: the handler for :meth:`Store.on_event`."""
        if new is not None:
            self._take(new)
        elif old is not None:
            self._gone(old.name)

    def wrote(self, node: Node) -> None:
        """Take in a version that we made or read ourselves, unless a newer one is known."""
        known = self._nodes.get(node.name)
        if known is not None and known.node.uid == node.uid:
            self._take(node)

    def blind(self, seconds: float) -> None:
        """Begin all ages anew: we saw nothing for ``seconds``, until now."""
        now = self._clock.now()
        for name, known in self._nodes.items():
            facts = restart_ages(known.facts, now=now, blind_since=now - seconds)
            self._nodes[name] = known._replace(facts=facts)
        for facts in self.all():
            self.on_change(facts)

    # -- what others say of the nodes -----------------------------------------------------

    @property
    def cluster_facts(self) -> ClusterFacts:
        """What is known beside the nodes."""
        return self._surroundings

    def surround(self, facts: ClusterFacts, *, matters: bool) -> None:
        """Take in what is known beside the nodes; ``matters``: to every node."""
        self._surroundings = facts
        if matters:
            self.on_surroundings()

    def set_signals(self, name: str, *, alerts: tuple[AlertFact, ...], queries: Queries) -> None:
        """Take in all alerts and answers of queries about a node; one that is gone is skipped.

        They stay until the next call, whatever versions of the node come meanwhile. A node
        that is replaced by another of its name begins without any.
        """
        known = self._nodes.get(name)
        if known is None:
            return
        before = known.facts
        after = replace(before, alerts=alerts, queries=queries)
        self._nodes[name] = known._replace(facts=after)
        told, tells = SignalsOfNode(before.alerts, before.queries), SignalsOfNode(alerts, queries)
        in_session = before.session is not None
        if signals_differ(told, tells, in_session=in_session, now=self._clock.now()):
            self.on_change(after)

    def _take(self, node: Node) -> None:
        known = self._nodes.get(node.name)
        if known is not None and known.node.uid != node.uid:
            self._gone(node.name)
            known = None
        if known is not None and not _newer(node, known.node):
            return
        now = self._clock.now()
        taken = observe(known, node, cluster=self.cluster, now=now)
        self._nodes[node.name] = taken
        if taken.problem and (known is None or known.problem != taken.problem):
            _log.warning("annotation_ignored", node=node.name, problem=taken.problem)
        note = taken.facts.faults_note
        if note and (known is None or known.facts.faults_note != note):
            _log.warning("annotation_ignored", node=node.name, problem=note)
        if significant(known, taken, now=now, followed=self.follows(taken.facts)):
            self.on_change(taken.facts)

    def _gone(self, name: str) -> None:
        known = self._nodes.pop(name, None)
        if known is not None:
            self.on_gone(known.facts)


def _newer(node: Node, known: Node) -> bool:
    """Tell whether a version is later than the known one.

    Versions of one resource are ordered numbers (stated by Kubernetes since 1.35, KEP-5504,
    and so on every server with etcd before). One that is no number is taken for newer.
    """
    new, old = node.resource_version, known.resource_version
    if new.isdecimal() and old.isdecimal():
        return int(new) > int(old)
    return new != old


def signals_differ(
    before: SignalsOfNode, after: SignalsOfNode, *, in_session: bool, now: float
) -> bool:
    """Tell whether alerts changed, or queries by more than the time they were last answered.

    An answer counts also when it ends a silence, and when it says that a node in session is
    well: recovery rests on what was said after the last step.
    """
    alerts, queries = before
    if alerts != after.alerts or queries.keys() != after.queries.keys():
        return True
    for key, fact in after.queries.items():
        was = queries[key]
        if (fact.holds, fact.since) != (was.holds, was.since):
            return True
        recovering = in_session and not fact.holds
        if fact.seen != was.seen and (recovering or now >= was.fresh_until):
            return True
    return False
