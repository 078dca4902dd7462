"""How a session ends: recovered, cancelled or released by people, uncordoned by hand.

Only what the session says we added is undone. What people took over is *waived*:
no new session for those fault instances until they clear and return.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from remediator.decide.decision import NodePhase, Urgency
from remediator.decide.draft import Draft, World
from remediator.decide.look import Look
from remediator.decide.marks import put_back
from remediator.decide.match import MAX_INSTANCES, Answer, instance_answer
from remediator.decide.progress import gone_back, what_was_done
from remediator.decide.requests import Request, Verb
from remediator.decide.session import History, HoldState, PolicyHold, Result, Session, Waiver
from remediator.decide.work import stop_work
from remediator.policy.plan import parse_plan


REMIND_AFTER: Final = 3600.0
MAX_WAIVERS: Final = 64
ALL_FAULTS: Final = "*"
"""A waiver of all that a policy says of a node: where its fault instances are too many to name."""


def end(
    draft: Draft,
    session: Session,
    why: str,
    *,
    action: str,
    undo: bool,
    waived: Iterable[tuple[str, str]] = (),
) -> None:
    """End the session in this decision's one patch; keep in the history what must outlive it.

    ``waived``: policy and fault instance of what people took over.
    """
    holds = tuple(stop_work(draft.now, hold, why) for hold in session.holds)
    draft.ended = session = replace(session, holds=holds)
    ours = session.added.cordoned and not draft.facts.uncordoned
    if undo and ours and draft.facts.unschedulable:
        draft.unschedulable = False
    if undo and not draft.facts.untainted:
        draft.untaint = [one for one in session.added.taints if one in draft.facts.taints]
    if undo:
        put_back(draft, session)
    if draft.facts.approvals:
        draft.approvals = ()
    history, did = draft.history.lately(draft.now), what_was_done(session)
    if did:
        history = history.with_attempt(session.started, did)
    new = [Waiver(policy=policy, instance=one, at=draft.now, why=why) for policy, one in waived]
    draft.history = replace(history, waivers=_with(history.waivers, new), last=why)
    draft.session = None
    if action == "uncordon" and draft.unschedulable is None:
        action = "untaint" if draft.untaint else "record"  # it was cordoned before us, or stays so
    draft.act(action, session.holds[0].policy if session.holds else "", why)
    for hold in session.holds:
        _tell_end(draft, session, hold, "session ended", why)


def let_go(draft: Draft, session: Session, hold: PolicyHold, others: list[PolicyHold]) -> None:
    """Tell the people of a policy that let go of a node which others still hold."""
    draft.left.append(hold)
    names = ", ".join(other.policy for other in others)
    why = f"{', '.join(hold.reasons)} cleared; the session goes on for {names}"
    _tell_end(draft, session, hold, f"{hold.policy} let go", why)


def _tell_end(draft: Draft, session: Session, hold: PolicyHold, what: str, why: str) -> None:
    steps = parse_plan(hold.plan)
    draft.tell(
        f"{session.id}/{hold.policy}/end" + (f"/{hold.nth}" if hold.nth else ""),
        f"{draft.facts.name}: {what}",
        why,
        kind="end",
        to=steps.recover.notify or draft.channels(steps),
        policy=hold.policy,
        urgency=Urgency.INFO,
        resolves=True,
        owed=True,
    )


def present_faults(session: Session, look: Look) -> set[tuple[str, str]]:
    """Return all that a person who takes the node over sees on it: held and matching."""
    held = {(hold.policy, one) for hold in session.holds for one in hold.instances}
    matching = {
        (name, instance)
        for name, one in look.matched.items()
        if one.match.answer >= Answer.PENDING
        for instance in one.match.instances
    }
    return held | matching


def answer_request(draft: Draft, look: Look) -> bool:
    """Do what a person asked for by ``remediator VERB NODE``, and remove the request.

    Returns whether that ended the session. In the virtual world only a virtual
    session is answered for; the request itself is removed by the real one.
    """
    request, session = draft.facts.request, draft.session
    if request is None or (draft.world is World.VIRTUAL and session is None):
        return False
    draft.answered = True
    who = f"{request.by} ({request.reason})" if request.reason else request.by
    draft.act(request.verb.value, "", f"{request.verb} asked by {who}")
    match request.verb:
        case Verb.CANCEL if session is not None:
            why = f"cancelled by {who}"
            waived = present_faults(session, look)
            end(draft, session, why, action="cancel", undo=True, waived=waived)
            return True
        case Verb.RELEASE if session is not None:
            why = f"released to {who}: the node stays as it is"
            waived = present_faults(session, look)
            end(draft, session, why, action="release", undo=False, waived=waived)
            return True
        case Verb.RETRY:
            _retry(draft, look, session, request)
        case _:
            draft.why = f"{request.verb} asked by {who}: there was nothing to do"
    return False


def _retry(draft: Draft, look: Look, session: Session | None, request: Request) -> None:
    """Give stopped holds another try, and waived faults back to the policies."""
    draft.history = History(last=f"retry asked by {request.by}", owed=draft.history.owed)
    if session is None:
        return
    draft.session = replace(
        session,
        attempt=1,
        past={},
        holds=tuple(
            _tried_again(draft, look, hold)
            if hold.state in {HoldState.HELD, HoldState.ESCALATED}
            else hold
            for hold in session.holds
        ),
    )


def _tried_again(draft: Draft, look: Look, hold: PolicyHold) -> PolicyHold:
    """Let a stopped hold run. One whose attempts were used up gets the steps that it was denied."""
    one, failures = look.matched.get(hold.policy), {Result.FAILED, Result.TIMED_OUT}
    if one is not None and not failures.intersection(result.result for result in hold.results):
        policy = one.active.policy
        hold = gone_back(replace(hold, plan=policy.plan, version=policy.version), 0, draft.now)
    return replace(hold, state=HoldState.RUNNING, step_since=draft.now, untold="")


def unfreeze(draft: Draft, why: str) -> None:
    """Answer a frozen node: only people end it, by ``remediator unfreeze``.

    The unreadable annotation is dropped. Whether its cordon was ours can no longer
    be known, so it is now taken for a person's and stays.
    """
    draft.phase = NodePhase.FROZEN
    request = draft.facts.request
    if request is not None and draft.world is World.REAL:
        draft.answered = True
        draft.drop_session = request.verb is Verb.UNFREEZE
        said = "the unreadable session is dropped" if draft.drop_session else "it stays frozen"
        draft.act(request.verb.value, "", f"{request.verb} asked by {request.by}: {said}")
        if draft.drop_session:
            return
    draft.sentence = f"frozen: {why}; `remediator unfreeze {draft.facts.name}` drops it"
    if draft.world is World.VIRTUAL:
        return
    draft.tell(
        f"frozen/{draft.facts.uid}/{why}",
        f"{draft.facts.name} is frozen",
        f"{why}. Nothing is done to this node, and nothing undone, "
        f"until `remediator unfreeze {draft.facts.name}`.",
        kind="frozen",
        urgency=Urgency.CRITICAL,
    )


def keep_waivers(draft: Draft, look: Look) -> None:
    """Drop the waivers whose fault has cleared; remind people once of those that stay."""
    kept = []
    for waiver in draft.history.waivers:
        if _cleared(waiver, look, draft.now):
            continue
        due = waiver.at + REMIND_AFTER
        if waiver.reminded or draft.now < due:
            if not waiver.reminded:
                draft.due(waiver.policy, "people are reminded", due)
            kept.append(waiver)
            continue
        kept.append(replace(waiver, reminded=True))
        if draft.world is World.VIRTUAL:
            continue
        draft.tell(
            f"reminder/{draft.facts.uid}/{waiver.policy}/{waiver.at:.0f}",
            f"{draft.facts.name}: still faulty",
            f"{waiver.instance} is still there an hour after: {waiver.why}. "
            "It is left to people; this is the only reminder.",
            kind="reminder",
            to=_channels(draft, look, waiver.policy),
            policy=waiver.policy,
        )
    if tuple(kept) != draft.history.waivers:
        draft.history = replace(draft.history, waivers=tuple(kept))
        draft.act("record", "", "waived faults brought up to date")


def _channels(draft: Draft, look: Look, policy: str) -> tuple[str, ...]:
    """Return where a policy's people are told by what it says now; nowhere if it is gone."""
    one = look.matched.get(policy)
    return () if one is None else draft.channels(parse_plan(one.active.policy.plan))


def waived(history: History, policy: str, instances: tuple[str, ...]) -> bool:
    """Tell whether people took over every one of these fault instances."""
    if not history.waivers:
        return False
    known = {waiver.instance for waiver in history.waivers if waiver.policy == policy}
    return ALL_FAULTS in known or (bool(instances) and known.issuperset(instances))


def _cleared(waiver: Waiver, look: Look, now: float) -> bool:
    if waiver.instance != ALL_FAULTS:
        answer = instance_answer(waiver.instance, look.facts, now, look.cluster_facts)
        return answer is Answer.CLEAR
    one = look.matched.get(waiver.policy)
    return one is not None and one.match.answer is Answer.CLEAR


def _with(waivers: tuple[Waiver, ...], new: list[Waiver]) -> tuple[Waiver, ...]:
    """Add waivers. None is ever dropped for room: that would be to fight the person who gave it."""
    by_policy: dict[str, dict[str, Waiver]] = {}
    for one in (*waivers, *new):
        by_policy.setdefault(one.policy, {})[one.instance] = one
    while True:
        most = max(by_policy.values(), key=len, default={})
        total = sum(map(len, by_policy.values()))
        if len(most) < MAX_INSTANCES and (total <= MAX_WAIVERS or len(most) <= 1):
            return tuple(one for named in by_policy.values() for one in named.values())
        last = max(most.values(), key=lambda one: one.at)
        by_policy[last.policy] = {ALL_FAULTS: replace(last, instance=ALL_FAULTS)}
