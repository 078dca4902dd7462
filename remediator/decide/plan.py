"""Stage 3, *plan*: from a node's session, its matches and the guards' answers to what happens now.

The order says who wins: a node that is going away or opted out is left alone; an
unreadable session freezes it; a person's request (answered even where the node opted
out) or uncordon comes before any policy; the end of a fault comes before further
steps; new faults come last.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from remediator.decide.admit import Verdicts
from remediator.decide.begin import begin, tell_held
from remediator.decide.changes import left_in_place, let_go_of_changes, make_again
from remediator.decide.decision import (
    NOT_ASKED,
    Decision,
    Hold,
    NodePhase,
    Outcome,
    PatchNode,
)
from remediator.decide.draft import Draft, World
from remediator.decide.endings import (
    answer_request,
    end,
    keep_waivers,
    let_go,
    present_faults,
    unfreeze,
)
from remediator.decide.facts import NodeMode
from remediator.decide.guards.silence import SILENCE
from remediator.decide.instances import silenced
from remediator.decide.ledger import Ledger
from remediator.decide.look import (
    Look,
    Matched,
    attempt_within,
    uncordoned,
    untainted,
    unusable_session,
)
from remediator.decide.match import MAX_INSTANCES, Answer, Match
from remediator.decide.notices import tell_if_stale, tell_if_unproven, tell_refused
from remediator.decide.orphans import orphaned
from remediator.decide.owed import tell_owed
from remediator.decide.progress import remembered
from remediator.decide.recovery import Recovery, recovery
from remediator.decide.refusals import REFUSED
from remediator.decide.session import (
    MODE_KEY,
    HoldState,
    PolicyHold,
    Session,
)
from remediator.decide.steps import advance, record, resend
from remediator.decide.untold import heard, tell_again, tell_joined, with_joined
from remediator.decide.waits import use_up
from remediator.decide.work import running, stop_work, under_way, works_of
from remediator.policy.drain import OnRecovery
from remediator.policy.plan import Plan, parse_plan
from remediator.policy.steps import Step


def plan(
    look: Look,
    verdicts: Verdicts,
    *,
    ledger: Ledger,
    outcomes: Mapping[str, Outcome],
    world: World,
    now: float,
) -> Decision:
    """Decide about one node. Pure but for the ledger's memory."""
    facts = look.facts
    session = facts.session if isinstance(facts.session, Session) else None
    draft = Draft(
        facts=facts,
        world=world,
        ledger=ledger,
        now=now,
        session=session,
        history=facts.history,
        cluster_facts=look.cluster_facts,
    )
    if session is not None and not unusable_session(facts):
        draft.under_way = under_way(facts)
        draft.working = {step.work_class: hold.policy for hold, step in works_of(session)}
        if draft.working:
            draft.policies = {name: one.active.policy for name, one in look.matched.items()}
    draft.look_at(look.next_look)
    for name, one in look.matched.items():
        if one.match.answer is Answer.PENDING and one.match.next_look is not None:
            draft.due(name, "the fault has lasted long enough", one.match.next_look)
    _plan(draft, look, verdicts, outcomes)
    tell_refused(draft)
    tell_owed(draft, outcomes)
    holding = look.holding
    admitted = any(verdicts.get((facts.uid, name), NOT_ASKED) is None for name in look.matched)
    if admitted and not draft.disruptive:
        ledger.refund(facts.uid)
    decision = draft.finish(
        matched=tuple(one.active.policy.name for one in holding),
        reasons=tuple(dict.fromkeys(said for one in holding for said in one.match.reasons)),
        failed=tuple(
            (name, one.match.error) for name, one in look.matched.items() if one.match.error
        ),
    )
    if ledger.refusals.known(facts.uid) and not _wants_to_write(decision):
        ledger.refusals.forget(facts.uid)
    return decision


def _wants_to_write(decision: Decision) -> bool:
    return any(isinstance(one, PatchNode) for one in decision.effects) or any(
        one.guard == REFUSED for one in decision.holds
    )


def _plan(draft: Draft, look: Look, verdicts: Verdicts, outcomes: Mapping[str, Outcome]) -> None:
    facts = draft.facts
    if facts.deleting:
        draft.phase, draft.sentence = NodePhase.LEFT_ALONE, "the node is being deleted"
        return
    unusable = unusable_session(facts)
    opted_out = facts.mode is NodeMode.DISABLED
    if unusable and (not opted_out or facts.request is not None):
        unfreeze(draft, unusable)
        return
    if answer_request(draft, look):
        return
    if opted_out:
        draft.phase, draft.sentence = NodePhase.LEFT_ALONE, f"the node says {MODE_KEY}: disabled"
        draft.suspend()
        return
    session = draft.session
    if session is not None and _taken_back(draft, session, look):
        return
    if session is not None and not _go_on(draft, session, look, verdicts, outcomes):
        return
    begin(draft, look, verdicts, outcomes)
    keep_waivers(draft, look)
    _name_phase(draft, look)


def _taken_back(draft: Draft, session: Session, look: Look) -> bool:
    """Yield to a person who took away what we had added, and to what they add after that.

    An uncordon says "back into service": our taints go, too. A taint that is taken away,
    perhaps by a tool that keeps a list of its own, does not say so much: the rest stays.
    """
    by_uncordon = uncordoned(draft.facts, session)
    if not by_uncordon and not untainted(draft.facts, session):
        return False
    what = "uncordoned by hand" if by_uncordon else "a taint was removed by hand"
    why = f"{what}: the session is cancelled, and this fault is left to people"
    faults = present_faults(session, look)
    end(draft, session, why, action="cancel", undo=by_uncordon, waived=faults)
    draft.phase = NodePhase.WAIVED
    return True


def _go_on(
    draft: Draft,
    session: Session,
    look: Look,
    verdicts: Verdicts,
    outcomes: Mapping[str, Outcome],
) -> bool:
    """Bring every hold of a session forward. False: none is left, and the session has ended."""
    session = make_again(draft, session)
    kept: list[PolicyHold] = []
    gone: list[PolicyHold] = []
    undo = False
    for held in session.holds:
        steps = parse_plan(held.plan)
        hold = heard(session, record(session, held, steps, outcomes, draft.now), outcomes)
        matched = look.matched.get(hold.policy)
        if matched is None:
            hold = orphaned(draft, session, hold, steps)
            kept.append(hold)
            session = _with(session, hold)
            continue
        hold = with_joined(_with_new_instances(hold, matched.match), hold)
        where = _where(draft, hold, steps, matched.match, look.silenced)
        if where not in {Recovery.FAULTY, Recovery.FROZEN}:
            hold = stop_work(draft.now, hold, "the fault has cleared")
        if where in {Recovery.UNDO, Recovery.KEEP}:
            undo = undo or where is Recovery.UNDO
            session = session if where is Recovery.UNDO else left_in_place(session, hold)
            gone.append(hold)
            session = _let_go(session, hold)
            use_up(draft, session, hold.policy)
            continue
        resend(draft, session, hold, steps)
        policy = parse_plan(matched.active.policy.plan)
        tell_again(draft, hold, policy, attempt_within(session, hold.policy))
        if where is Recovery.FAULTY:
            verdict = verdicts.get((draft.facts.uid, hold.policy), NOT_ASKED)
            session, hold = _further(draft, session, hold, matched, verdict, outcomes)
        kept.append(hold)
        session = _with(session, hold)
    if not kept:
        _recovered(draft, replace(session, holds=tuple(gone)), undo=undo)
        return False
    if gone:
        session = let_go_of_changes(draft, session, kept)
    for hold in gone:
        let_go(draft, session, hold, kept)
    draft.session = replace(session, holds=tuple(kept))
    if draft.session != draft.facts.session:
        draft.act("record", kept[0].policy, "progress recorded")
    return True


def _with(session: Session, hold: PolicyHold) -> Session:
    """Show the holds that come next what this one wants by now."""
    return replace(
        session,
        holds=tuple(hold if one.policy == hold.policy else one for one in session.holds),
    )


def _let_go(session: Session, hold: PolicyHold) -> Session:
    """Take a hold out, and remember it: the policy's next one in this session is another one."""
    return replace(
        remembered(session, hold),
        holds=tuple(one for one in session.holds if one.policy != hold.policy),
        let_go={**session.let_go, hold.policy: hold.nth + 1},
    )


def _further(  # noqa: PLR0917 - what one hold is decided by
    draft: Draft,
    session: Session,
    hold: PolicyHold,
    matched: Matched,
    verdict: Hold | None,
    outcomes: Mapping[str, Outcome],
) -> tuple[Session, PolicyHold]:
    """Run the steps of a hold whose fault is there, or may be."""
    tell_joined(draft, session, hold)
    steps = parse_plan(hold.plan)
    session, hold = advance(
        draft,
        session,
        hold,
        plan=steps,
        match=matched.match,
        verdict=verdict,
        outcomes=outcomes,
    )
    if verdict is not None and hold.state is HoldState.RUNNING:
        tell_held(draft, matched, verdict)
    tell_if_stale(draft, session, hold, steps)
    tell_if_unproven(draft, session, hold, steps, edited=_edited(hold, matched))
    return session, hold


def _recovered(draft: Draft, session: Session, *, undo: bool) -> None:
    """End a session that no policy needs any more."""
    stays = draft.facts.unschedulable and not (undo and session.added.cordoned)
    why = "recovered; the node stays cordoned" if stays else "recovered"
    end(draft, session, why, action="uncordon", undo=undo)
    draft.phase = NodePhase.RECOVERING


def _where(draft: Draft, hold: PolicyHold, steps: Plan, match: Match, silence: str) -> Recovery:
    """Tell where a hold stands. Work that was begun is seen through: half a reset is none."""
    if _left_alone(draft, hold, silence):
        return Recovery.FROZEN
    step = running(hold)
    if step is not None and not _stops_when_clear(step):
        draft.ledger.clear_since.pop((hold.policy, draft.facts.uid), None)
        return Recovery.FAULTY
    return recovery(draft, hold, steps, match)


def _stops_when_clear(step: Step) -> bool:
    """Tell whether a step's work ends with the fault: a drain does, unless it says otherwise."""
    return step.drain is not None and step.drain.on_recovery is OnRecovery.STOP


def _left_alone(draft: Draft, hold: PolicyHold, silence: str) -> bool:
    """Freeze a hold where people silenced an alert: no step, no undo, and its work stops.

    One that policies name, or that this hold rests on whatever they name by now.
    """
    said = silence or silenced(hold.instances, draft.facts)
    if not said:
        return False
    draft.ledger.clear_since.pop((hold.policy, draft.facts.uid), None)
    draft.hold(Hold(hold.policy, SILENCE, f"{said}: no further step, and nothing is undone"))
    draft.suspend(hold.policy)
    return True


def _with_new_instances(hold: PolicyHold, match: Match) -> PolicyHold:
    """Add fault instances that joined: the session ends only when all of them are clear."""
    new = [one for one in match.instances if one not in hold.instances] if match.holds else []
    if not new or len(hold.instances) >= MAX_INSTANCES:
        return hold
    return replace(hold, instances=(*hold.instances, *new)[:MAX_INSTANCES], reasons=match.reasons)


def _edited(hold: PolicyHold, matched: Matched) -> bool:
    """Tell whether a policy says something else by now than what the hold began with."""
    return hold.version != matched.active.policy.version


def _name_phase(draft: Draft, look: Look) -> None:
    """Say in one word where the node stands, and per hold how far it got."""
    session = draft.session
    if session is None:
        if any(hold.guard == "waived" for hold in draft.holds):
            draft.phase = NodePhase.WAIVED
        elif look.holding:
            draft.phase = NodePhase.MATCHED
        return
    draft.phase = _session_phase(draft, session)
    for hold in session.holds:
        steps = parse_plan(hold.plan).steps
        at = steps[hold.step].action if hold.step < len(steps) else hold.state.value
        now = look.matched.get(hold.policy)
        edited = ", begun before its edit" if now is not None and _edited(hold, now) else ""
        place = f"{min(hold.step + 1, len(steps))}/{len(steps)} {at}"
        draft.steps.append(f"{hold.policy}: {place}{edited}")
    draft.sentence = draft.sentence or f"{', '.join(session.holds[0].reasons)}"


def _session_phase(draft: Draft, session: Session) -> NodePhase:
    if session.escalated:
        return NodePhase.ESCALATED
    if any(hold.state is HoldState.HELD for hold in session.holds):
        return NodePhase.HELD
    if any(hold.guard == "recovery" for hold in draft.holds):
        return NodePhase.RECOVERING
    return NodePhase.IN_SESSION
