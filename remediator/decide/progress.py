"""How a hold moves on: the key of what its step sends or begins, and how a step ends.

A step that ended is recorded as what it was: done, failed, timed out or cancelled. Nothing
here decides which.
"""

from __future__ import annotations

from msgspec.structs import replace

from remediator.decide.draft import Draft
from remediator.decide.room import MAX_NOTE, cut, with_room
from remediator.decide.session import (
    HoldState,
    Past,
    PolicyHold,
    Result,
    Session,
    StepResult,
)
from remediator.decide.untold import tell_failed
from remediator.policy.steps import OnFailure, Step


def acted(hold: PolicyHold, step: Step) -> PolicyHold:
    """Note that a step that takes capacity away, or works on the node, has begun."""
    made = step.job or step.create
    name = made.template if made is not None else step.webhook.to if step.webhook else ""
    what = f"{step.action}/{name}" if name else step.action
    return hold if what in hold.did else replace(hold, did=(*hold.did, what))


def what_was_done(session: Session) -> dict[str, tuple[str, ...]]:
    """Return what a session did to the node, by policy: with nothing, it was no attempt."""
    did = {policy: past.did for policy, past in session.past.items()}
    for hold in session.holds:
        did[hold.policy] = tuple(dict.fromkeys((*did.get(hold.policy, ()), *hold.did)))
    return {policy: steps for policy, steps in did.items() if steps}


def remembered(session: Session, hold: PolicyHold) -> Session:
    """Keep in the session what a hold did that lets go while others hold the node."""
    if not hold.did:
        return session
    known = session.past.get(hold.policy, Past())
    did = tuple(dict.fromkeys((*known.did, *hold.did)))
    return replace(session, past={**session.past, hold.policy: Past(known.times + 1, did)})


def tries(hold: PolicyHold, step: int) -> int:
    """Return how often a step has ended so far."""
    return sum(one.step == step for one in hold.results) + hold.spent.get(step, 0)


def gone_back(hold: PolicyHold, at: int, now: float) -> PolicyHold:
    """Begin anew at an earlier step. All that follows is done again, under other keys."""
    again = {step: tries(hold, step) + 1 for step in range(at, hold.step + 1)}
    return replace(
        hold,
        step=at,
        step_since=now,
        state=HoldState.RUNNING,
        results=tuple(one for one in hold.results if one.step < at),
        undelivered=tuple(one for one in hold.undelivered if one < at),
        spent={**hold.spent, **again},
        tried=0,
    )


def message_key(session: Session, hold: PolicyHold, step: int) -> str:
    """Return the idempotency key of what a step sends or begins: another one for each retry.

    It is never used again within the session, not by a later hold of the same policy either:
    an outcome, or a Job that is still there, would be taken for what was not done yet.
    """
    key = f"{session.id}/{hold.policy}/{step}"
    number = tries(hold, step)
    if hold.nth:
        return f"{key}/{hold.nth}.{number}"
    return f"{key}/{number}" if number else key


def ended(hold: PolicyHold, action: str, result: Result, now: float, note: str = "") -> PolicyHold:
    """Record how the present step ended, and go on to the next."""
    noted = with_result(hold, action, result, now, note)
    return replace(noted, step=hold.step + 1, tried=0)


def with_result(
    hold: PolicyHold, action: str, result: Result, now: float, note: str = ""
) -> PolicyHold:
    """Record how the present step ended, and stay: nothing of it is under way any more."""
    note = cut(note, MAX_NOTE)
    one = StepResult(step=hold.step, action=action, result=result, at=now, note=note)
    noted = with_room(hold, one)
    return replace(noted, step_since=now, work_since=None, work_boot_id="")


def failed(
    draft: Draft, session: Session, hold: PolicyHold, *, step: Step, result: Result, note: str
) -> PolicyHold:
    """Record a failed step, and do what its ``onFailure`` says."""
    draft.act("record", hold.policy, f"{step.action} of {hold.policy} {result.value}: {note}")
    key = f"{message_key(session, hold, hold.step)}/failed"
    noted = with_result(hold, step.action, result, draft.now, note)
    said = replace(noted.results[-1], untold=key)
    noted = replace(noted, results=(*noted.results[:-1], said), tried=0)
    tell_failed(draft, noted, said)
    match step.after_failure:
        case OnFailure.CONTINUE:
            return replace(noted, step=hold.step + 1)
        case OnFailure.ESCALATE:
            return replace(noted, state=HoldState.ESCALATED)
        case _:
            return replace(noted, state=HoldState.HELD)
