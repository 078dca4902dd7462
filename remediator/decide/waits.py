"""Steps that only wait: for a time, for a node condition, for a person's approval.

An approval is bound to the session, the policy and the step, and has an expiry: one that was
given for an earlier session says nothing about this one. None in time never means yes.
"""

from __future__ import annotations

from remediator.decide.decision import Hold
from remediator.decide.draft import Draft, World
from remediator.decide.facts import NodeMode
from remediator.decide.progress import ended, failed, message_key
from remediator.decide.requests import Approval
from remediator.decide.session import PolicyHold, Result, Session
from remediator.decide.work import assumed_seconds
from remediator.policy.plan import Plan
from remediator.policy.quantities import format_duration
from remediator.policy.steps import Approve, NodeConditionWait, Step


def go_on_waiting(
    draft: Draft, session: Session, hold: PolicyHold, *, step: Step, plan: Plan
) -> PolicyHold:
    """Return the hold as it is, or moved on: what it waits for has come, or has not in time."""
    if draft.facts.mode is NodeMode.NOTIFY_ONLY:
        note = "the node says notify-only"
        return ended(hold, step.action, Result.CANCELLED, draft.now, note)
    if step.wait is not None and step.wait.for_ is not None:
        return _time(draft, hold, step, hold.step_since + step.wait.for_)
    if step.wait is not None and step.wait.condition is not None:
        return _condition(draft, session, hold, step, step.wait.condition)
    return _approval(draft, session, hold, step, plan)


def _time(draft: Draft, hold: PolicyHold, step: Step, due: float) -> PolicyHold:
    if draft.now < due:
        draft.due(hold.policy, "the wait is over", due)
        return hold
    return ended(hold, step.action, Result.DONE, draft.now)


def _condition(
    draft: Draft, session: Session, hold: PolicyHold, step: Step, wanted: NodeConditionWait
) -> PolicyHold:
    fact, now = draft.facts.conditions.get(wanted.type), draft.now
    deadline = hold.step_since + step.limit
    has = (
        fact is not None
        and fact.status == wanted.status
        and (not wanted.reasons or fact.reason in wanted.reasons)
        and fact.fresh(now)
    )
    if has and fact is not None:
        due = fact.since + wanted.for_
        if now >= due:
            note = f"{wanted.type}={fact.status} ({fact.reason})"
            return ended(hold, step.action, Result.DONE, now, note)
        draft.due(hold.policy, f"{wanted.type}={wanted.status} has lasted long enough", due)
    if draft.world is World.VIRTUAL:
        return _time(draft, hold, step, hold.step_since + assumed_seconds(step.action))
    if now >= deadline:
        note = f"the node did not become {wanted.type}={wanted.status} in time"
        return failed(draft, session, hold, step=step, result=Result.TIMED_OUT, note=note)
    draft.due(hold.policy, f"no {wanted.type}={wanted.status} in time", deadline)
    return hold


def _approval(
    draft: Draft, session: Session, hold: PolicyHold, step: Step, plan: Plan
) -> PolicyHold:
    if draft.world is World.VIRTUAL:
        note = "assumed in dry-run: people would be asked"
        return ended(hold, step.action, Result.DONE, draft.now, note)
    given = find_approval(draft, session, hold)
    if given is not None:
        use_up(draft, session, hold.policy, hold.step)
        said = f"step {hold.step + 1} of {hold.policy} {given.note}"
        draft.act("record", hold.policy, said)
        return ended(hold, step.action, Result.DONE, draft.now, given.note)
    deadline = hold.step_since + step.limit
    if draft.now >= deadline:
        note = f"nobody approved it within {format_duration(step.limit)}"
        return failed(draft, session, hold, step=step, result=Result.TIMED_OUT, note=note)
    how = f"`remediator approve {draft.facts.name} --policy {hold.policy}`"
    why = f"waits for a person: {how}{_unfit(draft, session, hold)}"
    draft.hold(Hold(hold.policy, "approval", why, deadline))
    _ask(draft, message_key(session, hold, hold.step), hold, step=step, plan=plan, how=how)
    return hold


def use_up(draft: Draft, session: Session, policy: str, step: int | None = None) -> None:
    """Remove all approvals of a step, or of all steps of a policy: none counts twice."""
    known = draft.facts.approvals if draft.approvals is None else draft.approvals
    left = tuple(
        one
        for one in known
        if (one.session, one.policy) != (session.id, policy) or step not in {None, one.step}
    )
    if left != known:
        draft.approvals = left


def find_approval(draft: Draft, session: Session, hold: PolicyHold) -> Approval | None:
    """Return an approval of the hold's present step that has not expired, if there is one."""
    left = draft.facts.approvals if draft.approvals is None else draft.approvals
    for one in left:
        if (one.session, one.policy, one.step) != (session.id, hold.policy, hold.step):
            continue
        if one.expires_at > draft.now:
            return one
    return None


def _unfit(draft: Draft, session: Session, hold: PolicyHold) -> str:
    """Say of the newest approval that nothing goes on by why that is; "" if there is none."""
    for one in reversed(draft.facts.approvals if draft.approvals is None else draft.approvals):
        whose = f"; the approval of {one.by}"
        if one.session != session.id:
            return f"{whose} is for another session"
        if one.policy == hold.policy and one.step != hold.step:
            return f"{whose} is for step {one.step + 1}, and this is step {hold.step + 1}"
        if one.policy == hold.policy:
            return f"{whose} has expired, or its time cannot be read"
    return ""


def _ask(draft: Draft, key: str, hold: PolicyHold, *, step: Step, plan: Plan, how: str) -> None:
    asked = step.approve or Approve()
    coming = [one.action for one in plan.steps[hold.step + 1 :]]
    then = f"Then: {', '.join(coming)}. " if coming else ""
    draft.tell(
        f"{key}/approval",
        f"{draft.facts.name}: approval needed",
        f"Policy {hold.policy} waits for a person ({', '.join(hold.reasons)}). {then}"
        f"{how} lets it go on within {format_duration(step.limit)}. {asked.message}".rstrip(),
        kind="approval",
        to=asked.to or draft.channels(plan),
        policy=hold.policy,
    )
