"""The status of `RemediationPolicy` objects: whether each is in force, and what it does now.

Pure: from the policies that are loaded and the status document to one status an object. It is
written behind by :class:`remediator.record.policywriter.PolicyStatuses`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field, WithJsonSchema

from remediator.policy.base import Model
from remediator.policy.problems import Problem
from remediator.record.status import NodeStatus, PolicyStatus


MAX_NODES: Final = 20
MAX_TEXT: Final = 2000
MAX_SENTENCE: Final = 500
ACCEPTED: Final = "Accepted"
EXPRESSION_FAILED: Final = "ExpressionFailed"

Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


class Condition(Model):
    """Kubernetes' condition."""

    type: str = Field(
        description="`Accepted`: the newest version of the policy is in force."
        " `ExpressionFailed`: its expression fails on nodes, where it is not known whether it"
        " matches; there while it does."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it is so.")
    reason: str = Field(description="Why, in one word.")
    message: str = Field(default="", description="Why, in words.")
    observed_generation: int = Field(default=0, description="Of the version that this is about.")
    last_transition_time: Time = Field(description="Since when.")


class NodeEntry(Model):
    """A node that the policy matches."""

    node: str = Field(description="Its name.")
    phase: str = Field(description="Where it stands.")
    sentence: str = Field(default="", description="What was decided last, in words.")
    held_by: str = Field(default="", description="What holds the policy's next step there.")
    why_held: str = Field(default="", description="Why, in its words.")


class PolicyObjectStatus(Model):
    """What the controller makes of the policy."""

    observed_generation: int = Field(default=0, description="The version that was looked at.")
    conditions: tuple[Condition, ...] = Field(default=(), description="Whether it is in force.")
    version: str = Field(default="", description="Short hash of the spec in force; empty: none.")
    effective_mode: str = Field(
        default="", description="The stricter of the policy's mode and the cluster's."
    )
    matched_nodes: int = Field(default=0, ge=0, description="How many nodes it matches now.")
    held_by: str = Field(default="", description="What holds its next steps now.")
    nodes: tuple[NodeEntry, ...] = Field(
        default=(), description=f"The first {MAX_NODES} nodes that it matches."
    )


def judged(problems: Sequence[Problem], *, in_force: bool) -> tuple[str, str, str]:
    """Return status, reason and message of the condition Accepted."""
    if not problems:
        return "True", "InForce", ""
    kept = "the version before stays in force" if in_force else "it is not in force"
    text = "; ".join(_said(one) for one in problems)
    return "False", "Stale" if in_force else "Invalid", f"{text}; {kept}"[:MAX_TEXT]


def policy_object_status(
    *,
    name: str,
    generation: int,
    problems: Sequence[Problem],
    policy: PolicyStatus | None,
    nodes: Sequence[NodeStatus],
    before: Mapping[str, Mapping[str, str]],
    now: str,
) -> PolicyObjectStatus:
    """Return the status of one object.

    Args:
        name: of the policy.
        generation: of the object, as it was read.
        problems: of its newest version.
        policy: the version in force, None if there is none.
        nodes: all nodes of the status document.
        before: its conditions until now, by type, as Kubernetes shows them.
        now: RFC 3339.
    """
    said = {ACCEPTED: judged(problems, in_force=policy is not None)}
    if policy is not None and policy.expression_failures:
        said[EXPRESSION_FAILED] = ("True", "Failed", policy.expression_error[:MAX_TEXT])
    mine = [
        one for one in nodes if name in one.policies or any(h.policy == name for h in one.holds)
    ]
    guards = sorted({h.guard for one in mine for h in one.holds if h.policy == name})
    return PolicyObjectStatus.model_validate(
        {
            "observedGeneration": generation,
            "conditions": tuple(
                _condition(kind, one, generation, before.get(kind, {}), now)
                for kind, one in said.items()
            ),
            "version": policy.version if policy else "",
            "effectiveMode": policy.effective_mode if policy else "",
            "matchedNodes": policy.matching if policy else 0,
            "heldBy": ", ".join(guards),
            "nodes": tuple(_node(one, name) for one in mine[:MAX_NODES]),
        }
    )


def _condition(
    kind: str, said: tuple[str, str, str], generation: int, before: Mapping[str, str], now: str
) -> Condition:
    status, reason, message = said
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return Condition.model_validate(
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": since or now,
        }
    )


def _node(one: NodeStatus, policy: str) -> NodeEntry:
    mine = [hold for hold in one.holds if hold.policy == policy]
    return NodeEntry.model_validate(
        {
            "node": one.node,
            "phase": one.phase,
            "sentence": one.sentence[:MAX_SENTENCE],
            "heldBy": ", ".join(sorted({hold.guard for hold in mine})),
            "whyHeld": "; ".join(f"{hold.guard}: {hold.reason}" for hold in mine)[:MAX_SENTENCE],
        }
    )


def _said(problem: Problem) -> str:
    path = f"{problem.path}: " if problem.path else ""
    fix = f" ({problem.fix})" if problem.fix else ""
    return f"{path}{problem.message}{fix}"
