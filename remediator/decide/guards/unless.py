"""Unless: what the policy's author said must not be the case while a disruptive step begins.

What cannot be told holds, too, and is said: a guard that fails open is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from remediator.decide.answer import Answer
from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.facts import OWN_CONDITIONS, ClusterFacts, NodeFacts
from remediator.decide.ledger import Ledger
from remediator.decide.node_clauses import condition
from remediator.decide.signal_clauses import PROMETHEUS, alertmanagers, names, source_doubt
from remediator.policy.when import AlertClause, ConditionClause, QueryClause, Unless


LOOK_AGAIN: Final = 60.0
"""Seconds; a change of alerts or queries has every node looked at sooner."""


class _Said(NamedTuple):
    answer: Answer
    why: str


def unless(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:  # noqa: ARG001
    """Hold while an entry of the policy's ``unless`` holds, or cannot be told."""
    for entry in candidate.policy.spec.unless:
        parts = list(_parts(entry, candidate.facts, candidate.cluster_facts, now))
        answer = min(part.answer for part in parts)
        if answer in {Answer.HOLDS, Answer.UNKNOWN}:
            why = "; ".join(part.why for part in parts if part.answer is answer)
            word = "" if answer is Answer.HOLDS else "cannot be told: "
            return Hold(candidate.policy.name, "unless", f"{word}{why}", now + LOOK_AGAIN)
    return None


def _parts(entry: Unless, facts: NodeFacts, cluster: ClusterFacts, now: float) -> Iterator[_Said]:
    if entry.alert is not None:
        yield _alert(entry.alert, cluster, now)
    if entry.query is not None:
        yield _query(entry.query, cluster)
    if entry.condition is not None:
        yield _condition(entry.condition, facts, cluster, now)


def _alert(clause: AlertClause, cluster: ClusterFacts, now: float) -> _Said:
    """Any firing alert counts, about whichever node: a silenced one is true all the same."""
    found = [one for one in cluster.alerts if names(clause, one)]
    ripe = next((one for one in found if now >= one.since + clause.for_), None)
    if ripe is not None:
        return _Said(Answer.HOLDS, f"alert {ripe.name} fires")
    meant = clause.name or ", ".join(f"{k}={v}" for k, v in clause.labels.items())
    known = alertmanagers(clause.source, cluster)
    if not known:
        return _Said(Answer.UNKNOWN, f"no Alertmanager is configured to ask for alert {meant}")
    failing = next((one.why or "it fails" for one in known if not one.ok), "")
    if failing:
        return _Said(Answer.UNKNOWN, f"whether alert {meant} fires: {failing}")
    return _Said(Answer.CLEAR, "")


def _query(clause: QueryClause, cluster: ClusterFacts) -> _Said:
    said = cluster.queries.get(clause.key)
    shown = " ".join(clause.promql.split())
    if said is None:
        name = f"{PROMETHEUS}{clause.source}" if clause.source else ""
        why = source_doubt(name, cluster) or "it has not been answered"
        return _Said(Answer.UNKNOWN, f"query {shown}: {why}")
    return _Said(Answer.HOLDS if said else Answer.CLEAR, f"query {shown} has a result")


def _condition(
    clause: ConditionClause, facts: NodeFacts, cluster: ClusterFacts, now: float
) -> _Said:
    """A condition that nobody ever stated does not hold, unless our own agent has to state it."""
    known = facts.conditions.get(clause.type)
    if known is None and clause.type not in OWN_CONDITIONS:
        return _Said(Answer.CLEAR, "")
    found = condition(clause, facts, cluster, now)
    if found.answer is Answer.PENDING:
        return _Said(Answer.CLEAR, "")
    if found.answer is Answer.UNKNOWN and known is not None and known.status != "Unknown":
        # Another reason, or another status that is no health either: not what the clause says.
        stale = not known.fresh(now)
        return _Said(Answer.UNKNOWN if stale else Answer.CLEAR, f"{clause.type} is stale")
    is_status = "not stated" if known is None else known.status
    return _Said(found.answer, f"{clause.type} is {is_status}")
