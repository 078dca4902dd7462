"""The steps of a policy: what each does, its deadline, and what follows a failure.

A step is one model of optional fields, of which exactly one is the action: a tagged
union would turn one misspelt key into one error per alternative.

Four kinds: *changes* of the node (one patch), *tellings* (messages and Events), *work*
(drain, job, create, webhook: takes time, is followed until it ends) and *waits*.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from remediator.policy.base import LabelKey, Model, schema_keywords
from remediator.policy.drain import Drain
from remediator.policy.quantities import Duration


HOUR: Final = 3600.0
OWN_KEY_PATTERN: Final = r"^gpu-remediator\.io/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN: Final = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
REASON_PATTERN: Final = r"^[A-Z][A-Za-z0-9]{0,127}$"
NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$"
"""Of templates and endpoints in RemediatorConfig: becomes part of an object's name."""
RESERVED: Final = frozenset(
    f"gpu-remediator.io/{name}"
    for name in (
        *("session", "history", "request", "approval", "mode", "pool"),
        *("gpu-faults", "set-healthy"),
    )
)
"""Keys by which agent, controller and people talk; no step may write them."""


class OnFailure(StrEnum):
    """What follows a step that failed or ran out of time."""

    HOLD = "hold"
    CONTINUE = "continue"
    ESCALATE = "escalate"


class Cordon(Model):
    """Mark the node unschedulable."""


class TaintNode(Model):
    """Taint the node, so that pods without a toleration stay away or, with NoExecute, leave.

    NoExecute evicts at once and asks no PodDisruptionBudget. It also evicts daemons that do
    not tolerate it, such as device plugins.
    """

    model_config = schema_keywords(
        **{
            "if": {"properties": {"effect": {"const": "NoExecute"}}, "required": ["effect"]},
            "then": {"required": ["acknowledge"]},
        }
    )

    key: str = Field(
        default="gpu-remediator.io/unhealthy",
        pattern=OWN_KEY_PATTERN,
        description="Begins with `gpu-remediator.io/`: then nobody else's taint is meant.",
    )
    value: str = Field(
        default="", pattern=LABEL_VALUE_PATTERN, description="For tolerations that compare it."
    )
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(
        default="NoSchedule",
        description="All but `PreferNoSchedule` take capacity, and are guarded like a cordon.",
    )
    acknowledge: Literal["evicts-daemons"] | None = Field(
        default=None, description="Must be there with `NoExecute`."
    )

    @model_validator(mode="after")
    def _evicts_knowingly(self) -> Self:
        if self.effect == "NoExecute" and self.acknowledge is None:
            raise ValueError(
                "NoExecute evicts daemons such as the device plugin, too:"
                " write `acknowledge: evicts-daemons` beside it, or effect: NoSchedule",
            )
        return self

    @property
    def keeps_away(self) -> bool:
        """Whether it takes the node's capacity away."""
        return self.effect != "PreferNoSchedule"


def _not_reserved(key: str) -> str:
    if key in RESERVED:
        raise ValueError(f"{key} is read by gpu-remediator itself: choose another key")
    return key


FreeKey = Annotated[LabelKey, AfterValidator(_not_reserved)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE_PATTERN)]
AnnotationValue = Annotated[str, Field(max_length=256)]


class LabelNode(Model):
    """Set labels of the node; recovery puts the old values back where ours still stand."""

    set: dict[FreeKey, LabelValue] = Field(
        min_length=1,
        examples=[{"nvidia.com/gpu.deploy.dcgm-exporter": "false"}],
        description="Keys and values. A person who changes one meanwhile keeps their value.",
    )


class AnnotateNode(Model):
    """Set annotations of the node; recovery puts the old values back where ours still stand."""

    set: dict[FreeKey, AnnotationValue] = Field(
        min_length=1,
        examples=[{"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}],
        description="Keys and values. A person who changes one meanwhile keeps their value.",
    )


class Uncordon(Model):
    """Take away the cordon that this session added, before its end. Any other cordon stays."""


class Untaint(Model):
    """Take away a taint that this session added, before its end. Any other taint stays."""

    key: str = Field(
        default="gpu-remediator.io/unhealthy",
        pattern=OWN_KEY_PATTERN,
        description="As of the taint step.",
    )
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(
        default="NoSchedule", description="As of the taint step."
    )


class JobSuccess(StrEnum):
    """What proves that a Job did its work."""

    COMPLETION = "completion"
    REBOOT = "reboot"


class RunJob(Model):
    """Run a Job on the node: reset, reboot, diagnostics."""

    template: str = Field(
        pattern=NAME_PATTERN,
        examples=["gpu-reset"],
        description="Name under spec.templates of RemediatorConfig.",
    )
    success: Annotated[JobSuccess, Field(strict=False)] = Field(
        default=JobSuccess.COMPLETION,
        description="completion: the Job is complete; reboot: a new boot id and Ready.",
    )
    max_attempts: int = Field(
        default=1, ge=1, le=5, description="Jobs that are made before onFailure holds."
    )


class StatusCondition(Model):
    """A condition in an object's `status.conditions`."""

    type: str = Field(min_length=1, max_length=316, examples=["Complete"], description="Its type.")
    status: Literal["True", "False", "Unknown"] = Field(
        default="True", description='In quotes: `"True"` is text, `True` a boolean.'
    )


class CreateObject(Model):
    """Create any object from a template, such as another operator's reboot request."""

    model_config = schema_keywords(dependentRequired={"failOn": ["waitFor"]})

    template: str = Field(
        pattern=NAME_PATTERN,
        examples=["reboot-request"],
        description="Name under spec.templates of RemediatorConfig.",
    )
    wait_for: StatusCondition | None = Field(
        default=None, description="Done when the object says so. Default: once it is created."
    )
    fail_on: StatusCondition | None = Field(
        default=None, description="Failed when the object says so. Only beside `waitFor`."
    )

    @model_validator(mode="after")
    def _fails_while_it_waits(self) -> Self:
        if self.fail_on is not None and self.wait_for is None:
            raise ValueError(
                "failOn is looked at while the step waits: write waitFor beside it, or leave it out"
            )
        return self


class CallWebhook(Model):
    """POST a signed request to an endpoint, at least once, with one idempotency key."""

    to: str = Field(
        pattern=NAME_PATTERN,
        examples=["reset-service"],
        description="Name under spec.endpoints of RemediatorConfig.",
    )
    data: dict[str, Annotated[str, Field(max_length=500)]] = Field(
        default_factory=dict,
        max_length=20,
        description="Sent along. `{node}`, `{uid}`, `{session}`, `{attempt}`, `{policy}` are"
        " filled in.",
    )


class NodeConditionWait(StatusCondition):
    """A node condition to wait for, of any writer."""

    reasons: tuple[str, ...] = Field(
        default=(), strict=False, description="Only these reasons count. Empty: any."
    )
    for_: Duration = Field(
        default=0.0, alias="for", description="How long it must have lasted, by our own clock."
    )


class Wait(Model):
    """Wait for a node condition, or for a time."""

    model_config = schema_keywords(oneOf=[{"required": ["condition"]}, {"required": ["for"]}])

    condition: NodeConditionWait | None = Field(
        default=None, description="Goes on once the node has it; `timeout` is its deadline."
    )
    for_: Duration | None = Field(
        default=None, alias="for", description="Goes on after this long. It cannot fail."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.condition is None) == (self.for_ is None):
            raise ValueError("wait takes exactly one of: condition, for")
        return self


class Approve(Model):
    """Wait until a person approves: `remediator approve NODE`. None in time: held."""

    to: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Channels that are asked. Empty: those of the notify steps.",
    )
    message: str = Field(default="", max_length=2000, description="Added to the question.")


class Notify(Model):
    """Send a message to channels of RemediatorConfig."""

    to: tuple[str, ...] = Field(
        min_length=1,
        strict=False,
        examples=[["log"]],
        description="Names of channels; `log`, the controller's log, always exists.",
    )
    message: str = Field(
        default="", max_length=2000, description="Added to the text that is sent anyway."
    )


class EmitEvent(Model):
    """Write a Kubernetes Event on the node."""

    reason: str = Field(
        default="GPURemediation", pattern=REASON_PATTERN, description="One word for machines."
    )
    message: str = Field(
        default="", max_length=900, description="Added to the text that is written anyway."
    )


CHANGES: Final = ("cordon", "taint", "label", "annotate", "uncordon", "untaint")
"""Actions that are one change of the node, in the patch that records them."""
WORKS: Final = ("drain", "job", "create", "webhook")
"""Actions that take time outside the node object, and that guards are asked about."""
WAITS: Final = ("wait", "approve")
"""Actions that only wait."""
ACTIONS: Final = (*CHANGES, "notify", "event", *WORKS, *WAITS)
"""Keys of a step that say what it does; exactly one of them is set."""

DEADLINES: Final = {
    "drain": HOUR,
    "job": HOUR / 2,
    "create": HOUR / 2,
    "wait": HOUR / 2,
    "approve": 24 * HOUR,
}
"""Seconds that a step may take where its ``timeout`` is not given; all others: 5 minutes."""


class Step(Model):
    """One step: exactly one action, its deadline, and what follows a failure."""

    model_config = schema_keywords(oneOf=[{"required": [name]} for name in ACTIONS])

    cordon: Cordon | None = Field(default=None, description="Mark the node unschedulable.")
    taint: TaintNode | None = Field(default=None, description="Taint the node.")
    label: LabelNode | None = Field(default=None, description="Set labels of the node.")
    annotate: AnnotateNode | None = Field(default=None, description="Set annotations of the node.")
    drain: Drain | None = Field(default=None, description="Evict the node's pods.")
    notify: Notify | None = Field(default=None, description="Send a message.")
    event: EmitEvent | None = Field(default=None, description="Write an Event on the node.")
    job: RunJob | None = Field(default=None, description="Run a Job on the node.")
    create: CreateObject | None = Field(default=None, description="Create an object.")
    webhook: CallWebhook | None = Field(default=None, description="Call an endpoint.")
    wait: Wait | None = Field(default=None, description="Wait for a condition or a time.")
    approve: Approve | None = Field(default=None, description="Wait for a person's approval.")
    uncordon: Uncordon | None = Field(default=None, description="Take our cordon away.")
    untaint: Untaint | None = Field(default=None, description="Take a taint of ours away.")
    timeout: Duration | None = Field(
        default=None,
        description="Deadline. Default: 5m; drain 1h; job, create, wait 30m; approve 24h.",
    )
    on_failure: Annotated[OnFailure, Field(strict=False)] | None = Field(
        default=None,
        description="Default: hold; for notify and event: continue.",
    )

    @model_validator(mode="after")
    def _exactly_one_action(self) -> Self:
        given = [name for name in ACTIONS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"a step is exactly one of: {', '.join(ACTIONS)}; "
                + (f"this one has {', '.join(given)}" if given else "this one has none"),
            )
        if self.approve is not None and self.on_failure is OnFailure.CONTINUE:
            raise ValueError(
                "approve does not go on without an approval: onFailure is hold or escalate"
            )
        return self

    @cached_property
    def action(self) -> str:
        """The name of the action, such as ``cordon``."""
        return next(name for name in ACTIONS if getattr(self, name) is not None)

    @property
    def after_failure(self) -> OnFailure:
        """``onFailure``, or the action's default."""
        if self.on_failure is not None:
            return self.on_failure
        return OnFailure.CONTINUE if self.tells else OnFailure.HOLD

    @property
    def limit(self) -> float:
        """Seconds that it may take: ``timeout``, or the action's default."""
        return self.timeout if self.timeout is not None else DEADLINES.get(self.action, 300.0)

    @cached_property
    def tells(self) -> bool:
        """Whether it tells people, and does nothing to the node."""
        return self.notify is not None or self.event is not None

    @cached_property
    def changes_node(self) -> bool:
        """Whether it is one change of the node, made in the patch that records it."""
        return self.action in CHANGES

    @cached_property
    def works(self) -> bool:
        """Whether it takes time outside the node object."""
        return self.action in WORKS

    @cached_property
    def work_class(self) -> str:
        """What guards are asked about before it: ``drain``, or ``job`` for all other work."""
        return "drain" if self.drain is not None else "job"

    @cached_property
    def disruptive(self) -> bool:
        """Whether it takes capacity away: then the guards are asked before it."""
        return self.cordon is not None or (self.taint is not None and self.taint.keeps_away)
