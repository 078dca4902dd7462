"""How a policy's work on a node begins, and what people hear when it may not.

Every policy that matches gets its own hold in the node's one session. A hold
comes to be only when something of it can be done now: a session that says
nothing would be a lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from node_agent.contract import Severity
from remediator.decide.admit import Verdicts
from remediator.decide.decision import NOT_ASKED, Hold, Outcome, Urgency
from remediator.decide.draft import Draft
from remediator.decide.endings import waived
from remediator.decide.facts import NodeMode
from remediator.decide.guards.scope import out_of_scope
from remediator.decide.guards.silence import SILENCE
from remediator.decide.look import Look, Matched, attempt_of, attempt_within, opening
from remediator.decide.room import ROOM_OF_A_RESULT, ROOM_TO_BEGIN
from remediator.decide.session import (
    MODE_KEY,
    SESSION_VERSION,
    Added,
    Before,
    HoldState,
    PolicyHold,
    Session,
    Waiver,
    encode,
    encode_text,
)
from remediator.decide.steps import advance
from remediator.decide.untold import escalation_key, tell_escalated
from remediator.policy.plan import parse_plan


TELL_HELD_AFTER: Final = 60.0
_QUIET_GUARDS: Final = frozenset({"waived", "opt-out", "settling", "breaker", "order", "facts"})
"""Holds that people chose, that pass by themselves, or that tell by themselves."""


def begin(draft: Draft, look: Look, verdicts: Verdicts, outcomes: Mapping[str, Outcome]) -> None:
    """Begin what newly matches: each policy gets its own hold in the node's one session."""
    for one in look.holding:
        policy = one.active.policy
        if draft.session is not None and draft.session.hold(policy.name) is not None:
            continue
        refusal = _refusal(draft, one, look.silenced) or _no_room(draft, one)
        if refusal is not None:
            draft.hold(refusal)
            tell_held(draft, one, refusal)
            continue
        session = draft.session or _new_session(draft)
        verdict = verdicts.get((draft.facts.uid, policy.name), NOT_ASKED)
        started = _start(draft, session, one, verdict, outcomes)
        if started is not None:
            draft.session = started
            draft.act("record", policy.name, f"session begun by {policy.name}")
        elif verdict is not None:
            tell_held(draft, one, verdict)


def _refusal(draft: Draft, one: Matched, silenced: str) -> Hold | None:
    """Say why a policy may not even begin here, not so much as with a message; None if it may."""
    facts, policy = draft.facts, one.active.policy
    name = policy.name
    if waived(draft.history, name, one.match.instances):
        return Hold(name, "waived", _waived_why(draft.history.waivers, name))
    outside = out_of_scope(facts, policy)
    if outside:
        return Hold(name, "scope", outside)
    if silenced:
        return Hold(name, SILENCE, f"{silenced}: the node stays as it is")
    if facts.mode_note:  # nobody said this mode: it stands for something that we cannot read
        return Hold(name, "mode", facts.mode_note)
    if facts.mode is NodeMode.NOTIFY_ONLY and not any(step.tells for step in policy.spec.steps):
        return Hold(name, "opt-out", f"the node says {MODE_KEY}: {facts.mode}")
    return None


def _no_room(draft: Draft, one: Matched) -> Hold | None:
    """Say so if a session would not stay readable with one more plan and all that is to come.

    One that grew longer than we read would freeze the node. The plan is text within JSON.
    """
    session, policy = draft.session, one.active.policy
    if session is None:
        return None
    steps = len(policy.spec.steps) + sum(len(parse_plan(one.plan).steps) for one in session.holds)
    needed = len(encode(session)) + len(encode_text(policy.plan)) + ROOM_OF_A_RESULT * steps
    if needed <= ROOM_TO_BEGIN:
        return None
    why = "the node's session has no room until another policy lets go"
    return Hold(policy.name, "session", why)


def _start(
    draft: Draft,
    session: Session,
    one: Matched,
    verdict: Hold | None,
    outcomes: Mapping[str, Outcome],
) -> Session | None:
    """Return the session with this policy's hold, or None where not even a first step can go."""
    policy = one.active.policy
    draft.ledger.clear_since.pop((policy.name, draft.facts.uid), None)
    nth = session.let_go.get(policy.name, 0)
    text, exhausted = opening(policy, attempt_within(session, policy.name))
    steps = parse_plan(text)
    hold = PolicyHold(
        policy=policy.name,
        version=policy.version,
        plan=text,
        reasons=one.match.reasons,
        instances=one.match.instances,
        since=one.since,
        step_since=draft.now,
        nth=nth,
    )
    if not exhausted or steps.steps[0].disruptive:
        session, hold = advance(
            draft,
            session,
            hold,
            plan=steps,
            match=one.match,
            verdict=verdict,
            outcomes=outcomes,
        )
        first = steps.steps[0]
        held = hold.step == 0 and hold.state is HoldState.RUNNING
        if held and (first.changes_node or (first.works and hold.work_since is None)):
            return None  # held; a message or a person that must be waited for is a beginning
    if exhausted:
        hold = replace(hold, state=HoldState.ESCALATED, untold=escalation_key(session, hold))
        attempt = attempt_within(session, policy.name)
        tell_escalated(draft, hold, parse_plan(policy.plan), attempt)
    return replace(session, holds=(*session.holds, hold))


def _new_session(draft: Draft) -> Session:
    facts = draft.facts
    return Session(
        version=SESSION_VERSION,
        id=f"{facts.uid[:8]}-{int(draft.now * 1000):x}",
        node_uid=facts.uid,
        boot_id=facts.boot_id,
        started=draft.now,
        before=Before(cordoned=facts.unschedulable, taints=facts.taints),
        added=Added(),
        holds=(),
        attempt=attempt_of(facts, draft.now),
    )


def tell_held(draft: Draft, one: Matched, verdict: Hold) -> None:
    """Tell people once about a fatal fault that a guard holds; of any, once it was held for long.

    What is long, RemediatorConfig says (``tellHeldAfter``).
    """
    facts, policy = draft.facts, one.active.policy
    since = draft.ledger.held_since.get(facts.uid, {}).get(policy.name)
    if verdict.guard == SILENCE:
        if one.match.silenced:
            return  # whoever silenced it knows of it, and of no other fault
        since = one.since  # even a message is held, of which no guard is asked
    if since is None or verdict.guard in _QUIET_GUARDS:
        return
    fatal = one.match.severity is Severity.FATAL
    telling = [(TELL_HELD_AFTER, "held")] if fatal else []
    telling.append((draft.ledger.cluster.tell_held_after, "still-held"))
    for after, word in sorted(telling):
        if draft.now < since + after:
            draft.look_at(since + after)
            return
        draft.tell(
            f"{word}/{facts.uid}/{policy.name}/{since:.0f}",
            f"{facts.name}: {', '.join(one.match.reasons)}, {word.replace('-', ' ')}",
            f"Policy {policy.name} is held by {verdict.guard}: {verdict.reason}",
            kind=word,
            to=draft.channels(parse_plan(policy.plan)),
            policy=policy.name,
            urgency=Urgency.CRITICAL if fatal else Urgency.WARNING,
            notice=True,
        )


def _waived_why(waivers: tuple[Waiver, ...], policy: str) -> str:
    why = next((one.why for one in reversed(waivers) if one.policy == policy), "")
    return f"left to people until it clears and returns ({why})"
