"""Steps that change the node, and what becomes of their changes: taken, kept, let go, undone.

What was there before us is never ours: a step that finds its change made by somebody else
is done, and nothing is undone for it. What a session added is held until the last policy
that wanted it lets go.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from remediator.decide.decision import Hold
from remediator.decide.draft import Draft
from remediator.decide.facts import NodeFacts
from remediator.decide.match import Match
from remediator.decide.session import (
    Before,
    HoldState,
    PolicyHold,
    Result,
    Session,
    StepResult,
    Taint,
)
from remediator.policy.plan import parse_plan
from remediator.policy.steps import CHANGES, Step


NOT_ASKED = Hold("", "order", "waits for its turn")

Slot = tuple[str, str]


def taint_of(step: Step) -> Taint | None:
    """Return the taint that a step adds, if it is such a step."""
    if step.taint is None:
        return None
    return Taint(key=step.taint.key, effect=step.taint.effect, value=step.taint.value)


def is_made(facts: NodeFacts, session: Session | None, step: Step) -> bool:
    """Tell whether the node is already as a step would make it, by whomever."""
    taint = taint_of(step)
    if taint is not None:
        return any(one.slot == taint.slot for one in facts.taints)
    return facts.unschedulable or (session is not None and session.added.cordoned)


def change(
    draft: Draft,
    session: Session,
    hold: PolicyHold,
    *,
    step: Step,
    match: Match,
    verdict: Hold | None,
) -> tuple[Session, str] | None:
    """Make a step's change, unless it is made already; None where it has to wait.

    Returns the session and a note for the record.
    """
    taint = taint_of(step)
    known = _known_cordon(draft, session) if taint is None else _known_taint(draft, session, taint)
    if known is not None:
        return known
    if not match.holds:
        why = "it cannot be told whether the fault is still there"
        draft.hold(Hold(hold.policy, "facts", why, match.next_look))
        return None
    if step.disruptive and verdict is not None:
        draft.hold(verdict if verdict is not NOT_ASKED else verdict._replace(policy=hold.policy))
        if verdict is NOT_ASKED:
            draft.look_at(draft.now + 1.0)
        return None
    why = f"{step.action} by {hold.policy}: {', '.join(match.reasons)}"
    draft.act(step.action, hold.policy, why, disruptive=step.disruptive)
    if taint is None:
        draft.unschedulable = True
        return replace(session, added=replace(session.added, cordoned=True)), ""
    draft.taint.append(taint)
    return _adding(session, taint), ""


def _known_cordon(draft: Draft, session: Session) -> tuple[Session, str] | None:
    if session.added.cordoned:
        return session, "cordoned by us already"
    if draft.facts.unschedulable:
        before = replace(session.before, cordoned=True)
        return replace(session, before=before), "was cordoned before"
    return None


def _known_taint(draft: Draft, session: Session, taint: Taint) -> tuple[Session, str] | None:
    if any(one.slot == taint.slot for one in session.added.taints):
        return session, "tainted by us already"
    going = next((one for one in draft.untaint if one.slot == taint.slot), None)
    if going is not None:  # another policy let go of it in this very decision
        draft.untaint.remove(going)
        return _adding(session, going), "tainted by us already"
    if any(one.slot == taint.slot for one in draft.facts.taints):
        return session, "a taint of this key and effect was there before"
    return None


def _adding(session: Session, taint: Taint) -> Session:
    added = replace(session.added, taints=(*session.added.taints, taint))
    return replace(session, added=added)


def _wanted(hold: PolicyHold) -> set[Slot]:
    """Return the taints that a hold's steps made, or found made."""
    steps = parse_plan(hold.plan).steps
    return {
        taint.slot
        for result in hold.results
        if result.result is Result.DONE and 0 <= result.step < len(steps)
        if (taint := taint_of(steps[result.step])) is not None
    }


def let_go_of_taints(draft: Draft, session: Session, kept: Iterable[PolicyHold]) -> Session:
    """Remove the taints of ours that none of the holds that stay has wanted."""
    wanted = {slot for hold in kept for slot in _wanted(hold)}
    going = [one for one in session.added.taints if one.slot not in wanted]
    if not going:
        return session
    draft.untaint += [one for one in going if one in draft.facts.taints]
    draft.act("untaint", "", "the last policy that wanted this taint let go")
    taints = tuple(one for one in session.added.taints if one.slot in wanted)
    return replace(session, added=replace(session.added, taints=taints))


def left_in_place(session: Session, hold: PolicyHold) -> Session:
    """Give to people what a policy that never undoes has made: as if it had been there before.

    Otherwise another policy that held the node, too, would take it away with its own.
    """
    before, added = session.before, session.added
    if added.cordoned and any(one.action == "cordon" for one in hold.results):
        before, added = replace(before, cordoned=True), replace(added, cordoned=False)
    wanted = _wanted(hold)
    given = tuple(one for one in added.taints if one.slot in wanted)
    if given:
        before = replace(before, taints=(*before.taints, *given))
        added = replace(added, taints=tuple(one for one in added.taints if one not in given))
    return replace(session, before=before, added=added)


def make_again(draft: Draft, session: Session) -> Session:
    """Take back "was there before": whoever made it took it away, so decide anew."""
    facts = draft.facts
    uncordoned = session.before.cordoned and not facts.unschedulable and not session.added.cordoned
    present = {one.slot for one in (*facts.taints, *session.added.taints)}
    if not uncordoned and all(present.issuperset(_wanted(hold)) for hold in session.holds):
        return session
    if uncordoned:
        session = replace(session, before=Before(taints=session.before.taints))
    holds = (
        _back(hold, _first_missing(hold, present, uncordoned=uncordoned), draft.now)
        for hold in session.holds
    )
    return replace(session, holds=tuple(holds))


def _first_missing(hold: PolicyHold, present: set[Slot], *, uncordoned: bool) -> int | None:
    """Return the first step whose change is not there any more."""
    missing = _wanted(hold) - present
    steps = parse_plan(hold.plan).steps
    for result in hold.results:
        if result.action == "cordon" and uncordoned:
            return result.step
        if result.action in CHANGES and 0 <= result.step < len(steps):
            taint = taint_of(steps[result.step])
            if taint is not None and taint.slot in missing:
                return result.step
    return None


def _back(hold: PolicyHold, at: int | None, now: float) -> PolicyHold:
    if at is None or hold.state not in {HoldState.RUNNING, HoldState.DONE}:
        return hold
    results: tuple[StepResult, ...] = tuple(one for one in hold.results if one.step < at)
    return replace(hold, step=at, step_since=now, state=HoldState.RUNNING, results=results)
