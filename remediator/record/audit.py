"""The audit log: one line for every write, with what was before and after.

Logger ``audit``, event ``write``. Patches of nodes are here, all else comes from
:mod:`remediator.record.audited`. The line is written when the result is known; a write
whose answer never came is ``unknown``, because it may have happened. Dry-run writes
one too, with ``mode`` ``dry-run``: it is the list of what would have been done.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import structlog

from remediator.decide.decision import PatchNode, Unset
from remediator.decide.facts import Malformed, NodeFacts
from remediator.decide.requests import Approval
from remediator.decide.session import Session, Taint


AUDIT_LOGGER: Final = "audit"
_log = structlog.get_logger(AUDIT_LOGGER)


class WriteResult(StrEnum):
    """What became of a write."""

    DONE = "done"
    CONFLICT = "conflict"
    """The node changed meanwhile; nothing was written, it is decided again."""
    FAILED = "failed"
    """Refused or not sent; nothing was written."""
    UNKNOWN = "unknown"
    """No answer: it may have been written. The node is read again."""
    GONE = "gone"
    """The node no longer exists."""


def audit(
    patch: PatchNode,
    *,
    facts: NodeFacts,
    result: WriteResult,
    dry_run: bool,
    reason: str = "",
) -> None:
    """Write the line for one patch. ``facts`` are those that the decision rested on."""
    write = _log.info if result is WriteResult.DONE else _log.warning
    write(
        "write",
        node=patch.name,
        uid=patch.uid,
        resource_version=patch.resource_version,
        action=patch.action,
        policy=patch.policy,
        mode="dry-run" if dry_run else "enforce",
        result=result.value,
        why=patch.why,
        before=before(patch, facts),
        after=after(patch),
        **({"allowed_by": list(patch.allowed_by)} if patch.disruptive else {}),
        **({"reason": reason} if reason else {}),
    )


def audit_other(action: str, *, result: WriteResult, reason: str = "", **fields: Any) -> None:
    """Write the line for what is no patch of a node.

    ``fields``: object, ``before``, ``after`` and what is known of why. What the log's context says
    (node, policy, session, step) is added by the log.
    """
    write = _log.info if result is WriteResult.DONE else _log.warning
    known = {name: value for name, value in fields.items() if value != ""}
    more = {"reason": reason} if reason else {}
    write("write", action=action, mode="enforce", result=result.value, **known, **more)


def before(patch: PatchNode, facts: NodeFacts) -> dict[str, Any]:
    """Return the old values of exactly the fields that the patch sets."""
    fields: dict[str, Any] = {}
    if patch.unschedulable is not None:
        fields["unschedulable"] = facts.unschedulable
    if patch.taint or patch.untaint:
        fields["taints"] = [_taint(one) for one in facts.taints]
    if patch.labels:
        fields["labels"] = {key: facts.labels.get(key) for key in patch.labels}
    if patch.annotations:
        fields["annotations"] = {key: facts.annotations.get(key) for key in patch.annotations}
    if not isinstance(patch.approvals, Unset):
        fields["approvals"] = [_approval(one) for one in facts.approvals]
    if not isinstance(patch.session, Unset):
        fields["session"] = _session(facts.session)
    if not isinstance(patch.history, Unset):
        fields["attempts"] = len(facts.history.attempts)
        fields["waivers"] = [waiver.policy for waiver in facts.history.waivers]
    if patch.remove_request and facts.request is not None:
        fields["request"] = {"verb": facts.request.verb.value, "by": facts.request.by}
    return fields


def after(patch: PatchNode) -> dict[str, Any]:
    """Return the new values of the fields that the patch sets."""
    fields: dict[str, Any] = {}
    if patch.unschedulable is not None:
        fields["unschedulable"] = patch.unschedulable
    if patch.taint:
        fields["taints_added"] = [_taint(one) for one in patch.taint]
    if patch.untaint:
        fields["taints_removed"] = [_taint(one) for one in patch.untaint]
    if patch.labels:
        fields["labels"] = dict(patch.labels)
    if patch.annotations:
        fields["annotations"] = dict(patch.annotations)
    if not isinstance(patch.approvals, Unset):
        fields["approvals"] = [_approval(one) for one in patch.approvals]
    if not isinstance(patch.session, Unset):
        fields["session"] = _session(patch.session)
    if not isinstance(patch.history, Unset):
        fields["attempts"] = len(patch.history.attempts) if patch.history else 0
        fields["waivers"] = [w.policy for w in patch.history.waivers] if patch.history else []
    if patch.remove_request:
        fields["request"] = None
    return fields


def _taint(taint: Taint) -> str:
    """Write it as kubectl does."""
    return f"{taint.key}={taint.value}:{taint.effect}"


def _approval(given: Approval) -> str:
    return f"{given.policy}, step {given.step} by {given.by}"


def _session(session: Session | Malformed | None) -> Any:
    if session is None:
        return None
    if isinstance(session, Malformed):
        return {"unreadable": session.why}
    return {
        "id": session.id,
        "attempt": session.attempt,
        "holds": {hold.policy: f"{hold.state.value}, step {hold.step}" for hold in session.holds},
    }
