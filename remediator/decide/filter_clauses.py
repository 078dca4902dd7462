"""Clauses that name no fault: they narrow down an entry that does.

They give no fault instance. What a session is about, and what ends it, are the faults beside
them; when a filter no longer holds, the session goes on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from remediator.decide.answer import CLEAR, UNKNOWN, Answer, Match
from remediator.decide.facts import NodeFacts
from remediator.decide.session import DAY, Remedy
from remediator.policy.expression import ExpressionError, holds
from remediator.policy.when import AttemptsClause


def attempts(clause: AttemptsClause, facts: NodeFacts, now: float) -> Match:
    """Say whether the node was remediated so often before; the present session is not counted."""
    if clause.policies or clause.steps:
        known = [one.at for one in facts.history.remedies if _meant(clause, one)]
    else:
        known = list(facts.history.attempts)
    times = sorted(at for at in known if at > now - clause.within)
    if len(times) < clause.at_least:
        return CLEAR
    return Match(
        Answer.HOLDS,
        reasons=(f"remediated {len(times)} times before",),
        next_look=times[-clause.at_least] + clause.within,
    )


def _meant(clause: AttemptsClause, remedy: Remedy) -> bool:
    """Tell whether one of the policies began one of the steps that the clause counts."""
    return any(
        (not clause.policies or policy in clause.policies)
        and (not clause.steps or any(_is(step, one) for one in did for step in clause.steps))
        for policy, did in remedy.did.items()
    )


def _is(step: str, did: str) -> bool:
    """Tell whether ``job`` or ``job/gpu-reset`` names what was done."""
    return did == step or did.startswith(f"{step}/")


def cel(text: str, facts: NodeFacts, now: float) -> Match:
    """Say whether an expression gives true; where it fails, nobody knows."""
    try:
        return Match(Answer.HOLDS) if holds(text, variables(facts, now)) else CLEAR
    except (ExpressionError, ValueError) as error:
        return replace(UNKNOWN, error=str(error))


def variables(facts: NodeFacts, now: float) -> dict[str, Any]:
    """Return what an expression may name: ``remediator.policy.expression.VARIABLES``."""
    return {
        "name": facts.name,
        "pool": facts.pool,
        "zone": facts.zone,
        "ready": facts.ready,
        "unschedulable": facts.unschedulable,
        "attempts": sum(1 for at in facts.history.attempts if at > now - DAY),
        "labels": dict(facts.labels),
        "conditions": {
            kind: {"status": str(one.status), "reason": one.reason, "message": one.message}
            for kind, one in facts.conditions.items()
        },
        "faults": [
            {
                "kind": fault.kind.value,
                "code": fault.code if fault.code is not None else 0,
                "severity": fault.severity.value,
                "action": fault.action,
                "gpu": fault.gpu,
                "pci": fault.pci,
                "count": fault.count,
                "message": fault.message,
            }
            for fault in facts.faults
        ],
        "alerts": [
            {"name": one.name, "source": one.source, "labels": dict(one.labels)}
            for one in facts.alerts
            if not one.suppressed
        ],
    }
