"""`Remediation`: what happened in one session, as an object that people can look up later.

A view, and nothing but a view: the session's truth is the annotation on the Node, and no
decision reads these objects. One a session, named after its id, so that whoever leads next goes
on with the same one. Pure functions here; they are written by
:class:`remediator.record.chronicle.Chronicle`.

    begin --> follow (each written session) and hold (each decision) --> finish
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field, WithJsonSchema

from remediator.decide.decision import Decision, PatchNode, Unset
from remediator.decide.facts import NodeFacts
from remediator.decide.requests import Approval
from remediator.decide.session import Added, HoldState, PolicyHold, Result, Session
from remediator.policy.base import Model
from remediator.policy.plan import parse_plan


MAX_STEPS: Final = 200
MAX_HOLDS: Final = 50
MAX_TEXT: Final = 500
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_CANCELLED: Final = {"cancel": "Cancelled", "release": "Released"}

Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
Phase = Literal["Running", "Done", "Held", "Escalated", "Ended"]
Ending = Literal["", "Recovered", "Cancelled", "Released", "Unknown"]


class StepEntry(Model):
    """One step of one policy: when it began or ended, and how."""

    policy: str = Field(description="Whose step.")
    step: int = Field(ge=1, description="Its place in the policy, from 1.")
    action: str = Field(description="What it does, such as `cordon`.")
    state: str = Field(description="running, done, failed, timed-out or cancelled.")
    at: Time = Field(description="When it ended; of a running one, when it began.")
    note: str = Field(default="", description="What else is known of it.")


class HoldEntry(Model):
    """A guard, or a wait, that held a policy's next step for some time."""

    policy: str = Field(description="Whose step.")
    guard: str = Field(description="What held it.")
    reason: str = Field(description="Why, at first.")
    since: Time = Field(description="From when.")
    until: Time | None = Field(default=None, description="Until when; absent: it still does.")


class ApprovalEntry(Model):
    """A person's approval, and whether a step went on by it."""

    policy: str = Field(description="Whose step.")
    step: int = Field(ge=1, description="Its place in the policy, from 1.")
    by: str = Field(description="Who approved it.")
    at: str = Field(description="When, by their clock.")
    used: bool = Field(
        default=True,
        description="False: the session ended or let go before the step, it had expired, or "
        "another person's came first.",
    )


class PolicyEntry(Model):
    """One policy's part in the session."""

    policy: str = Field(description="Its name.")
    version: str = Field(description="Of the policy, when its part began.")
    reasons: tuple[str, ...] = Field(default=(), description="The faults that it was about.")
    since: Time = Field(description="When its part began.")
    state: str = Field(description="running, done, held, escalated or left.")


class RemediationSpec(Model):
    """What the session is about; never changes."""

    node: str = Field(description="Name of the node.")
    node_uid: str = Field(alias="nodeUID", description="UID of the node.")
    session: str = Field(description="Id of the session.")
    policy: str = Field(description="The policy that began it.")
    started: Time = Field(description="When it began.")
    attempt: int = Field(default=1, description="Which one on this node, of the last 24 h.")


class RemediationStatus(Model):
    """What has happened so far."""

    phase: Phase = Field(default="Running", description="Where it stands.")
    result: Ending = Field(default="", description="How it ended.")
    why: str = Field(default="", description="How it ended, in words.")
    ended: Time | None = Field(default=None, description="When it ended.")
    sentence: str = Field(default="", description="What was decided last, in words.")
    step: str = Field(default="", description="The step under way.")
    held_by: str = Field(default="", description="What holds the next step now.")
    policies: tuple[PolicyEntry, ...] = Field(default=(), description="The policies in it.")
    steps: tuple[StepEntry, ...] = Field(default=(), description="The steps so far.")
    holds: tuple[HoldEntry, ...] = Field(default=(), description="What held it, and why.")
    approvals: tuple[ApprovalEntry, ...] = Field(
        default=(), description="Who approved what, once it is settled."
    )
    added: tuple[str, ...] = Field(default=(), description="What it changed on the node.")
    undone: tuple[str, ...] = Field(default=(), description="What of that was taken back.")


class Remediation(Model):
    """The record of one session: what was done to a node, why, and what became of it."""

    api_version: Literal["gpu-remediator.io/v1alpha1"] = "gpu-remediator.io/v1alpha1"
    kind: Literal["Remediation"] = "Remediation"
    spec: RemediationSpec
    status: RemediationStatus = Field(default_factory=RemediationStatus)

    @property
    def name(self) -> str:
        """``metadata.name``."""
        return name_of(self.spec.session)

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.status.phase == "Ended"


def name_of(session: str) -> str:
    """Return the object's name for a session's id: the id, or a hash where it is no name."""
    if _NAME.fullmatch(session):
        return session
    return f"session-{hashlib.sha256(session.encode()).hexdigest()[:16]}"


def begin(session: Session, *, node: str) -> Remediation:
    """Return an empty record for a session that is on a node; `follow` fills it."""
    return Remediation(
        spec=RemediationSpec.model_validate(
            {
                "node": node,
                "nodeUID": session.node_uid,
                "session": session.id,
                "policy": session.holds[0].policy if session.holds else "",
                "started": written(session.started),
                "attempt": session.attempt,
            }
        )
    )


def follow(record: Remediation, session: Session, patch: PatchNode | None = None) -> Remediation:
    """Take in the session as it is on the node now; ``patch``: the write that put it there."""
    status = record.status
    present = {hold.policy for hold in session.holds}
    left = [one for one in status.policies if one.policy not in present]
    steps = [one for one in status.steps if one.policy not in present and one.state != "running"]
    steps += [entry for hold in session.holds for entry in _steps(hold)]
    steps.sort(key=lambda one: one.at)
    running = [f"{one.step} {one.action}" for one in steps if one.state == "running"]
    taken = _untaken(session.added, patch)
    return _with(
        record,
        phase=_phase(session),
        step=", ".join(running),
        policies=(
            *(one.model_copy(update={"state": "left"}) for one in left),
            *(_policy(hold) for hold in session.holds),
        ),
        steps=tuple(steps[-MAX_STEPS:]),
        added=_union(status.added, _said(session.added)),
        undone=_union(status.undone, taken),
    )


def hold(record: Remediation, decision: Decision, now: float) -> Remediation:
    """Take in what holds the session's next steps, and what was decided, in words.

    The same record if there is nothing new.
    """
    status, at = record.status, written(now)
    sentence = decision.sentence[:MAX_TEXT]
    present = {(one.policy, one.guard): one.reason for one in decision.holds}
    open_ = {(one.policy, one.guard) for one in status.holds if one.until is None}
    if present.keys() == open_:
        return record if sentence == status.sentence else _with(record, sentence=sentence)
    holds = [
        one
        if one.until is not None or (one.policy, one.guard) in present
        else one.model_copy(update={"until": at})
        for one in status.holds
    ]
    holds += [
        HoldEntry(policy=policy, guard=guard, reason=reason[:MAX_TEXT], since=at)
        for (policy, guard), reason in present.items()
        if (policy, guard) not in open_
    ]
    held_by = ", ".join(sorted({guard for _, guard in present}))
    return _with(record, holds=tuple(holds[-MAX_HOLDS:]), held_by=held_by, sentence=sentence)


def approve(record: Remediation, patch: PatchNode, facts: NodeFacts) -> Remediation:
    """Take in the approvals that a write removed, each as what it was: used, or not."""
    if isinstance(patch.approvals, Unset):
        return record
    settled = [
        ApprovalEntry(
            policy=one.policy, step=one.step + 1, by=one.by, at=one.at, used=_used(one, patch)
        )
        for one in facts.approvals
        if one not in patch.approvals and one.session == record.spec.session and one.step >= 0
    ]
    known = record.status.approvals
    fresh = tuple(one for one in settled if one not in known)
    return _with(record, approvals=(*known, *fresh)) if fresh else record


def _used(given: Approval, patch: PatchNode) -> bool:
    """Tell whether the session that a write puts on the node says that a step went on by it."""
    hold = patch.session.hold(given.policy) if isinstance(patch.session, Session) else None
    return hold is not None and any(
        one.step == given.step and one.result is Result.DONE and one.note == given.note
        for one in hold.results
    )


def finish(
    record: Remediation, patch: PatchNode, facts: NodeFacts, *, last: Session, now: float
) -> Remediation:
    """Take in the write that ended the session; ``last``: the session as it then was."""
    record = follow(record, last)
    undone = _undone(patch, facts)
    return _close(
        record,
        result=_CANCELLED.get(patch.action, "Recovered"),
        why=patch.why,
        now=now,
        undone=_union(record.status.undone, undone),
    )


def lose(record: Remediation, why: str, *, now: float) -> Remediation:
    """End the record of a session of which nobody saw how it ended."""
    return _close(record, result="Unknown", why=why, now=now, undone=record.status.undone)


def written(seconds: float) -> str:
    """Return epoch seconds as RFC 3339 with milliseconds."""
    at = datetime.fromtimestamp(seconds, tz=UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _close(
    record: Remediation, *, result: str, why: str, now: float, undone: tuple[str, ...]
) -> Remediation:
    at = written(now)
    holds = tuple(
        one if one.until is not None else one.model_copy(update={"until": at})
        for one in record.status.holds
    )
    return _with(
        record,
        phase="Ended",
        result=result,
        why=why[:MAX_TEXT],
        sentence=why[:MAX_TEXT],
        ended=at,
        step="",
        held_by="",
        holds=holds,
        undone=undone,
    )


def _with(record: Remediation, **changes: Any) -> Remediation:
    return record.model_copy(update={"status": record.status.model_copy(update=changes)})


def _phase(session: Session) -> Phase:
    states = {hold.state for hold in session.holds}
    if HoldState.ESCALATED in states:
        return "Escalated"
    if HoldState.HELD in states:
        return "Held"
    return "Done" if states == {HoldState.DONE} else "Running"


def _policy(hold: PolicyHold) -> PolicyEntry:
    return PolicyEntry(
        policy=hold.policy,
        version=hold.version,
        reasons=tuple(one[:MAX_TEXT] for one in hold.reasons),
        since=written(hold.since),
        state=hold.state.value,
    )


def _steps(hold: PolicyHold) -> Iterable[StepEntry]:
    for one in hold.results:
        yield StepEntry(
            policy=hold.policy,
            step=one.step + 1,
            action=one.action,
            state=one.result.value,
            at=written(one.at),
            note=one.note[:MAX_TEXT],
        )
    plan = parse_plan(hold.plan).steps
    if hold.state is HoldState.RUNNING and hold.step < len(plan):
        began = hold.step_since if hold.work_since is None else hold.work_since
        yield StepEntry(
            policy=hold.policy,
            step=hold.step + 1,
            action=plan[hold.step].action,
            state="running",
            at=written(began),
        )


def _said(added: Added) -> tuple[str, ...]:
    return (
        *(("cordon",) if added.cordoned else ()),
        *(f"taint {one.key}={one.value}:{one.effect}" for one in added.taints),
        *(f"label {one.key}={one.value}" for one in added.labels),
        *(f"annotation {one.key}" for one in added.annotations),
    )


def _untaken(added: Added, patch: PatchNode | None) -> tuple[str, ...]:
    """Return what a write within the session took back."""
    if patch is None:
        return ()
    return (
        *(("cordon",) if patch.unschedulable is False and not added.cordoned else ()),
        *(f"taint {one.key}={one.value}:{one.effect}" for one in patch.untaint),
    )


def _undone(patch: PatchNode, facts: NodeFacts) -> tuple[str, ...]:
    return (
        *(("cordon",) if patch.unschedulable is False and facts.unschedulable else ()),
        *(f"taint {one.key}={one.value}:{one.effect}" for one in patch.untaint),
        *(f"label {key}={facts.labels.get(key, '')}" for key in patch.labels),
        *(f"annotation {key}" for key in patch.annotations),
    )


def _union(known: tuple[str, ...], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*known, *more)))
