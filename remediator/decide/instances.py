"""Fault instances: what a session is about, in a form that outlives the policy's own text.

A short text such as ``xid:79:0000:9b:00.0:1f3a9c02``, ``condition:GPULost=True``,
``alert:main/GpuFallenOffBus:5d41402a`` or ``query:0cc175b9c0f1``. It survives in the session,
and can be asked later whether it is clear, whatever became of the policy meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final

from pydantic import ValidationError

from node_agent.contract import ConditionType, Fault, FaultKind, Severity
from remediator.decide.answer import UNKNOWN, Answer, Match, any_of, doubted
from remediator.decide.facts import (
    AGENTS,
    NOTHING_KNOWN,
    OWN_CONDITIONS,
    ClusterFacts,
    NodeFacts,
    QueryFact,
)
from remediator.decide.node_clauses import CODE_NAMES, codes, condition, place, report_trusted
from remediator.decide.signal_clauses import (
    ALERTMANAGER,
    PROMETHEUS,
    absence_proven,
    alert,
    query_doubt,
    silence_of,
    source_doubt,
)
from remediator.policy.when import AlertClause, ConditionClause


_ALERT: Final = "alert"
_QUERY: Final = "query"


def instance_answer(
    instance: str, facts: NodeFacts, now: float, cluster_facts: ClusterFacts = NOTHING_KNOWN
) -> Answer:
    """Ask whether one fault instance is still there. Never ``PENDING``."""
    kind, _, rest = instance.partition(":")
    match kind:
        case "condition":
            clause = _clause_of(rest)
            if clause is None:
                return Answer.UNKNOWN
            return condition(clause, facts, cluster_facts, now).answer
        case "alert":
            return _alert(instance, facts, cluster_facts)
        case "query":
            return _query(facts.queries.get(rest), now)
        case _ if kind in CODE_NAMES:
            return _code(kind, rest, facts, now)
        case _:  # written by a newer version: what would clear it, we do not know
            return Answer.UNKNOWN


def still_there(
    instances: Iterable[str], facts: NodeFacts, now: float, cluster_facts: ClusterFacts
) -> Match:
    """Return those of these faults that are there, as a policy that asks for any of them would.

    If none is, it is not known here why: ask :func:`instance_answer` of each.
    """
    found = [_as_match(one, facts, now, cluster_facts) for one in instances]
    there = [one for one in found if one.holds]
    return any_of(there) if there else UNKNOWN


def speaker(instance: str) -> str:
    """Return the type of the condition that speaks for a fault instance; "" if none does."""
    kind, _, rest = instance.partition(":")
    if kind in {_ALERT, _QUERY}:
        return ""
    return rest.rpartition("=")[0] if kind == "condition" else ConditionType.XID_ERROR.value


def code_of(instance: str) -> str:
    """Return a code and its place, as in the reasons; "" of what is no code."""
    kind, _, rest = instance.partition(":")
    if kind not in CODE_NAMES:
        return ""
    number, _, where = rest.partition(":")
    return f"{CODE_NAMES[FaultKind(kind)]} {number} on {where.rpartition(':')[0] or 'a GPU'}"


def sources_of(instances: Iterable[str], facts: NodeFacts) -> tuple[str, ...]:
    """Return the sources that fault instances rest on, by the names that breakers have."""
    return tuple(sorted({one for one in (source_of(each, facts) for each in instances) if one}))


def source_of(instance: str, facts: NodeFacts) -> str:
    """Return the source that says so: ``agents/all``, ``alertmanager/main``, ``prometheus/main``.

    "" where it is none that we know: conditions of others have writers of their own.
    """
    kind, _, rest = instance.partition(":")
    if kind == _ALERT:
        return ALERTMANAGER + rest.partition("/")[0]
    if kind == _QUERY:
        fact = facts.queries.get(rest)
        return PROMETHEUS + fact.source if fact is not None and fact.source else ""
    return f"{AGENTS}/all" if speaker(instance) in OWN_CONDITIONS else ""


def in_first_answer(instance: str, facts: NodeFacts, cluster: ClusterFacts) -> bool:
    """Tell whether an alert or a query spoke of the node in the first good answer of its source.

    Then it may have done so for long: whatever was asked before that, nobody could tell.
    """
    kind, _, rest = instance.partition(":")
    if kind == _QUERY:
        heard, fact = cluster.heard.get(instance), facts.queries.get(rest)
        return heard is not None and fact is not None and fact.holds and fact.since <= heard
    if kind == _ALERT:
        heard = cluster.heard.get(ALERTMANAGER + rest.partition("/")[0])
        found = (one.since for one in facts.alerts if one.instance == instance)
        return heard is not None and any(since <= heard for since in found)
    return False


def unhealthy_since(instances: Iterable[str], facts: NodeFacts, seen: float) -> float:
    """Return since when a node is unhealthy, by whoever saw it first: to put nodes in an order.

    ``seen``: when we did, which a restart of the controller begins anew. The agent's and the
    Alertmanager's times are of other clocks, so nothing but an order may rest on them; one
    that lies before the node object's creation or after ``seen`` is not believed that far.
    """
    told = [at for one in instances for at in _told_since(one, facts)]
    return min(seen, max(facts.created, min(told))) if told else seen


def _told_since(instance: str, facts: NodeFacts) -> Iterator[float]:
    kind, _, rest = instance.partition(":")
    if kind == _ALERT:
        yield from (one.starts_at for one in facts.alerts if one.instance == instance)
    elif kind in CODE_NAMES:
        found = (fault for fault in facts.faults if _is(fault, kind, rest))
        yield from (fault.first_seen.timestamp() for fault in found)
    elif kind == "condition" and speaker(instance) in OWN_CONDITIONS:
        behind = (fault for fault in facts.faults if fault.severity is not Severity.INFO)
        yield from (fault.first_seen.timestamp() for fault in behind)


def gone(instance: str, facts: NodeFacts) -> bool:
    """Tell whether an alert or a query that spoke of the node does not speak of it now."""
    kind, _, rest = instance.partition(":")
    if kind == _ALERT:
        return all(one.instance != instance for one in facts.alerts)
    fact = facts.queries.get(rest)
    return kind == _QUERY and (fact is None or not fact.holds)


def silenced(instances: Iterable[str], facts: NodeFacts) -> str:
    """Say which alert that a session rests on is silenced; "" if none is."""
    wanted = set(instances)
    return next(
        (silence_of(one) for one in facts.alerts if one.suppressed and one.instance in wanted),
        "",
    )


def instance_doubt(instance: str, facts: NodeFacts, now: float, cluster_facts: ClusterFacts) -> str:
    """Say why the source that speaks for an alert or a query cannot be trusted; "" if it can."""
    kind, _, rest = instance.partition(":")
    if kind == _ALERT:
        return source_doubt(ALERTMANAGER + rest.partition("/")[0], cluster_facts)
    fact = facts.queries.get(rest) if kind == _QUERY else None
    return query_doubt(fact, cluster_facts, now) if fact is not None else ""


def queries_of(instances: Iterable[str], facts: NodeFacts) -> list[QueryFact]:
    """Return what is known of the queries that a session rests on."""
    keys = (one.partition(":") for one in instances)
    return [
        facts.queries[rest] for kind, _, rest in keys if kind == _QUERY and rest in facts.queries
    ]


def _as_match(instance: str, facts: NodeFacts, now: float, cluster: ClusterFacts) -> Match:
    """Return what a clause that asks for this one fault says."""
    kind, _, rest = instance.partition(":")
    if kind == "condition":
        clause = _clause_of(rest)
        return condition(clause, facts, cluster, now) if clause is not None else UNKNOWN
    if kind == _ALERT:
        only = tuple(one for one in facts.alerts if one.instance == instance)
        anything = AlertClause.model_construct()
        return alert(anything, replace(facts, alerts=only), cluster, now) if only else UNKNOWN
    if kind == _QUERY:
        return _query_match(instance, facts.queries.get(rest), cluster, now)
    faults = tuple(fault for fault in facts.faults if _is(fault, kind, rest))
    if kind not in CODE_NAMES or not faults:
        return UNKNOWN
    wanted = [fault.code for fault in faults if fault.code is not None]
    return codes(FaultKind(kind), wanted, replace(facts, faults=faults), cluster, now)


@lru_cache(maxsize=256)
def _clause_of(rest: str) -> ConditionClause | None:
    """Read ``GPULost=True`` of a condition's instance; None if it is none."""
    name, _, status = rest.rpartition("=")
    try:
        return ConditionClause.model_validate({"type": name, "status": status})
    except ValidationError:
        return None


def _code(kind: str, rest: str, facts: NodeFacts, now: float) -> Answer:
    if any(_is(fault, kind, rest) for fault in facts.faults):
        return Answer.HOLDS
    return Answer.CLEAR if report_trusted(facts, now) else Answer.UNKNOWN


def _query_match(instance: str, fact: QueryFact | None, cluster: ClusterFacts, now: float) -> Match:
    if fact is None or not fact.holds:
        return UNKNOWN
    found = Match(Answer.HOLDS, instances=(instance,), fresh=now < fact.fresh_until)
    return doubted(found, query_doubt(fact, cluster, now))


def _is(fault: Fault, kind: str, rest: str) -> bool:
    """Tell whether a fault is the one that an instance names behind its kind."""
    code, _, where = rest.partition(":")
    return (
        fault.kind == kind and str(fault.code) == code and where == place(fault.pci, fault.boot_id)
    )


def _alert(instance: str, facts: NodeFacts, cluster: ClusterFacts) -> Answer:
    if any(one.instance == instance for one in facts.alerts):
        return Answer.HOLDS
    source = instance.partition(":")[2].partition("/")[0]
    return Answer.CLEAR if absence_proven(source, cluster) else Answer.UNKNOWN


def _query(fact: QueryFact | None, now: float) -> Answer:
    if fact is None:
        return Answer.UNKNOWN
    if fact.holds:
        return Answer.HOLDS
    return Answer.CLEAR if now < fact.fresh_until else Answer.UNKNOWN
