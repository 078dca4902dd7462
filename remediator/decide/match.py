"""Stage 1, *match*: which policies hold for a node now, and which clause said so.

Every clause has one of four answers. ``CLEAR`` needs positive evidence: a fresh
statement of the running boot that the fault is not there. Silence, a stale
condition or unreadable details are ``UNKNOWN``: neither a reason to act nor to undo.

A *fault instance* is a short text such as ``xid:79:0000:9b:00.0:1f3a9c02``. It names
what a session is about, survives in the session, and can be asked later whether
it is clear, whatever became of the policy's own text meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final

from pydantic import ValidationError

from node_agent.contract import ConditionStatus, ConditionType, FaultKind, Severity
from remediator.decide.facts import (
    NOTHING_KNOWN,
    OWN_CONDITIONS,
    ClusterFacts,
    ConditionFact,
    NodeFacts,
)
from remediator.policy.model import RemediationPolicy
from remediator.policy.when import ConditionClause, When


_BOOT_CHARACTERS: Final = 8
MAX_INSTANCES: Final = 32


class Answer(IntEnum):
    """What a clause says of a node. Ordered: an entry is as good as its worst clause."""

    CLEAR = 0
    UNKNOWN = 1
    PENDING = 2
    """Holds, but not yet for long enough."""
    HOLDS = 3


@dataclass(frozen=True, slots=True)
class Match:
    """What one policy says of one node.

    ``fresh``: it rests on facts whose writer is alive. ``next_look``: when the
    answer may change without any new fact.
    """

    answer: Answer
    instances: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    severity: Severity = Severity.WARNING
    fresh: bool = True
    next_look: float | None = None

    @property
    def holds(self) -> bool:
        """Tell whether the policy matches."""
        return self.answer is Answer.HOLDS


_CLEAR: Final = Match(Answer.CLEAR)
_UNKNOWN: Final = Match(Answer.UNKNOWN)


def match(
    policy: RemediationPolicy,
    facts: NodeFacts,
    now: float,
    cluster_facts: ClusterFacts = NOTHING_KNOWN,  # noqa: ARG001 - for alerts and queries
) -> Match:
    """Evaluate ``when`` of a policy: any entry; within an entry, all keys."""
    entries = [_entry(when, facts, now) for when in policy.spec.when]
    return _any(entries) if len(entries) > 1 else entries[0]


def instance_answer(
    instance: str,
    facts: NodeFacts,
    now: float,
    cluster_facts: ClusterFacts = NOTHING_KNOWN,  # noqa: ARG001 - for alerts and queries
) -> Answer:
    """Ask whether one fault instance is still there. Never ``PENDING``."""
    kind, _, rest = instance.partition(":")
    if kind == "condition":
        clause = _clause_of(rest)
        return Answer.UNKNOWN if clause is None else _condition(clause, facts, now).answer
    if kind not in _CODE_NAMES:
        return Answer.UNKNOWN  # written by a newer version: what would clear it, we do not know
    code, _, place = rest.partition(":")
    for fault in facts.faults:
        if (
            fault.kind == kind
            and str(fault.code) == code
            and place == _place(fault.pci, fault.boot_id)
        ):
            return Answer.HOLDS
    return Answer.CLEAR if _report_trusted(facts, now) else Answer.UNKNOWN


def speaker(instance: str) -> str:
    """Return the type of the condition that speaks for a fault instance."""
    kind, _, rest = instance.partition(":")
    return rest.rpartition("=")[0] if kind == "condition" else ConditionType.XID_ERROR.value


@lru_cache(maxsize=256)
def _clause_of(rest: str) -> ConditionClause | None:
    """Read ``GPULost=True`` of a condition's instance; None if it is none."""
    name, _, status = rest.rpartition("=")
    try:
        return ConditionClause.model_validate({"type": name, "status": status})
    except ValidationError:
        return None


def _entry(when: When, facts: NodeFacts, now: float) -> Match:
    parts = []
    if when.xid is not None:
        parts.append(_codes(FaultKind.XID, when.xid.codes, facts, now))
    if when.sxid is not None:
        parts.append(_codes(FaultKind.SXID, when.sxid.codes, facts, now))
    if when.condition is not None:
        parts.append(_condition(when.condition, facts, now))
    return _all(parts) if len(parts) > 1 else parts[0]


def _all(parts: list[Match]) -> Match:
    """Join the clauses of an entry: the worst answer decides."""
    answer = min(part.answer for part in parts)
    looks = [part.next_look for part in parts if part.next_look is not None]
    return Match(
        answer,
        instances=tuple(sorted({i for part in parts for i in part.instances})),
        reasons=tuple(reason for part in parts for reason in part.reasons),
        severity=_worst(part.severity for part in parts),
        fresh=all(part.fresh for part in parts),
        next_look=min(looks, default=None),
    )


def _any(entries: list[Match]) -> Match:
    """Join the entries of a policy: the best answer decides, with all that hold."""
    answer = max(entry.answer for entry in entries)
    best = [entry for entry in entries if entry.answer is answer]
    looks = [entry.next_look for entry in entries if entry.next_look is not None]
    return Match(
        answer,
        instances=tuple(sorted({i for entry in best for i in entry.instances}))[:MAX_INSTANCES],
        reasons=tuple(reason for entry in best for reason in entry.reasons),
        severity=_worst(entry.severity for entry in best),
        fresh=any(entry.fresh for entry in best),
        next_look=min(looks, default=None),
    )


def _codes(kind: FaultKind, codes: tuple[int, ...], facts: NodeFacts, now: float) -> Match:
    faults = [fault for fault in facts.faults if fault.kind == kind and fault.code in codes]
    condition = facts.conditions.get(ConditionType.XID_ERROR)
    if not faults:
        return _CLEAR if _report_trusted(facts, now) else _UNKNOWN
    return Match(
        Answer.HOLDS,
        instances=tuple(
            sorted({f"{kind}:{f.code}:{_place(f.pci, f.boot_id)}" for f in faults}),
        )[:MAX_INSTANCES],
        reasons=tuple(f"{_CODE_NAMES[kind]} {f.code} on {f.pci or 'a GPU'}" for f in faults),
        severity=_worst(fault.severity for fault in faults),
        fresh=condition is not None and condition.fresh(now),
        next_look=None if condition is None else _freshness_limit(condition, now),
    )


_CODE_NAMES: Final = {FaultKind.XID: "Xid", FaultKind.SXID: "SXid"}


def _condition(clause: ConditionClause, facts: NodeFacts, now: float) -> Match:
    condition = facts.conditions.get(clause.type)
    if condition is None:
        return _UNKNOWN
    status, since = _effective(condition, now)
    if status != clause.status:
        known = status != ConditionStatus.UNKNOWN and _of_running_boot(condition, facts)
        return Match(
            Answer.CLEAR if known else Answer.UNKNOWN,
            next_look=_freshness_limit(condition, now),
        )
    if clause.reasons and condition.reason not in clause.reasons:
        return _UNKNOWN  # not this fault, but the node is not well either
    due = since + clause.for_
    limit = _freshness_limit(condition, now)
    return Match(
        Answer.HOLDS if now >= due else Answer.PENDING,
        instances=(f"condition:{clause.type}={clause.status}",),
        reasons=(f"{clause.type}={clause.status} ({condition.reason})",),
        severity=_condition_severity(clause.type, facts),
        fresh=condition.fresh(now),
        next_look=limit if now >= due else due,
    )


def _effective(condition: ConditionFact, now: float) -> tuple[str, float]:
    """Return the status to believe, and since when: a stale ``False`` is ``Unknown``."""
    if condition.status == ConditionStatus.FALSE and not condition.fresh(now):
        return ConditionStatus.UNKNOWN, condition.fresh_until
    return condition.status, condition.since


def _freshness_limit(condition: ConditionFact, now: float) -> float | None:
    if condition.type not in OWN_CONDITIONS or now >= condition.fresh_until:
        return None
    return condition.fresh_until


def _of_running_boot(condition: ConditionFact, facts: NodeFacts) -> bool:
    """Tell whether a statement of our agent is about the boot that runs now.

    Conditions of others carry no boot id; their writers answer for them.
    """
    if condition.type not in OWN_CONDITIONS:
        return True
    return bool(facts.boot_id) and facts.faults_boot_id == facts.boot_id


def _report_trusted(facts: NodeFacts, now: float) -> bool:
    """Tell whether a code's absence from the fault report means that it is not there."""
    condition = facts.conditions.get(ConditionType.XID_ERROR)
    if condition is None or not condition.fresh(now) or not _of_running_boot(condition, facts):
        return False
    if condition.status == ConditionStatus.FALSE:
        return True
    readable = not facts.faults_note and not facts.faults_truncated
    return condition.status == ConditionStatus.TRUE and readable


def _place(pci: str, boot_id: str) -> str:
    return f"{pci}:{boot_id[:_BOOT_CHARACTERS]}"


_SEVERITY_RANK: Final = {Severity.INFO: 0, Severity.WARNING: 1, Severity.FATAL: 2}


def severity_rank(severity: Severity) -> int:
    """Order severities: the worse, the higher."""
    return _SEVERITY_RANK[severity]


def _worst(severities: Iterable[Severity]) -> Severity:
    return max(severities, key=severity_rank, default=Severity.WARNING)


def _condition_severity(kind: str, facts: NodeFacts) -> Severity:
    """Take a condition of ours for as severe as the worst fault that is reported beside it."""
    if kind in OWN_CONDITIONS and any(f.severity is Severity.FATAL for f in facts.faults):
        return Severity.FATAL
    return Severity.WARNING
