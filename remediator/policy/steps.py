"""The steps of a policy: what each does, its deadline, and what follows a failure.

A step is one model of optional fields, of which exactly one is the action: a tagged
union would turn one misspelt key into one error per alternative.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from remediator.policy.base import Model, schema_keywords
from remediator.policy.quantities import Duration


OWN_KEY_PATTERN: Final = r"^gpu-remediator\.io/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN: Final = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
REASON_PATTERN: Final = r"^[A-Z][A-Za-z0-9]{0,127}$"


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


CHANGES: Final = ("cordon", "taint")
"""Actions that change the node, and that are undone."""
ACTIONS: Final = (*CHANGES, "notify", "event")
"""Keys of a step that say what it does; exactly one of them is set."""


class Step(Model):
    """One step: exactly one action, its deadline, and what follows a failure."""

    model_config = schema_keywords(oneOf=[{"required": [name]} for name in ACTIONS])

    cordon: Cordon | None = Field(default=None, description="Mark the node unschedulable.")
    taint: TaintNode | None = Field(default=None, description="Taint the node.")
    notify: Notify | None = Field(default=None, description="Send a message.")
    event: EmitEvent | None = Field(default=None, description="Write an Event on the node.")
    timeout: Duration = Field(default=300.0, description="Deadline of the step.")
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
        return OnFailure.HOLD if self.changes_node else OnFailure.CONTINUE

    @cached_property
    def changes_node(self) -> bool:
        """Whether it changes the node, rather than tells people."""
        return self.action in CHANGES

    @cached_property
    def disruptive(self) -> bool:
        """Whether it takes capacity away: then the guards are asked before it."""
        return self.cordon is not None or (self.taint is not None and self.taint.keeps_away)
