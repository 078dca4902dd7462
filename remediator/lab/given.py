"""What a timeline of a policy test may say: nodes, and the things that happen to them.

An entry of a timeline is one model of optional fields, of which exactly one says what happens:
a tagged union would turn one misspelt key into one error per alternative.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from node_agent.contract import Severity
from remediator.decide.requests import Verb
from remediator.policy.base import LabelKey, Model, schema_keywords
from remediator.policy.quantities import Duration


class NodeGiven(Model):
    """One virtual node, or several of a kind: ready, and well by its agent's word."""

    name: str = Field(
        min_length=1,
        max_length=200,
        examples=["gpu-1"],
        description="With `count` above 1 the nodes are called `name-1`, `name-2`, ...",
    )
    count: int = Field(default=1, ge=1, le=5000, description="How many of them.")
    labels: dict[LabelKey, str] = Field(
        default_factory=dict, description="Beside the label that makes it a GPU node."
    )
    pool: str = Field(default="", description="Short for the label gpu-remediator.io/pool.")
    zone: str = Field(default="", description="Short for the label topology.kubernetes.io/zone.")
    gpu: bool = Field(default=True, description="Whether it is a GPU node at all.")
    agent: bool = Field(default=True, description="Whether our agent runs on it.")
    cordoned: bool = Field(default=False, description="Cordoned by people from the start.")
    mode: Literal["dry-run", "notify-only", "disabled"] | None = Field(
        default=None, description="Annotation gpu-remediator.io/mode."
    )


class CodeGiven(Model):
    """An Xid or SXid that the agent reports: one more episode if it is there already."""

    code: int = Field(ge=1, le=99999, examples=[79], description="Its number.")
    gpu: int = Field(default=0, ge=0, le=31, description="On which of the node's devices.")
    severity: Annotated[Severity, Field(strict=False)] = Field(
        default=Severity.FATAL,
        description="As the agent's catalogue has it; an `info` one raises no condition.",
    )


class ConditionGiven(Model):
    """A condition that somebody writes on the node."""

    type: str = Field(min_length=1, examples=["GPULost"], description="Of any writer.")
    status: Literal["True", "False", "Unknown"] = Field(default="True", description="In quotes.")
    reason: str = Field(default="", description="One word.")
    message: str = Field(default="", description="For people.")


class ClearGiven(Model):
    """What the agent sees gone. Nothing given: every fault, and all its conditions are False."""

    xid: tuple[int, ...] = Field(default=(), strict=False, description="Only these Xids.")
    sxid: tuple[int, ...] = Field(default=(), strict=False, description="Only these SXids.")


class RebootGiven(Model):
    """The node restarts: not Ready, then Ready with a new boot id."""

    takes: Duration = Field(default=300.0, description="Until the kubelet is back.")
    clears: bool = Field(default=True, description="Whether the agent then finds everything well.")


class TaintGiven(Model):
    """A taint of somebody else."""

    key: str = Field(min_length=1, description="Of the taint.")
    value: str = Field(default="", description="Of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(
        default="NoSchedule", description="Of the taint."
    )


class RequestGiven(Model):
    """What a person asks for by `remediator VERB NODE`."""

    verb: Annotated[Verb, Field(strict=False)] = Field(description="As on the command line.")
    by: str = Field(default="alice", description="Who.")
    reason: str = Field(default="", description="Why.")


class ApproveGiven(Model):
    """`remediator approve NODE`: a person's yes to the step that waits for one."""

    policy: str = Field(default="", description="Whose step; default: each that waits.")
    by: str = Field(default="alice", description="Who.")
    expires: Duration = Field(default=3600.0, description="For how long it is good.")


class PauseGiven(Model):
    """`remediator pause`."""

    by: str = Field(default="alice", description="Who.")
    reason: str = Field(default="", description="Why.")
    all: bool = Field(default=False, description="`--all`: every write stops.")


class ResetGiven(Model):
    """`remediator breaker reset`."""

    policy: str = Field(
        description="Whose breaker: a policy's name, or a source such as `agents/all`."
    )
    keep: bool = Field(default=False, description="Handle the nodes that match now.")


class WorkGiven(Model):
    """How a step that takes time ends from now on: a drain, a Job."""

    step: str = Field(min_length=1, examples=["drain"], description="The action.")
    takes: Duration = Field(default=300.0, description="Until it ends.")
    fails: str = Field(default="", description="Why it fails; empty: it succeeds.")
    never: bool = Field(default=False, description="It does not end by itself.")


class ChannelGiven(Model):
    """A channel that delivers nothing from now on, or delivers again."""

    name: str = Field(min_length=1, description="Of RemediatorConfig; `log` exists always.")
    fails: str = Field(default="", description="Why; empty: it works again.")


class SwitchGiven(Model):
    """A policy is edited while the controller runs."""

    policy: str = Field(description="Its name.")
    mode: Literal["Disabled", "DryRun", "Enforce"] | None = Field(
        default=None, description="Its new mode."
    )
    removed: bool = Field(default=False, description="Its file is gone.")


class AlertGiven(Model):
    """An alert that fires, or no more."""

    name: str = Field(min_length=1, description="`alertname`.")
    labels: dict[str, str] = Field(default_factory=dict, description="Its other labels.")
    source: str = Field(default="main", description="Which Alertmanager.")
    firing: bool = Field(default=True, description="`false`: it is resolved.")
    suppressed: bool = Field(default=False, description="Silenced or inhibited.")


class QueryGiven(Model):
    """The answer of a PromQL query, from now on."""

    promql: str = Field(min_length=1, description="As a policy has it.")
    says: Literal["faulty", "well", "nothing"] = Field(
        default="faulty",
        description="The node is in its result; in that of `clearedBy`; in neither. For one of "
        "`unless`: it has a result, or none.",
    )


class SourceGiven(Model):
    """What is known of a source of alerts or queries. From the start all of them work."""

    name: str = Field(
        pattern=r"^(alertmanager|prometheus)/.+$",
        examples=["alertmanager/main"],
        description="Its kind and its name in RemediatorConfig.",
    )
    ok: bool = Field(default=True, description="It answers, and can be trusted.")
    alive: bool = Field(
        default=True, description="Its watchdog fires: the absence of an alert proves something."
    )
    why: str = Field(default="", description="Why it is not.")


ON_NODES: Final = (
    "xid", "sxid", "condition", "clear", "reboot", "kubelet", "agent", "cordon", "uncordon",
    "taint", "untaint", "labels", "annotations", "request", "approve", "delete", "query",
)  # fmt: skip
"""Happenings that are about nodes."""
ON_ALL: Final = (
    "alert",
    "source",
    "pause",
    "resume",
    "breakerReset",
    "restart",
    "work",
    "channel",
    "policy",
)
"""Happenings that are about the cluster or the controller. An alert may name a node, too."""


class Empty(Model):
    """It takes no keys."""


class Happens(Model):
    """One entry of a timeline: when, where, and exactly one thing that happens."""

    model_config = schema_keywords(oneOf=[{"required": [name]} for name in (*ON_NODES, *ON_ALL)])

    at: Duration = Field(description="Since the beginning; entries may overlap, order is free.")
    node: str | None = Field(default=None, description="Default: every node of the test.")
    nodes: tuple[str, ...] = Field(default=(), strict=False, description="Several of them.")
    every: Duration | None = Field(default=None, description="Again and again ...")
    until: Duration | None = Field(default=None, description="... up to this time.")
    xid: CodeGiven | None = Field(default=None, description="The agent reports an Xid.")
    sxid: CodeGiven | None = Field(default=None, description="The agent reports an SXid.")
    condition: ConditionGiven | None = Field(default=None, description="A condition is written.")
    clear: ClearGiven | None = Field(default=None, description="The agent sees faults gone.")
    reboot: RebootGiven | None = Field(default=None, description="The node restarts.")
    kubelet: Literal["Ready", "NotReady", "Unknown"] | None = Field(
        default=None, description="What the condition Ready says."
    )
    agent: Literal["silent", "back"] | None = Field(
        default=None, description="Whether the agent's heartbeat is renewed."
    )
    cordon: Empty | None = Field(default=None, description="A person cordons the node.")
    uncordon: Empty | None = Field(default=None, description="A person uncordons the node.")
    taint: TaintGiven | None = Field(default=None, description="Somebody adds a taint.")
    untaint: str | None = Field(default=None, description="Somebody removes taints of this key.")
    labels: dict[LabelKey, str] | None = Field(default=None, description="Set; empty removes.")
    annotations: dict[LabelKey, str] | None = Field(default=None, description="As labels.")
    request: RequestGiven | None = Field(default=None, description="`remediator VERB NODE`.")
    approve: ApproveGiven | None = Field(default=None, description="`remediator approve NODE`.")
    delete: Empty | None = Field(default=None, description="The Node object is deleted.")
    query: QueryGiven | None = Field(default=None, description="A query's answer.")
    alert: AlertGiven | None = Field(default=None, description="An alert fires or ends.")
    source: SourceGiven | None = Field(default=None, description="A source fails, or not.")
    pause: PauseGiven | None = Field(default=None, description="`remediator pause`.")
    resume: Empty | None = Field(default=None, description="`remediator resume`.")
    breaker_reset: ResetGiven | None = Field(default=None, description="A breaker is closed.")
    restart: Empty | None = Field(default=None, description="Another controller takes over.")
    work: WorkGiven | None = Field(default=None, description="How steps that take time end.")
    channel: ChannelGiven | None = Field(default=None, description="A channel fails, or not.")
    policy: SwitchGiven | None = Field(default=None, description="A policy is edited.")

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        given = self._given()
        known = ", ".join((*ON_NODES, *ON_ALL))
        if len(given) != 1:
            said = f"this one has {', '.join(given)}" if given else "this one has none"
            raise ValueError(f"an entry of a timeline is exactly one of: {known}; {said}")
        if self.node is not None and self.nodes:
            raise ValueError("give `node` or `nodes`, not both")
        if self.until is not None and self.every is None:
            raise ValueError("`until` goes with `every`")
        if self.every is not None and (self.until is None or self.every <= 0):
            raise ValueError("`every` needs `until`, and more than 0s")
        return self

    def _given(self) -> list[str]:
        fields = type(self).model_fields
        named = {info.alias or name: name for name, info in fields.items()}
        return [key for key in (*ON_NODES, *ON_ALL) if getattr(self, named[key]) is not None]

    @property
    def what(self) -> str:
        """The key of what happens."""
        return self._given()[0]

    @property
    def given(self) -> Any:
        """What is said about what happens."""
        named = {info.alias or name: name for name, info in type(self).model_fields.items()}
        return getattr(self, named[self.what])

    @property
    def named(self) -> tuple[str, ...]:
        """The nodes that are named; none: all."""
        return (self.node,) if self.node is not None else self.nodes
