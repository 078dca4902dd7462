"""Stage 1, *match*: which policies hold for a node now, and which clause said so.

Any entry of ``when`` is enough; within an entry all keys must hold; ``all`` and ``any`` nest.
What each clause asks is in ``node_clauses``, ``signal_clauses`` and ``filter_clauses``, how
answers are joined in ``answer``, and what a session remembers of them in ``instances``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

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
from remediator.policy.codes import SXidClause, XidClause
from remediator.policy.model import RemediationPolicy
from remediator.policy.when import AttemptsClause, Clauses


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
    *,
    begun: bool = False,
) -> Match:
    """Evaluate ``when`` of a policy: any entry; within an entry, all keys.

    ``begun``: the policy holds the node already. Filters say where to begin, so only its
    faults count: our own cordon, or an attempt that grew old, must not stop it half-way.
    """
    entries: Sequence[Clauses] = policy.spec.when
    if begun:
        entries = tuple(one.unfiltered for one in entries)
    if len(entries) == 1:
        return match_entry(entries[0], facts, now, cluster_facts)
    return any_of([match_entry(one, facts, now, cluster_facts) for one in entries])


def match_entry(entry: Clauses, facts: NodeFacts, now: float, cluster: ClusterFacts) -> Match:
    """Evaluate one entry: all its keys must hold.

    An expression is asked last, and only where all else holds: it is dear, and where no fault
    is, its failure would mean nothing.
    """
    given = entry.given
    if len(given) == 1:
        key, clause = given[0]
        return _EVALUATE[key](clause, facts, cluster, now)
    found = all_of(
        [_EVALUATE[key](clause, facts, cluster, now) for key, clause in given if key != "cel"]
    )
    if entry.cel is None or found.answer < Answer.PENDING:
        return found
    return all_of([found, filter_clauses.cel(entry.cel, facts, now)])


def _all(entries: Sequence[Clauses], facts: NodeFacts, cluster: ClusterFacts, now: float) -> Match:
    return all_of([match_entry(one, facts, now, cluster) for one in entries])


def _any(entries: Sequence[Clauses], facts: NodeFacts, cluster: ClusterFacts, now: float) -> Match:
    return any_of([match_entry(one, facts, now, cluster) for one in entries])


def _xid(clause: XidClause, facts: NodeFacts, cluster: ClusterFacts, now: float) -> Match:
    return node_clauses.faults(FaultKind.XID, clause, facts, cluster, now)


def _sxid(clause: SXidClause, facts: NodeFacts, cluster: ClusterFacts, now: float) -> Match:
    return node_clauses.faults(FaultKind.SXID, clause, facts, cluster, now)


def _attempts(
    clause: AttemptsClause, facts: NodeFacts, _cluster: ClusterFacts, now: float
) -> Match:
    return filter_clauses.attempts(clause, facts, now)


def _cel(text: str, facts: NodeFacts, _cluster: ClusterFacts, now: float) -> Match:
    return filter_clauses.cel(text, facts, now)


_EVALUATE: Final[Mapping[str, Callable[[Any, NodeFacts, ClusterFacts, float], Match]]] = {
    "xid": _xid,
    "sxid": _sxid,
    "condition": node_clauses.condition,
    "count": node_clauses.count,
    "alert": signal_clauses.alert,
    "query": signal_clauses.query,
    "attempts": _attempts,
    "cel": _cel,
    "all": _all,
    "any": _any,
}
"""What evaluates each key of an entry."""
