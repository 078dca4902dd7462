"""Labels and annotations of the node: set by a step, put back with the session's end.

A value that stood there before is not ours; a value of ours that somebody changed is
theirs from then on. Both stay, whatever becomes of the session.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from msgspec.structs import replace

from remediator.decide.draft import Draft
from remediator.decide.facts import MAX_ANNOTATION
from remediator.decide.session import Mark, PolicyHold, Result, Session
from remediator.policy.plan import parse_plan
from remediator.policy.steps import Step


Kind = Literal["labels", "annotations"]


def set_marks(draft: Draft, session: Session, step: Step) -> tuple[Session, str]:
    """Set what a step names. Returns the session with what is ours of it, and a note."""
    kind: Kind = "labels" if step.label is not None else "annotations"
    said = step.label or step.annotate
    marks = {mark.key: mark for mark in _marks(session, kind)}
    left: list[str] = []
    for key, value in (said.set if said is not None else {}).items():
        now, known = _present(draft, kind, key), marks.get(key)
        if now == value:
            continue  # by us already, or so before us
        theirs = known is not None and now != known.value
        if theirs or len(now or "") > MAX_ANNOTATION:
            left.append(key)
            continue
        marks[key] = Mark(key=key, value=value, old=now if known is None else known.old)
        _pending(draft, kind)[key] = value
    note = f"left as it is: {', '.join(left)}" if left else ""
    return _with(session, kind, tuple(marks.values())), note


def put_back(draft: Draft, session: Session, *, kept: Collection[PolicyHold] = ()) -> Session:
    """Put back the old values of what none of these holds wants, where ours still stand."""
    for kind in _KINDS:
        wanted = {key for hold in kept for key in _wanted(hold, kind)}
        going = [mark for mark in _marks(session, kind) if mark.key not in wanted]
        for mark in going:
            if _present(draft, kind, mark.key) == mark.value:
                _pending(draft, kind)[mark.key] = mark.old
        stay = tuple(mark for mark in _marks(session, kind) if mark.key in wanted)
        session = _with(session, kind, stay)
    return session


def give_up(session: Session, hold: PolicyHold) -> Session:
    """Give to people what a policy that never undoes has set."""
    for kind in _KINDS:
        wanted = set(_wanted(hold, kind))
        stay = tuple(mark for mark in _marks(session, kind) if mark.key not in wanted)
        session = _with(session, kind, stay)
    return session


_KINDS: tuple[Kind, Kind] = ("labels", "annotations")


def _wanted(hold: PolicyHold, kind: Kind) -> list[str]:
    """Return the keys that a hold's steps set, or found set."""
    steps = parse_plan(hold.plan).steps
    done = (
        steps[one.step]
        for one in hold.results
        if one.result is Result.DONE and 0 <= one.step < len(steps)
    )
    said = (step.label if kind == "labels" else step.annotate for step in done)
    return [key for one in said if one is not None for key in one.set]


def _present(draft: Draft, kind: Kind, key: str) -> str | None:
    """Return the value as it is, with what this decision has changed so far."""
    pending = _pending(draft, kind)
    if key in pending:
        return pending[key]
    return (draft.facts.labels if kind == "labels" else draft.facts.annotations).get(key)


def _pending(draft: Draft, kind: Kind) -> dict[str, str | None]:
    return draft.labels if kind == "labels" else draft.annotations


def _marks(session: Session, kind: Kind) -> tuple[Mark, ...]:
    return session.added.labels if kind == "labels" else session.added.annotations


def _with(session: Session, kind: Kind, marks: tuple[Mark, ...]) -> Session:
    if marks == _marks(session, kind):
        return session
    added = (
        replace(session.added, labels=marks)
        if kind == "labels"
        else replace(session.added, annotations=marks)
    )
    return replace(session, added=added)
