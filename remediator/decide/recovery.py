"""When one policy lets go of a node: positive evidence, newer than its last step, for long enough.

Asked of the hold's own fault instances, so that a policy that was edited or
replaced meanwhile cannot make a faulty node look well.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from remediator.decide.decision import Hold
from remediator.decide.draft import Draft
from remediator.decide.facts import OWN_CONDITIONS, ConditionFact, NodeFacts
from remediator.decide.instances import instance_answer, instance_doubt, queries_of, speaker
from remediator.decide.look import attempt_within
from remediator.decide.match import Answer, Match
from remediator.decide.session import HoldState, PolicyHold, Result
from remediator.policy.model import RecoverWhen
from remediator.policy.plan import Plan
from remediator.policy.quantities import format_duration
from remediator.policy.steps import CHANGES, WORKS


LONGEST: Final = 4 * 3600.0
"""Seconds that a node which came back must be well at most, unless ``recover.for`` is longer."""
MAX_DOUBLINGS: Final = 20
_FELT: Final = frozenset({*CHANGES, *WORKS} - {"drain"})
"""What is said of the node after these tells of their effect. A drain changes no hardware."""


class Recovery(Enum):
    """Where one hold stands on its way to an end."""

    FAULTY = auto()
    """The fault is there, or it cannot be told."""
    FROZEN = auto()
    """People silenced its alert: no step, and no undo."""
    CLEARING = auto()
    """Clear, but not yet for long enough, or it ends by hand."""
    UNDO = auto()
    """Over: what was added for it goes, unless another policy holds it."""
    KEEP = auto()
    """Over, and what was added stays, as the policy says (``recover.when: never``)."""


def recovery(draft: Draft, hold: PolicyHold, plan: Plan, match: Match | None) -> Recovery:
    """Tell where a hold stands, and remember since when it has been clear."""
    key = (hold.policy, draft.facts.uid)
    clear_since = draft.ledger.clear_since
    if hold.state is HoldState.ESCALATED or not _over(draft, hold, match):
        clear_since.pop(key, None)
        return Recovery.FAULTY
    waits = _waits(draft, hold)
    if waits:
        clear_since.pop(key, None)
        draft.hold(Hold(hold.policy, "recovery", f"clear, and waits {waits}"))
        return Recovery.FAULTY
    spoken = _speakers(hold.instances, draft.facts)
    since = clear_since.setdefault(key, draft.now)
    since = max([since, *(one.since for one in spoken)])  # a gap of our watch restarts all ages
    lasts = _lasts(draft, hold, plan)
    due = since + lasts
    if plan.recover.when is RecoverWhen.MANUAL:
        _ask_people(draft, hold, plan)
        return Recovery.CLEARING
    if draft.now >= due:
        return Recovery.KEEP if plan.recover.when is RecoverWhen.NEVER else Recovery.UNDO
    for one in spoken:
        if one.type in OWN_CONDITIONS:
            draft.look_at(one.fresh_until)  # silence until then would interrupt it
    why = f"clear, and must stay so for {format_duration(lasts)}"
    if lasts > plan.recover.for_:
        why += (
            f": {format_duration(plan.recover.for_)}, doubled for each attempt before within 24 h"
        )
    draft.hold(Hold(hold.policy, "recovery", why, due))
    return Recovery.CLEARING


def _lasts(draft: Draft, hold: PolicyHold, plan: Plan) -> float:
    """Return how long a node must be well: twice as long each time that help did not last.

    Where the policy took capacity away or worked: else nothing is given back too soon.
    """
    least = plan.recover.for_
    if draft.session is None or not hold.did:
        return least
    earlier = min(attempt_within(draft.session, hold.policy) - 1, MAX_DOUBLINGS)
    return max(least, min(least * 2.0**earlier, LONGEST))


def _over(draft: Draft, hold: PolicyHold, match: Match | None) -> bool:
    """Tell whether all of a hold's faults are said to be over."""
    facts, now, known = draft.facts, draft.now, draft.cluster_facts
    if match is not None and match.answer >= Answer.PENDING:
        return False
    answers = [instance_answer(one, facts, now, known) for one in hold.instances]
    return bool(answers) and all(one is Answer.CLEAR for one in answers)


def _waits(draft: Draft, hold: PolicyHold) -> str:
    """Say for what a recovery waits before its time begins to run; "" for nothing."""
    if not draft.facts.ready:
        return "for the node to be Ready"
    if not _newer_than_last_step(draft, hold):
        return "for what is said of the node next: all of it is older than the last change of it"
    return ""


def _newer_than_last_step(draft: Draft, hold: PolicyHold) -> bool:
    """Tell whether the conditions' writers have spoken since we last changed the node.

    Ours prove it by their heartbeat. Others may renew none: a status that we saw begin
    after the step is their word.
    """
    changes = (
        one.at for one in hold.results if one.action in _FELT and one.result is not Result.CANCELLED
    )
    last = max(changes, default=hold.since)
    return all(
        one.seen > last or (one.type not in OWN_CONDITIONS and one.since > last)
        for one in _speakers(hold.instances, draft.facts)
    ) and all(one.seen > last for one in queries_of(hold.instances, draft.facts))


def silent(draft: Draft, hold: PolicyHold) -> str:
    """Say which writer that speaks for the hold's faults has not been heard for too long."""
    facts, now = draft.facts, draft.now
    if any(not one.fresh(now) for one in _speakers(hold.instances, facts)):
        return "its agent is silent"
    doubts = (instance_doubt(one, facts, now, draft.cluster_facts) for one in hold.instances)
    return next(filter(None, doubts), "")


def unproven(draft: Draft, hold: PolicyHold) -> bool:
    """Tell whether a hold's faults are not said any more, and nothing will prove that they went.

    Such is an alert without a watchdog, or a query without ``clearedBy``.
    """
    facts, now, known = draft.facts, draft.now, draft.cluster_facts
    answers = {one: instance_answer(one, facts, now, known) for one in hold.instances}
    return Answer.HOLDS not in answers.values() and any(
        answer is Answer.UNKNOWN and not speaker(one) for one, answer in answers.items()
    )


def _speakers(instances: tuple[str, ...], facts: NodeFacts) -> list[ConditionFact]:
    names = {speaker(instance) for instance in instances}
    return [facts.conditions[name] for name in names if name in facts.conditions]


def _ask_people(draft: Draft, hold: PolicyHold, plan: Plan) -> None:
    name, session = draft.facts.name, draft.session
    why = f"clear; recover.when is manual: `remediator cancel {name}` undoes it"
    draft.hold(Hold(hold.policy, "recovery", why))
    draft.tell(
        f"{session.id if session else draft.facts.uid}/{hold.policy}/clear",
        f"{name}: the fault has cleared",
        f"Policy {hold.policy} ends by hand: `remediator cancel {name}` undoes what it did.",
        kind="clear",
        to=draft.channels(plan),
        policy=hold.policy,
        notice=True,
    )
