"""Stage 1, *match*: which policies hold for a node now, and which clause said so.

Any entry of ``when`` is enough; within an entry all keys must hold; ``all`` and ``any`` nest.
What each clause asks is in ``node_clauses``, ``signal_clauses`` and ``filter_clauses``, how
answers are joined in ``answer``, and what a session remembers of them in ``instances``.
"""

from __future__ import annotations

from collections.abc import Iterator

from node_agent.contract import FaultKind
from remediator.decide import filter_clauses, node_clauses, signal_clauses
from remediator.decide.answer import (
    MAX_INSTANCES,
    Answer,
    Match,
    all_of,
    any_of,
    severity_rank,
)
from remediator.decide.facts import NOTHING_KNOWN, ClusterFacts, NodeFacts
from remediator.decide.instances import instance_answer, speaker
from remediator.policy.model import RemediationPolicy
from remediator.policy.when import Clauses, Group


__all__ = [
    "MAX_INSTANCES",
    "Answer",
    "Match",
    "instance_answer",
    "match",
    "match_entry",
    "severity_rank",
    "speaker",
]


def match(
    policy: RemediationPolicy,
    facts: NodeFacts,
    now: float,
    cluster_facts: ClusterFacts = NOTHING_KNOWN,
) -> Match:
    """Evaluate ``when`` of a policy: any entry; within an entry, all keys."""
    return any_of([match_entry(when, facts, now, cluster_facts) for when in policy.spec.when])


def match_entry(entry: Clauses, facts: NodeFacts, now: float, cluster: ClusterFacts) -> Match:
    """Evaluate one entry: all its keys must hold."""
    parts = [
        *_of_the_node(entry, facts, now, cluster),
        *_of_others(entry, facts, now, cluster),
    ]
    if isinstance(entry, Group):
        if entry.all is not None:
            parts.append(all_of([match_entry(one, facts, now, cluster) for one in entry.all]))
        if entry.any is not None:
            parts.append(any_of([match_entry(one, facts, now, cluster) for one in entry.any]))
    return all_of(parts)


def _of_the_node(
    entry: Clauses, facts: NodeFacts, now: float, cluster: ClusterFacts
) -> Iterator[Match]:
    """Yield the answers of the keys about what stands on the Node."""
    if entry.xid is not None:
        yield node_clauses.codes(FaultKind.XID, entry.xid.codes, facts, cluster, now)
    if entry.sxid is not None:
        yield node_clauses.codes(FaultKind.SXID, entry.sxid.codes, facts, cluster, now)
    if entry.condition is not None:
        yield node_clauses.condition(entry.condition, facts, cluster, now)
    if entry.count is not None:
        yield node_clauses.count(entry.count, facts, cluster, now)


def _of_others(
    entry: Clauses, facts: NodeFacts, now: float, cluster: ClusterFacts
) -> Iterator[Match]:
    """Yield the answers of alerts and queries, and of the filters beside a fault."""
    if entry.alert is not None:
        yield signal_clauses.alert(entry.alert, facts, cluster, now)
    if entry.query is not None:
        yield signal_clauses.query(entry.query, facts, cluster, now)
    if entry.attempts is not None:
        yield filter_clauses.attempts(entry.attempts, facts, now)
    if entry.cel is not None:
        yield filter_clauses.cel(entry.cel, facts, now)
