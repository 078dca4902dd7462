"""Clauses about what other programs say of a node: alerts and queries.

An alert that is not there proves nothing unless its Alertmanager answers and a watchdog proves
that the Prometheus behind it is alive. A node that is not in a query's result proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from node_agent.contract import Severity
from remediator.decide.answer import CLEAR, UNKNOWN, Answer, Match, doubted, named, worst
from remediator.decide.facts import AlertFact, ClusterFacts, NodeFacts, QueryFact, SourceFact
from remediator.policy.model import RemediationPolicy
from remediator.policy.when import AlertClause, QueryClause


ALERTMANAGER: Final = "alertmanager/"
PROMETHEUS: Final = "prometheus/"
_SEVERITIES: Final = {
    "critical": Severity.FATAL,
    "page": Severity.FATAL,
    "info": Severity.INFO,
    "none": Severity.INFO,
}
_SHOWN: Final = 80


def alert(clause: AlertClause, facts: NodeFacts, cluster: ClusterFacts, now: float) -> Match:
    """Say whether an alert that names the node has been firing for long enough.

    A silenced one still holds: what people see of the node is true. Whoever decides must
    leave the node as it is (``silenced``).
    """
    found = [one for one in facts.alerts if names(clause, one)]
    if not found:
        return CLEAR if absence_proven(clause.source, cluster) else UNKNOWN
    due = dues(clause, found)
    ripe = {instance for instance, at in due.items() if now >= at}
    shown = [one for one in found if one.instance in ripe] or found
    doubt = next(filter(None, (source_doubt(ALERTMANAGER + a.source, cluster) for a in shown)), "")
    answer = Match(
        Answer.HOLDS if ripe else Answer.PENDING,
        instances=named(one.instance for one in shown),
        reasons=tuple(dict.fromkeys(f"alert {one.name or one.instance}" for one in shown)),
        severity=clause.severity or worst(_severity(one) for one in shown),
        fresh=not doubt,
        next_look=min((at for at in due.values() if now < at), default=None),
        silenced=tuple(dict.fromkeys(silence_of(one) for one in found if one.suppressed)),
    )
    return doubted(answer, doubt)


def query(clause: QueryClause, facts: NodeFacts, cluster: ClusterFacts, now: float) -> Match:
    """Say whether a query has named the node for long enough."""
    fact = facts.queries.get(clause.key)
    if fact is None:
        return UNKNOWN
    if not fact.holds:
        clear = now < fact.fresh_until
        limit = fact.fresh_until if clear else None
        return Match(Answer.CLEAR if clear else Answer.UNKNOWN, next_look=limit)
    due = fact.since + clause.for_
    fresh = now < fact.fresh_until
    answer = Match(
        Answer.HOLDS if now >= due else Answer.PENDING,
        instances=(f"query:{clause.key}",),
        reasons=(f"query {_short(clause.promql)} is {fact.value:g}",),
        severity=clause.severity,
        fresh=fresh,
        next_look=due if now < due else (fact.fresh_until if fresh else None),
    )
    return doubted(answer, query_doubt(fact, cluster, now))


def alerts_named(policies: Iterable[RemediationPolicy]) -> tuple[AlertClause, ...]:
    """Return every alert that these policies ask for in ``when``."""
    entries = (entry for policy in policies for entry in policy.spec.when)
    return tuple(one for entry in entries for one in entry.each("alert"))


def silenced_by_people(named: Iterable[AlertClause], facts: NodeFacts) -> str:
    """Say which alert about a node that is named, whoever rests on it, people silenced.

    "" if none is. That is how they say "leave this node".
    """
    quiet = [one for one in facts.alerts if one.suppressed]
    if not quiet:
        return ""
    clauses = tuple(named)
    found = (one for one in quiet if any(names(clause, one) for clause in clauses))
    return next(map(silence_of, found), "")


def silence_of(fact: AlertFact) -> str:
    """Say of a silenced alert that it is."""
    return f"alert {fact.name} is silenced or inhibited in {fact.source}"


def names(clause: AlertClause, fact: AlertFact) -> bool:
    """Tell whether a clause means an alert."""
    return (
        (not clause.name or clause.name == fact.name)
        and (clause.source is None or clause.source == fact.source)
        and all(fact.labels.get(key) == value for key, value in clause.labels.items())
    )


def dues(clause: AlertClause, found: list[AlertFact]) -> dict[str, float]:
    """Return by instance when it will have lasted: the first of those that share one counts."""
    since: dict[str, float] = {}
    for one in found:
        since[one.instance] = min(one.since, since.get(one.instance, one.since))
    return {instance: at + clause.for_ for instance, at in since.items()}


def absence_proven(source: str | None, cluster: ClusterFacts) -> bool:
    """Tell whether an alert that is not there would be there if it fired.

    ``source``: an Alertmanager's name; None: whichever there are.
    """
    known = alertmanagers(source, cluster)
    return bool(known) and all(one.ok and one.alive for one in known)


def alertmanagers(source: str | None, cluster: ClusterFacts) -> list[SourceFact]:
    """Return what is known of one Alertmanager, or of all."""
    wanted = None if source is None else ALERTMANAGER + source
    return [
        fact
        for name, fact in cluster.sources.items()
        if name.startswith(ALERTMANAGER) and wanted in {None, name}
    ]


def source_doubt(name: str, cluster: ClusterFacts) -> str:
    """Say why a source cannot be trusted now; "" if it can, or if nothing is known of it."""
    known = cluster.sources.get(name)
    return f"{name}: {known.why or 'it fails'}" if known is not None and not known.ok else ""


def query_doubt(fact: QueryFact, cluster: ClusterFacts, now: float) -> str:
    """Say why a query's answer cannot be relied on now; "" if it can."""
    if now >= fact.fresh_until:
        return "prometheus: the query has not been answered for too long"
    return source_doubt(PROMETHEUS + fact.source, cluster) if fact.source else ""


def _severity(fact: AlertFact) -> Severity:
    return _SEVERITIES.get(fact.labels.get("severity", ""), Severity.WARNING)


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."
