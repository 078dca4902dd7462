"""Steps that take time outside the node object: begun, followed, ended, stopped.

The beginning (``work_since``) is on the node before the first effect: a work is emitted
behind the patch that says so, and in every later decision until it ends by an outcome or
by its deadline. What is not emitted any more is stopped by the shell. So a work that was
begun is always known to the next leader, and one that nobody wants does not go on.

At most one drain, and one work of any other kind, runs on a node at a time. A work that may
not be written about (everything is paused, the cluster went to dry-run, the node opted out)
is *suspended*: it is not followed, not taken back, and its deadline does not run. So is a drain
while the breaker of its policy is open, or, if it says so, the policy's windows are closed.

Work whose deadline passed while nobody followed it is not late before its worker has looked: a
Job that ended well meanwhile is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from remediator.decide.decision import Hold, Outcome, Work
from remediator.decide.draft import Draft, World
from remediator.decide.facts import NodeFacts, NodeMode
from remediator.decide.guards.breaker import stopped
from remediator.decide.guards.windows import closed, closes_at
from remediator.decide.look import unusable_session
from remediator.decide.match import Match
from remediator.decide.progress import acted, ended, failed, message_key, tries, with_result
from remediator.decide.session import HoldState, PolicyHold, Result, Session
from remediator.policy.drain import OnWindowEnd
from remediator.policy.plan import parse_plan
from remediator.policy.quantities import format_duration
from remediator.policy.steps import JobSuccess, Step


LOOK_FIRST: Final = 60.0
"""Seconds for which work that was not followed all along is looked at before it may be late.

Its Job may have ended while no controller ran. The worker says so as soon as it has looked; this
bounds how long that is waited for, where the API server does not answer."""
ASSUMED: Final = {"drain": 120.0, "job": 300.0, "create": 60.0, "webhook": 5.0, "wait": 60.0}
"""Seconds after which dry-run takes a step for done that it does not really do."""


def assumed_seconds(action: str) -> float:
    """Return how long dry-run takes a step to last."""
    return ASSUMED.get(action, 0.0)


def reboots(step: Step) -> bool:
    """Tell whether a step is a Job that is done when the node has another boot id."""
    return step.job is not None and step.job.success is JobSuccess.REBOOT


def running(hold: PolicyHold) -> Step | None:
    """Return the step whose work is under way, if any is."""
    if hold.work_since is None or hold.state is not HoldState.RUNNING:
        return None
    steps = parse_plan(hold.plan).steps
    step = steps[hold.step] if hold.step < len(steps) else None
    return step if step is not None and step.works else None


def works_of(session: Session) -> Iterator[tuple[PolicyHold, Step]]:
    """Yield the holds of a session whose work is under way, each with its step."""
    for hold in session.holds:
        step = running(hold)
        if step is not None:
            yield hold, step


def taken(session: Session | None, work_class: str, *, other_than: str) -> str:
    """Return the policy whose work of this class is under way on the node, "" if none is."""
    if session is None:
        return ""
    return next(
        (
            hold.policy
            for hold, step in works_of(session)
            if step.work_class == work_class and hold.policy != other_than
        ),
        "",
    )


def work_of(facts: NodeFacts, session: Session, hold: PolicyHold, step: Step) -> Work:
    """Return the work of a hold's present step, which has begun."""
    since = hold.work_since or hold.step_since
    return Work(
        key=message_key(session, hold, hold.step),
        node=facts.name,
        uid=facts.uid,
        policy=hold.policy,
        step=hold.step,
        action=step.action,
        spec=step,
        session=session.id,
        attempt=1 + tries(hold, hold.step),
        since=since,
        deadline=since + step.limit,
        boot_id=hold.work_boot_id,
    )


def claimed(facts: NodeFacts) -> frozenset[str] | None:
    """Return the keys of the work that a node's session wants; None: leave everything alone.

    So is a frozen node, and one on which people let us do nothing.
    """
    if unusable_session(facts) or facts.mode in {NodeMode.DISABLED, NodeMode.DRY_RUN}:
        return None
    return frozenset(work.key for work in under_way(facts))


def go_on_with_work(
    draft: Draft,
    session: Session,
    hold: PolicyHold,
    *,
    step: Step,
    match: Match,
    verdict: Hold | None,
    outcomes: Mapping[str, Outcome],
) -> PolicyHold:
    """Begin a hold's work where it may begin, follow it, and take in how it ended."""
    if draft.facts.mode is NodeMode.NOTIFY_ONLY:
        note = "the node says notify-only"
        return ended(hold, step.action, Result.CANCELLED, draft.now, note)
    if hold.work_since is None:
        return _begin(draft, session, hold, step=step, match=match, verdict=verdict)
    if draft.refusal() is not None or _evictions_stopped(draft, session, hold, step, outcomes):
        return hold  # it is suspended; where nothing may be written, with all of the decision
    hold = _resumed(draft, hold)
    work = work_of(draft.facts, session, hold, step)
    result, note = _result(draft, work, outcomes)
    if result is Result.DONE:
        return ended(hold, step.action, result, draft.now, note)
    if result is not None:
        return _failed(draft, session, hold, step=step, result=result, note=note)
    draft.works.append(work)
    draft.look_at(_late_at(draft, work))
    return hold


def stop_work(now: float, hold: PolicyHold, why: str) -> PolicyHold:
    """Stop the work of a hold, if any is under way; it is recorded as cancelled."""
    step = running(hold)
    if step is None:
        return hold
    last = hold.results[-1] if hold.results else None
    if last is not None and last.step == hold.step and last.result is Result.CANCELLED:
        # A fault that comes and goes fills no room.
        spent = {**hold.spent, hold.step: hold.spent.get(hold.step, 0) + 1}
        hold = replace(hold, results=hold.results[:-1], spent=spent)
    return with_result(hold, step.action, Result.CANCELLED, now, why)


def under_way(facts: NodeFacts) -> tuple[Work, ...]:
    """Return all work that a node's session says has begun."""
    session = facts.session
    if not isinstance(session, Session) or unusable_session(facts):
        return ()
    return tuple(work_of(facts, session, hold, step) for hold, step in works_of(session))


def _begin(
    draft: Draft,
    session: Session,
    hold: PolicyHold,
    *,
    step: Step,
    match: Match,
    verdict: Hold | None,
) -> PolicyHold:
    """Begin, unless something speaks against it: the beginning is written, then the work wanted."""
    name, kind = hold.policy, step.work_class
    other = draft.working.get(kind, "")
    if other and other != name:
        draft.hold(Hold(name, "order", f"{other} has a {kind} under way on this node"))
        return hold
    if not match.holds:
        why = "it cannot be told whether the fault is still there"
        draft.hold(Hold(name, "facts", why, match.next_look))
        return hold
    if not match.fresh:
        why = f"the facts are stale: they permit a cordon, but no new {kind}"
        draft.hold(Hold(name, "facts", why, match.next_look))
        return hold
    if reboots(step) and not draft.facts.boot_id:
        why = "the node's boot id is not known, so that nothing would prove its reboot"
        draft.hold(Hold(name, "facts", why))
        return hold
    if draft.held_by(name, verdict):
        return hold
    why = f"{step.action} by {name}: {', '.join(match.reasons)}"
    draft.act(step.action, name, why, disruptive=True)
    draft.working[kind] = name
    draft.ledger.suspensions.end(name, draft.facts.uid)
    hold = acted(hold, step)
    draft.ledger.look_until[name, draft.facts.uid] = draft.now
    hold = replace(hold, work_since=draft.now, work_boot_id=draft.facts.boot_id)
    work = work_of(draft.facts, session, hold, step)
    draft.works.append(work)
    draft.look_at(work.deadline)
    if draft.world is World.VIRTUAL:
        draft.look_at(draft.now + assumed_seconds(step.action))
    return hold


def _evictions_stopped(
    draft: Draft,
    session: Session,
    hold: PolicyHold,
    step: Step,
    outcomes: Mapping[str, Outcome],
) -> bool:
    """Suspend a drain while the breaker of its policy is open: its fault may be none.

    So, where its author wants that, outside of the policy's windows. Other work is seen through:
    half a reset is none.
    """
    if step.drain is None:
        return False
    stop = stopped(hold.policy, draft.facts.uid, draft.ledger)
    policy = draft.policies.get(hold.policy)
    if policy is not None and step.drain.on_window_end is OnWindowEnd.PAUSE:
        stop = stop or closed(policy, draft.now)
        draft.look_at(None if stop is not None else closes_at(policy, draft.now))
    known = outcomes.get(message_key(session, hold, hold.step))
    if stop is None or (known is not None and not known.pending):
        return False
    draft.hold(stop._replace(reason=f"no further eviction, {stop.reason}"))
    draft.suspend(hold.policy)
    return True


def _resumed(draft: Draft, hold: PolicyHold) -> PolicyHold:
    """Give back the time in which the work was suspended."""
    if hold.work_since is None:
        return hold
    uid, began = draft.facts.uid, hold.work_since
    since = draft.ledger.suspensions.since(hold.policy, uid, began=began)
    if since is None:
        return hold
    if draft.now <= since:
        draft.ledger.suspensions.end(hold.policy, uid)
        return hold
    draft.act("record", hold.policy, f"the work of {hold.policy} goes on")
    return replace(hold, work_since=began + draft.now - since)


def _result(draft: Draft, work: Work, outcomes: Mapping[str, Outcome]) -> tuple[Result | None, str]:
    """Return how the work ended, and a note for the record; None while it goes on."""
    outcome = _outcome(draft, work, outcomes)
    ended = outcome if outcome is not None and not outcome.pending else None
    if ended is not None and ended.delivered:
        return Result.DONE, ended.note
    if ended is not None and not ended.late:
        return Result.FAILED, ended.note or "it failed"
    if ended is not None or draft.now >= _late_at(draft, work):
        said = f"it did not end within {format_duration(work.spec.limit)}"
        known = outcome.note if outcome is not None else ""  # at the deadline: who is in the way
        return Result.TIMED_OUT, f"{said}: {known}" if known else said
    return None, ""


def _late_at(draft: Draft, work: Work) -> float:
    """Return when work has not ended in time: not before whoever follows it now could look."""
    key, fair = (work.policy, draft.facts.uid), draft.now + LOOK_FIRST
    return max(work.deadline, draft.ledger.look_until.setdefault(key, fair))


def _outcome(draft: Draft, work: Work, outcomes: Mapping[str, Outcome]) -> Outcome | None:
    """Return how the work ended, None while it has not."""
    facts, known = draft.facts, outcomes.get(work.key)
    if draft.world is World.VIRTUAL:
        due = work.since + assumed_seconds(work.action)
        if known is None and draft.now >= due:
            return Outcome(key=work.key, delivered=True, note="assumed in dry-run")
        draft.look_at(due)
        return known
    if not reboots(work.spec):
        return known
    rebooted = bool(facts.boot_id and work.boot_id) and facts.boot_id != work.boot_id
    if rebooted and facts.ready:
        return Outcome(key=work.key, delivered=True, note="the node is back, with a new boot id")
    if rebooted or (known is not None and known.delivered):
        return None  # a complete Job proves no reboot; a reboot fails the Job that does it
    return known


def _failed(
    draft: Draft, session: Session, hold: PolicyHold, *, step: Step, result: Result, note: str
) -> PolicyHold:
    """Record a failure: try again where attempts are left, else do as ``onFailure`` says."""
    allowed = step.job.max_attempts if step.job is not None else 1
    made = 1 + hold.tried
    draft.working.pop(step.work_class, None)
    if made >= allowed:
        return failed(draft, session, hold, step=step, result=result, note=note)
    why = f"{step.action} of {hold.policy} {result.value}: {note}; tried again"
    draft.act("record", hold.policy, why)
    return replace(with_result(hold, step.action, result, draft.now, note), tried=made)
