"""Clauses about what stands on the Node: codes, counts of codes, conditions.

Of our agent's statements we know the heartbeat and the boot, so a silent agent is told from a
well node. Conditions of others are taken as they are: their writers answer for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from node_agent.contract import ConditionStatus, ConditionType, Fault, FaultKind, Severity
from remediator.decide.answer import (
    CLEAR,
    UNKNOWN,
    Answer,
    Match,
    doubted,
    named,
    worst,
)
from remediator.decide.facts import (
    AGENTS,
    OWN_CONDITIONS,
    ClusterFacts,
    ConditionFact,
    NodeFacts,
)
from remediator.policy.codes import CodesClause, CountClause
from remediator.policy.when import WELL_WORDS, ConditionClause


CODE_NAMES: Final = {FaultKind.XID: "Xid", FaultKind.SXID: "SXid"}
_BOOT_CHARACTERS: Final = 8
_OPPOSITE: Final = {"True": "False", "False": "True"}


def codes(
    kind: FaultKind, wanted: Sequence[int], facts: NodeFacts, cluster: ClusterFacts, now: float
) -> Match:
    """Say whether the agent reports an unresolved fault with one of these codes."""
    return _unresolved(kind, _faults(kind, wanted, facts), facts, cluster, now)


def faults(
    kind: FaultKind, clause: CodesClause, facts: NodeFacts, cluster: ClusterFacts, now: float
) -> Match:
    """Say whether the agent reports an unresolved fault that a clause asks for."""
    found = [f for f in facts.faults if f.kind == kind and clause.asks_for(f.code, f.severity)]
    return _unresolved(kind, found, facts, cluster, now)


def _unresolved(
    kind: FaultKind, faults: list[Fault], facts: NodeFacts, cluster: ClusterFacts, now: float
) -> Match:
    if not faults:
        return CLEAR if report_trusted(facts, now) else UNKNOWN
    reasons = (f"{CODE_NAMES[kind]} {f.code} on {f.pci or 'a GPU'}" for f in faults)
    return _reported(faults, tuple(reasons), facts, cluster, now)


def count(clause: CountClause, facts: NodeFacts, cluster: ClusterFacts, now: float) -> Match:
    """Say whether one device, or all together, had so many episodes before the newest one.

    One of the codes must be there now; what is over counts with it. All times are of the agent's
    clock. Where the report lost its details, too few times prove nothing.
    """
    kind, wanted = _wanted(clause)
    places: dict[str, list[Fault]] = defaultdict(list)
    for fault in _faults(kind, wanted, facts):
        places[fault.pci if clause.per == "gpu" else ""].append(fault)
    times = {place: _times(clause, found, place, facts) for place, found in places.items()}
    enough = {place: found for place, found in places.items() if _reached(clause, times[place])}
    if enough:
        faults = [fault for found in enough.values() for fault in found]
        reasons = tuple(
            f"{_episodes(clause, times[place])} x {_named(kind, found)} on "
            f"{place or ('the node' if clause.per == 'node' else 'a GPU')}"
            for place, found in enough.items()
        )
        return _reported(faults, reasons, facts, cluster, now)
    lost = any(_lost_times(clause, found, times[place]) for place, found in places.items())
    lost = lost or (bool(places) and facts.past_truncated)
    return CLEAR if report_trusted(facts, now) and not lost else UNKNOWN


def condition(
    clause: ConditionClause, facts: NodeFacts, cluster: ClusterFacts, now: float
) -> Match:
    """Say whether a condition has had the clause's status for long enough."""
    known = facts.conditions.get(clause.type)
    if known is None:
        return UNKNOWN
    status, since = _effective(known, now)
    if status != clause.status:
        well = status == _well(clause) and _of_running_boot(known, facts)
        return Match(
            Answer.CLEAR if well else Answer.UNKNOWN, next_look=_freshness_limit(known, now)
        )
    if clause.reasons and known.reason not in clause.reasons:
        return UNKNOWN  # not this fault, but the node is not well either
    if clause.clear_for and status == known.status:
        since = known.lasting(clause.reasons, clear_for=clause.clear_for)
    else:
        since = max(since, known.since_of(clause.reasons))
    due = since + clause.for_
    limit = _freshness_limit(known, now)
    found = Match(
        Answer.HOLDS if now >= due else Answer.PENDING,
        instances=(f"condition:{clause.type}={clause.status}",),
        reasons=(f"{clause.type}={clause.status} ({known.reason})",),
        severity=clause.severity or _condition_severity(clause.type, facts),
        fresh=known.fresh(now),
        next_look=limit if now >= due else due,
    )
    return doubted(found, agents_doubt(cluster)) if clause.type in OWN_CONDITIONS else found


def report_trusted(facts: NodeFacts, now: float) -> bool:
    """Tell whether a code's absence from the fault report means that it is not there."""
    known = facts.conditions.get(ConditionType.XID_ERROR)
    if known is None or not known.fresh(now) or not _of_running_boot(known, facts):
        return False
    if facts.info_truncated:
        return False  # which codes are informational, only the agent knows
    if known.status == ConditionStatus.FALSE:
        return True
    readable = not facts.faults_note and not facts.faults_truncated
    return known.status == ConditionStatus.TRUE and readable


def agents_doubt(cluster: ClusterFacts) -> str:
    """Say why the word of agents cannot be trusted now; "" if it can, or if nobody says."""
    known = cluster.sources.get(AGENTS)
    return f"{AGENTS}: {known.why}" if known is not None and not known.ok else ""


def place(pci: str, boot_id: str) -> str:
    """Return where and in which boot a fault is: the end of its instance's name."""
    return f"{pci}:{boot_id[:_BOOT_CHARACTERS]}"


def _faults(kind: FaultKind, wanted: Sequence[int], facts: NodeFacts) -> list[Fault]:
    return [fault for fault in facts.faults if fault.kind == kind and fault.code in wanted]


def _reported(
    faults: Sequence[Fault],
    reasons: tuple[str, ...],
    facts: NodeFacts,
    cluster: ClusterFacts,
    now: float,
) -> Match:
    """Return the answer that rests on faults of the agent's report."""
    speaks = facts.conditions.get(ConditionType.XID_ERROR)
    found = Match(
        Answer.HOLDS,
        instances=named(f"{f.kind}:{f.code}:{place(f.pci, f.boot_id)}" for f in faults),
        reasons=reasons,
        severity=worst(fault.severity for fault in faults),
        fresh=speaks is not None and speaks.fresh(now),
        next_look=None if speaks is None else _freshness_limit(speaks, now),
    )
    return doubted(found, agents_doubt(cluster))


# -- counts --------------------------------------------------------------------------------


def _times(
    clause: CountClause, faults: Sequence[Fault], place: str, facts: NodeFacts
) -> list[float]:
    """Return when there were episodes at a place: of what is there, and of what is over."""
    kind, wanted = _wanted(clause)
    over = (
        one.times
        for one in facts.past
        if one.kind == kind and one.code in wanted and (clause.per == "node" or one.pci == place)
    )
    there = (fault.times for fault in faults)
    return sorted(time.timestamp() for times in (*there, *over) for time in times)


def _wanted(clause: CountClause) -> tuple[FaultKind, tuple[int, ...]]:
    return (FaultKind.XID, clause.xid) if clause.xid else (FaultKind.SXID, clause.sxid)


def _episodes(clause: CountClause, times: Sequence[float]) -> int:
    """Return how many episodes there were in the clause's time up to the newest one."""
    return sum(1 for time in times if time > times[-1] - clause.within)


def _reached(clause: CountClause, times: Sequence[float]) -> bool:
    return _episodes(clause, times) >= clause.at_least


def _lost_times(clause: CountClause, faults: Sequence[Fault], times: Sequence[float]) -> bool:
    """Tell whether episodes were counted whose times the report left out, and would matter."""
    counted = sum(max(0, fault.count - len(fault.times)) for fault in faults)
    return counted > 0 and counted + len(times) >= clause.at_least > len(times)


def _named(kind: FaultKind, faults: Sequence[Fault]) -> str:
    found = sorted({fault.code for fault in faults if fault.code is not None})
    return f"{CODE_NAMES[kind]} {', '.join(map(str, found))}"


# -- conditions ----------------------------------------------------------------------------


def _well(clause: ConditionClause) -> str:
    """Return the status that says that a clause's fault is not there."""
    ready = "True" if clause.type.endswith(WELL_WORDS) else "False"
    return _OPPOSITE.get(clause.status, ready)


def _effective(known: ConditionFact, now: float) -> tuple[str, float]:
    """Return the status to believe, and since when: a stale ``False`` is ``Unknown``."""
    if known.status == ConditionStatus.FALSE and not known.fresh(now):
        return ConditionStatus.UNKNOWN, known.fresh_until
    return known.status, known.since


def _freshness_limit(known: ConditionFact, now: float) -> float | None:
    if known.type not in OWN_CONDITIONS or now >= known.fresh_until:
        return None
    return known.fresh_until


def _of_running_boot(known: ConditionFact, facts: NodeFacts) -> bool:
    """Tell whether a statement of our agent is about the boot that runs now.

    Conditions of others carry no boot id; their writers answer for them.
    """
    if known.type not in OWN_CONDITIONS:
        return True
    return bool(facts.boot_id) and facts.faults_boot_id == facts.boot_id


def _condition_severity(kind: str, facts: NodeFacts) -> Severity:
    """Take a condition of ours for as severe as the worst fault that is reported beside it."""
    if kind in OWN_CONDITIONS and any(f.severity is Severity.FATAL for f in facts.faults):
        return Severity.FATAL
    return Severity.WARNING
