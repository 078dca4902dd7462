"""Steps that change the node, and what becomes of their changes: taken, kept, let go, undone.

Labels and annotations are :mod:`remediator.decide.marks`.

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
from remediator.decide.marks import give_up, put_back, set_marks
from remediator.decide.match import Match
from remediator.decide.progress import gone_back
from remediator.decide.session import (
    Before,
    HoldState,
    PolicyHold,
    Result,
    Session,
    Taint,
)
from remediator.policy.plan import parse_plan
from remediator.policy.steps import CHANGES, Step


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
    known = _at_once(draft, session, hold, step)
    if known is not None:
        return known
    if not match.holds:
        unclear = "it cannot be told whether the fault is still there"
        draft.hold(Hold(hold.policy, "facts", unclear, match.next_look))
        return None
    if step.disruptive and draft.held_by(hold.policy, verdict):
        return None
    why = f"{step.action} by {hold.policy}: {', '.join(match.reasons)}"
    draft.act(step.action, hold.policy, why, disruptive=step.disruptive)
    return _make(draft, session, step)


def _make(draft: Draft, session: Session, step: Step) -> tuple[Session, str]:
    if step.label is not None or step.annotate is not None:
        return set_marks(draft, session, step)
    taint = taint_of(step)
    if taint is None:
        draft.unschedulable = True
        return replace(session, added=replace(session.added, cordoned=True)), ""
    draft.taint.append(taint)
    return _adding(session, taint), ""


def _at_once(
    draft: Draft, session: Session, hold: PolicyHold, step: Step
) -> tuple[Session, str] | None:
    """Take back, or find made already: neither needs the fault or the guards' leave."""
    if step.uncordon is not None or step.untaint is not None:
        return _give_back(draft, session, hold, step)
    taint = taint_of(step)
    if taint is not None:
        return _known_taint(draft, session, taint)
    return _known_cordon(draft, session) if step.cordon is not None else None


def _give_back(draft: Draft, session: Session, hold: PolicyHold, step: Step) -> tuple[Session, str]:
    """Take away what this session added, before its end; what others hold or made stays."""
    why = f"{step.action} by {hold.policy}: {', '.join(hold.reasons)}"
    others = [one for one in session.holds if one.policy != hold.policy]
    added = session.added
    if step.uncordon is not None:
        if not added.cordoned:
            return session, "the cordon is not ours"
        if any(_wants_cordon(one) for one in others):
            return session, "another policy holds the cordon"
        draft.unschedulable = False if draft.facts.unschedulable else None
        draft.act("uncordon", hold.policy, why)
        return replace(session, added=replace(added, cordoned=False)), ""
    slot = (step.untaint.key, step.untaint.effect) if step.untaint is not None else ("", "")
    ours = [one for one in added.taints if one.slot == slot]
    if not ours:
        return session, "there is no such taint of ours"
    if any(slot in _wanted(one) for one in others):
        return session, "another policy holds the taint"
    draft.untaint += [one for one in ours if one in draft.facts.taints]
    draft.taint = [one for one in draft.taint if one not in ours]
    draft.act("untaint", hold.policy, why)
    left = tuple(one for one in added.taints if one.slot != slot)
    return replace(session, added=replace(added, taints=left)), ""


def _wants_cordon(hold: PolicyHold) -> bool:
    """Tell whether a hold's steps cordoned the node, or found it so, and did not take that back."""
    done = (one.action for one in reversed(hold.results) if one.result is Result.DONE)
    return next((one for one in done if one in {"cordon", "uncordon"}), "") == "cordon"


def _known_cordon(draft: Draft, session: Session) -> tuple[Session, str] | None:
    if session.added.cordoned:
        return session, "cordoned by us already"
    if draft.unschedulable is False:  # another policy let go of it in this very decision
        draft.unschedulable = None
        return replace(
            session, added=replace(session.added, cordoned=True)
        ), "cordoned by us already"
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
    """Return the taints that a hold's steps made, or found made, and did not take away again."""
    steps = parse_plan(hold.plan).steps
    wanted: set[Slot] = set()
    for result in hold.results:
        if result.result is not Result.DONE or not 0 <= result.step < len(steps):
            continue
        step = steps[result.step]
        if step.taint is not None:
            wanted.add((step.taint.key, step.taint.effect))
        elif step.untaint is not None:
            wanted.discard((step.untaint.key, step.untaint.effect))
    return wanted


def let_go_of_changes(draft: Draft, session: Session, kept: Iterable[PolicyHold]) -> Session:
    """Undo what of ours none of the holds that stay has wanted, but for the cordon."""
    kept = tuple(kept)
    session = put_back(draft, session, kept=kept)
    if draft.labels or draft.annotations:
        draft.act("record", "", "the last policy that wanted this label or annotation let go")
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
    session = give_up(session, hold)
    before, added = session.before, session.added
    if added.cordoned and _wants_cordon(hold):
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
    uncordoned = uncordoned and _wants_cordon(hold)
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
    if hold.work_since is not None:
        return hold  # first comes the end of what is under way
    return gone_back(hold, at, now)
