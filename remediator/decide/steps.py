"""One policy's steps on one node: from where its hold stands to where it can go now.

Each kind of step has its room: changes of the node are :mod:`changes`, what takes time is
:mod:`work`, what only waits :mod:`waits`; tellings are here.

A step that must be waited for stops here and says until when. A step that is
held by a guard stops here without its deadline running: waiting is not failing.
Messages and events are marked ``undelivered`` in the same write that moves past
them, and sent again under the same key until their outcome is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from remediator.decide.changes import change, is_made
from remediator.decide.decision import (
    NOT_ASKED,
    Hold,
    Outcome,
    SendMessage,
    Urgency,
    WriteEvent,
)
from remediator.decide.draft import UNTOUCHED, Draft
from remediator.decide.facts import NodeFacts, NodeMode
from remediator.decide.match import Match
from remediator.decide.progress import acted, ended, failed, message_key
from remediator.decide.refusals import REFUSED, Refused
from remediator.decide.session import HoldState, PolicyHold, Result, Session, StepResult
from remediator.decide.waits import go_on_waiting
from remediator.decide.work import go_on_with_work, taken
from remediator.policy.plan import Plan
from remediator.policy.steps import OnFailure, Step


TAKE_OUT: Final = "cordon"
"""Rates count a node that is taken out of service as a cordon, by whichever step it is."""


def wants(
    facts: NodeFacts, session: Session | None, hold: PolicyHold | None, plan: Plan
) -> str | None:
    """Return what the guards are to be asked about for a policy's next step, or None.

    Steps that nobody waits for are passed on the way, as :func:`advance` does.
    """
    if facts.mode is NodeMode.NOTIFY_ONLY:
        return None
    if hold is not None and (hold.state is not HoldState.RUNNING or hold.work_since is not None):
        return None
    name = hold.policy if hold is not None else ""
    for step in plan.steps[hold.step if hold is not None else 0 :]:
        if step.disruptive and not is_made(facts, session, step):
            return TAKE_OUT
        if step.works:
            busy = taken(session, step.work_class, other_than=name)
            return None if busy else step.work_class
        if not (step.changes_node or (step.tells and step.after_failure is OnFailure.CONTINUE)):
            break
    return None


def advance(
    draft: Draft,
    session: Session,
    hold: PolicyHold,
    *,
    plan: Plan,
    match: Match,
    verdict: Hold | None,
    outcomes: Mapping[str, Outcome],
) -> tuple[Session, PolicyHold]:
    """Run a hold's steps as far as they go now. Returns the session and the hold after it."""
    asked = _asked(draft.facts, hold, plan)
    while hold.state is HoldState.RUNNING and hold.step < len(plan.steps):
        step, at = plan.steps[hold.step], hold.step
        answer = verdict if verdict is not None or asked == _class(step) else NOT_ASKED
        if step.changes_node:
            made = _change(draft, session, hold, step=step, match=match, verdict=answer)
            session, hold = made or (session, hold)
        elif step.works:
            hold = go_on_with_work(
                *(draft, session, hold),
                step=step,
                match=match,
                verdict=answer,
                outcomes=outcomes,
            )
        elif step.tells:
            hold = _tell(draft, session, hold, step, outcomes)
        else:
            hold = go_on_waiting(draft, session, hold, step=step, plan=plan)
        if hold.step == at:
            break
    if hold.state is HoldState.RUNNING and hold.step >= len(plan.steps):
        hold = replace(hold, state=HoldState.DONE)
    return session, hold


def _asked(facts: NodeFacts, hold: PolicyHold, plan: Plan) -> str | None:
    """Return what the guards were asked about for this policy, before anything was decided."""
    session = facts.session if isinstance(facts.session, Session) else None
    return wants(facts, session, session.hold(hold.policy) if session else None, plan)


def _class(step: Step) -> str:
    """Return what the guards are asked about before a step."""
    return step.work_class if step.works else TAKE_OUT


def resend(draft: Draft, session: Session, hold: PolicyHold, plan: Plan) -> None:
    """Emit again what is not known to be delivered. The same key is sent once by the shell."""
    for at in hold.undelivered:
        draft.notices.append(_telling(draft, session, hold, plan.steps[at], at))


def record(
    session: Session, hold: PolicyHold, plan: Plan, outcomes: Mapping[str, Outcome], now: float
) -> PolicyHold:
    """Take in what became of messages and events that nobody waits for."""
    for at in hold.undelivered:
        outcome = outcomes.get(message_key(session, hold, at))
        if outcome is None or at == hold.step:
            continue
        result = Result.DONE if outcome.delivered else Result.FAILED
        ended = StepResult(
            step=at, action=plan.steps[at].action, result=result, at=now, note=outcome.note
        )
        hold = replace(
            hold,
            results=(*hold.results, ended),
            undelivered=tuple(other for other in hold.undelivered if other != at),
        )
    return hold


def _change(
    draft: Draft,
    session: Session,
    hold: PolicyHold,
    *,
    step: Step,
    match: Match,
    verdict: Hold | None,
) -> tuple[Session, PolicyHold] | None:
    """Change the node, where it may be changed; None where it has to wait."""
    now = draft.now
    if draft.facts.mode is NodeMode.NOTIFY_ONLY:
        note = "the node says notify-only"
        return session, ended(hold, step.action, Result.CANCELLED, now, note)
    takes_back = step.uncordon is not None or step.untaint is not None
    if takes_back or (match.holds and not (step.disruptive and verdict is not None)):
        refused = draft.ledger.refusals.of_step(hold.policy, draft.facts.uid, hold.step, now)
        if refused is not None and now >= refused.since + step.limit:
            why = f"the API server refuses it: {refused.why}"
            return session, failed(draft, session, hold, step=step, result=Result.FAILED, note=why)
        if _waits_for_server(draft, hold, step, refused):
            return None
    before = draft.changed
    made = change(draft, session, hold, step=step, match=match, verdict=verdict)
    if made is None:
        return None
    if draft.changed != before:
        draft.changed_by(hold.policy, hold.step, before=before)
    changed, note = made
    if step.disruptive and changed.added != session.added:
        hold = acted(hold, step)
    return changed, ended(hold, step.action, Result.DONE, now, note)


def _waits_for_server(draft: Draft, hold: PolicyHold, step: Step, refused: Refused | None) -> bool:
    """Leave a change out of this patch that was refused, or that may spoil another one."""
    now = draft.now
    if refused is not None and now < refused.again:
        look = min(refused.again, refused.since + step.limit)
        why = f"the API server refuses this {step.action}: {refused.why}"
        draft.hold(Hold(hold.policy, REFUSED, why, look))
        return True
    if draft.changed != UNTOUCHED and draft.ledger.refusals.singly(draft.facts.uid, now):
        why = "the API server refused several changes at once: each is written for itself"
        draft.hold(Hold(hold.policy, REFUSED, why))
        return True
    return False


def _tell(
    draft: Draft,
    session: Session,
    hold: PolicyHold,
    step: Step,
    outcomes: Mapping[str, Outcome],
) -> PolicyHold:
    """Send a message or event; wait for its outcome only where a failure matters."""
    at, now = hold.step, draft.now
    if step.after_failure is OnFailure.CONTINUE:
        draft.effects.append(_telling(draft, session, hold, step, at))
        undelivered = (*(one for one in hold.undelivered if one != at), at)
        return replace(hold, step=at + 1, step_since=now, undelivered=undelivered)
    outcome = outcomes.get(message_key(session, hold, at))
    deadline = hold.step_since + step.limit
    if outcome is None and now < deadline:
        draft.due(hold.policy, f"no answer to {step.action} in time", deadline)
        draft.effects.append(_telling(draft, session, hold, step, at))
        return hold
    if outcome is not None and outcome.delivered:
        return ended(hold, step.action, Result.DONE, now)
    result = Result.TIMED_OUT if outcome is None else Result.FAILED
    note = outcome.note if outcome is not None else "no outcome before its deadline"
    return failed(draft, session, hold, step=step, result=result, note=note)


def _telling(
    draft: Draft, session: Session, hold: PolicyHold, step: Step, at: int
) -> SendMessage | WriteEvent:
    """Return the message or event of a step."""
    key = message_key(session, hold, at)
    said = ", ".join(hold.reasons)
    name = draft.facts.name
    if step.event is not None:
        return WriteEvent(
            key=key,
            node=name,
            uid=draft.facts.uid,
            reason=step.event.reason,
            message=_with_own(f"policy {hold.policy}: {said}", step.event.message),
            policy=hold.policy,
            step=at,
        )
    own = step.notify.message if step.notify is not None else ""
    return SendMessage(
        key=key,
        to=step.notify.to if step.notify is not None else (),
        title=f"{name}: {said}",
        text=_with_own(f"policy {hold.policy} holds this node ({_state(session)})", own),
        node=name,
        policy=hold.policy,
        step=at,
        urgency=Urgency.WARNING,
    )


def _state(session: Session) -> str:
    """Say what was done to the node, for people."""
    cordoned = session.added.cordoned or session.before.cordoned
    tainted = [f"{one.key}:{one.effect}" for one in session.added.taints]
    state = "cordoned" if cordoned else "not cordoned"
    return f"{state}, tainted {', '.join(tainted)}" if tainted else state


def _with_own(text: str, own: str) -> str:
    """Add what the policy's author wrote."""
    return f"{text}. {own}" if own else text
