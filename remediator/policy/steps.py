"""The steps of a policy: what each does, its deadline, and what follows a failure.

A step is one model of optional fields, of which exactly one is the action: a tagged
union would turn one misspelt key into one error per alternative.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from remediator.policy.base import Model, schema_keywords
from remediator.policy.quantities import Duration


REASON_PATTERN: Final = r"^[A-Z][A-Za-z0-9]{0,127}$"


class OnFailure(StrEnum):
    """What follows a step that failed or ran out of time."""

    HOLD = "hold"
    CONTINUE = "continue"
    ESCALATE = "escalate"


class Cordon(Model):
    """Mark the node unschedulable."""


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


ACTIONS: Final = ("cordon", "notify", "event")
"""Keys of a step that say what it does; exactly one of them is set."""


class Step(Model):
    """One step: exactly one action, its deadline, and what follows a failure."""

    model_config = schema_keywords(oneOf=[{"required": [name]} for name in ACTIONS])

    cordon: Cordon | None = Field(default=None, description="Mark the node unschedulable.")
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
        return OnFailure.HOLD if self.action == "cordon" else OnFailure.CONTINUE
