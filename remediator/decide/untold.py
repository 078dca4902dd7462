"""What people must hear of a session under way: at least once, over any restart.

A step failed, automation ended, a further fault joined. What says so, mostly the message's key,
is in the hold from the patch that makes it true until it is known to have arrived, or to be
given up. Until then every decision sends it again, under that key, which the shell takes once. So
it is said again by the next leader if the process died in between, and not a second time by the
one after that.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from remediator.decide.decision import Outcome, Urgency
from remediator.decide.draft import Draft
from remediator.decide.instances import code_of
from remediator.decide.session import PolicyHold, Session, StepResult
from remediator.policy.plan import Plan, parse_plan
from remediator.policy.steps import OnFailure


def tell_failed(draft: Draft, hold: PolicyHold, ended: StepResult, *, notice: bool = False) -> None:
    """Tell a policy's people that a step of it failed, and what comes then."""
    plan, name = parse_plan(hold.plan), draft.facts.name
    goes_on = plan.steps[ended.step].after_failure is OnFailure.CONTINUE
    then = (
        "The remediation goes on with the next step"
        if goes_on
        else f"The remediation stops here; `remediator retry {name}` runs the step again"
    )
    draft.tell(
        ended.untold,
        f"{name}: {ended.action} {ended.result.value}",
        f"{ended.note}. {then}.",
        kind="failed",
        to=draft.channels(plan),
        policy=hold.policy,
        step=ended.step,
        urgency=Urgency.WARNING if goes_on else Urgency.CRITICAL,
        notice=notice,
    )


def escalation_key(session: Session, hold: PolicyHold) -> str:
    """Return the key of the message that a hold escalated as it began."""
    return f"{session.id}/{hold.policy}/escalated" + (f"/{hold.nth}" if hold.nth else "")


def tell_escalated(
    draft: Draft, hold: PolicyHold, policy: Plan, attempt: int, *, notice: bool = False
) -> None:
    """Tell a policy's people that its attempts are used up. ``policy``: all that it would do."""
    name = draft.facts.name
    draft.tell(
        hold.untold,
        f"{name}: escalated",
        f"{', '.join(hold.reasons)} came back for attempt {attempt} within 24 h. "
        f"Automation has ended; `remediator retry {name}` starts it again.",
        kind="escalated",
        to=draft.channels(policy),
        policy=hold.policy,
        step=hold.step,
        urgency=Urgency.CRITICAL,
        notice=notice,
    )


def with_joined(hold: PolicyHold, before: PolicyHold) -> PolicyHold:
    """Remember which codes joined a hold since ``before``, if its people were told of it by then.

    Were they not, their message is still to come and names these, too. A further alert or
    condition joins in silence: its own source tells of it. So does a code again on its GPU.
    """
    steps = parse_plan(hold.plan).steps[: before.step]
    if hold.instances == before.instances or not any(step.tells for step in steps):
        return hold
    known = {code_of(one) for one in before.instances}
    new = (code_of(one) for one in hold.instances[len(before.instances) :])
    joined = (said for said in new if said and said not in known)
    return replace(hold, joined=tuple(dict.fromkeys((*hold.joined, *joined))))


def tell_joined(draft: Draft, session: Session, hold: PolicyHold) -> None:
    """Tell a policy's people of the faults that joined: no step of it will."""
    if not hold.joined:
        return
    name = draft.facts.name
    # With the patch that remembers it; once that is written, whether or not there is another.
    known = draft.facts.session
    before = known.hold(hold.policy) if isinstance(known, Session) else None
    draft.tell(
        _joined_key(session, hold),
        f"{name}: {', '.join(hold.joined)} joined",
        f"Policy {hold.policy} holds the node already: none of its steps begins anew, and the"
        " node recovers when all its faults are over.",
        kind="joined",
        to=draft.channels(parse_plan(hold.plan)),
        policy=hold.policy,
        notice=before is not None and before.joined == hold.joined,
    )


def _joined_key(session: Session, hold: PolicyHold) -> str:
    nth = f"/{hold.nth}" if hold.nth else ""
    return f"{session.id}/{hold.policy}/joined{nth}/{len(hold.instances)}"


def tell_again(draft: Draft, hold: PolicyHold, policy: Plan, attempt: int) -> None:
    """Say again what is not known to have arrived."""
    for one in hold.results:
        if one.untold:
            tell_failed(draft, hold, one, notice=True)
    if hold.untold:
        tell_escalated(draft, hold, policy, attempt, notice=True)


def heard(session: Session, hold: PolicyHold, outcomes: Mapping[str, Outcome]) -> PolicyHold:
    """Take in which of it arrived, or was given up."""
    if hold.joined and _joined_key(session, hold) in outcomes:
        hold = replace(hold, joined=())
    if hold.untold in outcomes:
        hold = replace(hold, untold="")
    if not any(one.untold in outcomes for one in hold.results):
        return hold
    results = (replace(one, untold="") if one.untold in outcomes else one for one in hold.results)
    return replace(hold, results=tuple(results))
