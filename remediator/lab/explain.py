"""Why a policy matches a node, or does not: clause by clause, as ``decide`` sees it.

Each entry of ``when`` is evaluated by the same function as always, and so is each of its keys
alone: a clause that is added to the language is explained here by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from remediator.decide.answer import Answer, Match
from remediator.decide.facts import OWN_CONDITIONS, ClusterFacts, ConditionFact, NodeFacts
from remediator.decide.match import match, match_entry
from remediator.decide.session import Session
from remediator.decide.signal_clauses import PROMETHEUS, absence_proven, alertmanagers
from remediator.policy.model import RemediationPolicy
from remediator.policy.problems import Location, format_path
from remediator.policy.quantities import format_duration
from remediator.policy.selector import selector_matches
from remediator.policy.when import AlertClause, Clauses, Group, QueryClause, When


WORDS: Final = {
    Answer.HOLDS: "holds",
    Answer.PENDING: "holds, not for long enough yet",
    Answer.UNKNOWN: "cannot be told",
    Answer.CLEAR: "does not hold",
}
_NESTED: Final = ("all", "any")


@dataclass(frozen=True, slots=True)
class Told:
    """One clause or entry: where it stands, what it says of the node, and why."""

    path: str
    answer: Answer
    asked: str
    why: str
    next_look: float | None
    depth: int


@dataclass(frozen=True, slots=True)
class Explained:
    """One policy and one node.

    ``not_asked``: why it begins nothing here, whatever is true; "" if it may. ``holding``: a
    session of the node holds this policy all the same, and goes on.
    """

    policy: str
    mode: str
    match: Match
    clauses: tuple[Told, ...]
    not_asked: str
    holding: bool = False


def explain(
    policy: RemediationPolicy, facts: NodeFacts, around: ClusterFacts, now: float
) -> Explained:
    """Say what a policy says of a node, and which clause says so."""
    found = match(policy, facts, now, around)
    told = tuple(
        one
        for index, entry in enumerate(policy.spec.when)
        for one in _entry(("when", index), entry, facts, around, now, depth=0)
    )
    session = facts.session
    holding = isinstance(session, Session) and session.hold(policy.name) is not None
    reason = _not_asked(policy, facts)
    return Explained(policy.name, policy.spec.mode.value, found, told, reason, holding)


def _not_asked(policy: RemediationPolicy, facts: NodeFacts) -> str:
    if not facts.gpu:
        return "not a GPU node by RemediatorConfig gpuNodes"
    if not selector_matches(policy.spec.nodes.selector, facts.labels):
        return "the node's labels are not those of nodes.selector"
    if facts.control_plane and not policy.spec.nodes.control_plane:
        return "a control-plane node, and nodes.controlPlane is not set"
    return ""


def _entry(
    at: Location, entry: Clauses, facts: NodeFacts, around: ClusterFacts, now: float, *, depth: int
) -> Iterator[Told]:
    """Yield an entry, then each of its keys, and what is nested below."""
    found = match_entry(entry, facts, now, around)
    yield Told(format_path(at), found.answer, "", _why(found), found.next_look, depth)
    for key in type(entry).model_fields:
        value = getattr(entry, key)
        if value is None:
            continue
        if isinstance(entry, Group) and key in _NESTED:
            for index, one in enumerate(value):
                yield from _entry((*at, key, index), one, facts, around, now, depth=depth + 1)
            continue
        alone = match_entry(When.model_construct(**{key: value}), facts, now, around)
        why = _why(alone) or _instead(key, value, facts, around, now)
        place, again = format_path((*at, key)), alone.next_look
        if key == "query" and alone.answer is Answer.PENDING and _once(value, facts):
            why, again = f"{why}; {_too_short(value)}", None
        yield Told(place, alone.answer, _asked(value), why, again, depth + 1)


def _why(found: Match) -> str:
    return ", ".join(found.reasons) or found.error


def _asked(value: Any) -> str:
    """Write a clause as short text."""
    if not hasattr(value, "model_dump"):
        return str(value)
    kept = value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return ", ".join(f"{key} {_short(text)}" for key, text in kept.items())


def _short(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _once(clause: QueryClause, facts: NodeFacts) -> bool:
    """Tell whether a single answer is known, from which no duration follows."""
    fact = facts.queries.get(clause.key)
    return fact is not None and fact.seen <= fact.since


def _too_short(clause: QueryClause) -> str:
    lasts = format_duration(clause.for_)
    return f"it would have to hold for {lasts}, and one look cannot tell"


def _instead(key: str, value: Any, facts: NodeFacts, around: ClusterFacts, now: float) -> str:
    """Say what is there in place of what a clause asks for."""
    if key == "condition":
        found = facts.conditions.get(value.type)
        if found is None:
            return f"the node has no condition {value.type}"
        said = f"{found.type} is {found.status} ({found.reason})"
        return said if found.fresh(now) else f"{said}; its agent {_silent([found], now)}"
    if key in {"xid", "sxid", "count"}:
        codes = sorted(
            {
                f"{one.count} x {one.kind} {one.code}"
                if key == "count"
                else f"{one.kind} {one.code}"
                for one in facts.faults
                if one.code is not None
            }
        )
        said = f"the agent reports {', '.join(codes)}" if codes else "the agent reports no code"
        stated = [one for one in facts.conditions.values() if one.type in OWN_CONDITIONS]
        if stated and not any(one.fresh(now) for one in stated):
            return f"{said}, and {_silent(stated, now)}"
        return said if facts.faults or facts.conditions else "no agent reports anything"
    if key == "alert":
        names = sorted({one.name for one in facts.alerts})
        said = f"firing here: {', '.join(names)}" if names else "no alert names this node"
        return said + _unproven(value, around)
    return _unanswered(value, facts, around) if key == "query" else ""


def _silent(stated: Iterable[ConditionFact], now: float) -> str:
    """Say how long nothing has been heard of the agent, and that its last word is old."""
    quiet = format_duration(float(int(now - max(one.seen for one in stated))))
    return f"has been silent for {quiet}, so that proves nothing"


def _unproven(clause: AlertClause, around: ClusterFacts) -> str:
    """Say why the absence of an alert proves nothing; "" if it does."""
    if absence_proven(clause.source, around):
        return ""
    known = alertmanagers(clause.source, around)
    if not known:
        return "; no Alertmanager was asked"
    failing = next((one.why or "it fails" for one in known if not one.ok), "")
    return f"; {failing}" if failing else "; without a watchdog its absence proves nothing"


def _unanswered(clause: QueryClause, facts: NodeFacts, around: ClusterFacts) -> str:
    """Say why a query says nothing of the node, or that it says it is well."""
    if clause.key in facts.queries:
        return "clearedBy names the node"
    failing = [
        f"{name}: {one.why or 'it fails'}"
        for name, one in around.sources.items()
        if name.startswith(PROMETHEUS)
        and not one.ok
        and clause.source in {None, name.removeprefix(PROMETHEUS)}
    ]
    if failing:
        return failing[0]
    if f"query:{clause.key}" in around.heard:
        return "the node is not in its result, which proves nothing"
    return "it was not asked, or not answered"
