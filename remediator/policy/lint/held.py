"""Rules about policies that hold themselves: whenever they match, they may not go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from remediator.policy.codes import CountClause, SXidClause, XidClause
from remediator.policy.lint.rule import Context, Hit, Rule, Severity, disrupts, entries
from remediator.policy.model import RemediationPolicy
from remediator.policy.when import (
    AlertClause,
    Clauses,
    ConditionClause,
    Group,
    QueryClause,
    Unless,
)


def _self_held(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    if not disrupts(policy):
        return
    for index, entry in enumerate(policy.spec.unless):
        parts = [part for part in (entry.alert, entry.query, entry.condition) if part is not None]
        if all(requires(one, part) for one in policy.spec.when for part in parts):
            yield Hit(
                ("spec", "unless", index),
                f"it holds whenever the policy matches: `when` asks for the same {_named(entry)}",
                "remove it; what ends the steps once the fault is over is `recover`",
            )


def _named(entry: Unless) -> str:
    given = (("alert", entry.alert), ("query", entry.query), ("condition", entry.condition))
    return " and ".join(key for key, part in given if part is not None)


def requires(entry: Clauses, part: Any) -> bool:
    """Tell whether an entry holds only where one clause, of another entry or ``unless``, does."""
    if any(_implies(clause, part) for _, clause in entry.given):
        return True
    if not isinstance(entry, Group):
        return False
    return any(requires(one, part) for one in entry.all or ()) or (
        bool(entry.any) and all(requires(one, part) for one in entry.any or ())
    )


def _implies(clause: Any, part: Any) -> bool:
    if isinstance(clause, ConditionClause) and isinstance(part, ConditionClause):
        any_reason = not part.reasons
        fewer = bool(clause.reasons) and {*clause.reasons} <= {*part.reasons}
        same = (clause.type, clause.status) == (part.type, part.status)
        return same and (any_reason or fewer) and part.for_ <= clause.for_
    if isinstance(clause, AlertClause) and isinstance(part, AlertClause):
        return (
            part.name in {"", clause.name}
            and part.labels.items() <= clause.labels.items()
            and part.source in {None, clause.source}
            and part.for_ <= clause.for_
        )
    if isinstance(clause, QueryClause) and isinstance(part, QueryClause):
        same = "".join(clause.promql.split()) == "".join(part.promql.split())
        return same and part.source == clause.source and part.for_ <= clause.for_
    asked, wanted = _codes(clause), _codes(part)
    return bool(asked) and not isinstance(part, CountClause) and asked <= wanted


def _codes(clause: Any) -> frozenset[tuple[str, int]]:
    """Return the codes that a clause names; none where it asks how bad they are."""
    if isinstance(clause, CountClause):
        return frozenset(
            (*(("xid", one) for one in clause.xid), *(("sxid", one) for one in clause.sxid))
        )
    if isinstance(clause, XidClause | SXidClause):
        kind = "xid" if isinstance(clause, XidClause) else "sxid"
        return frozenset((kind, one) for one in clause.codes or ())
    return frozenset()


def _late_attempts(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    """Where the attempts are used up, a node is only taken out of service, and people told."""
    most = policy.spec.limits.max_attempts
    dropped = next((one for one in policy.spec.steps if not one.disruptive and not one.tells), None)
    if dropped is None or not disrupts(policy):
        return
    for at, entry in entries(policy):
        if entry.attempts is not None and entry.attempts.at_least >= most:
            yield Hit(
                (*at, "attempts", "atLeast"),
                f"by then the {most} attempts of limits.maxAttempts are used up: the node "
                f"escalates, and {dropped.action} is never begun",
                f"write limits: {{maxAttempts: {entry.attempts.at_least + 1}}}, or fewer here",
            )


RULES: Final = (
    Rule(
        "self-held",
        Severity.ERROR,
        "An `unless` that holds whenever the policy matches.",
        "Its steps are held for as long as the fault lasts, and when it is over none begins.",
        "Remove it: an `unless` is about something else than the fault.",
        _self_held,
    ),
    Rule(
        "late-attempts",
        Severity.ERROR,
        "`attempts.atLeast` that is not below `limits.maxAttempts`, with steps that work or wait.",
        "Attempts of all policies count: the one for which this policy is meant escalates instead.",
        "Raise `limits.maxAttempts`, or ask for fewer attempts.",
        _late_attempts,
    ),
)
