"""What a session keeps of the policy that started it: its steps, and how they are undone."""

from __future__ import annotations

from functools import lru_cache

from pydantic import Field

from remediator.policy.base import Model
from remediator.policy.model import Recover
from remediator.policy.steps import Step


class Plan(Model):
    """What a session keeps of the policy that started it."""

    steps: tuple[Step, ...] = Field(min_length=1, strict=False)
    recover: Recover = Field(default_factory=Recover, description="How it is undone.")

    @property
    def channels(self) -> tuple[str, ...]:
        """Channels of the notify steps, each once, in order."""
        named = (name for step in self.steps if step.notify for name in step.notify.to)
        return tuple(dict.fromkeys(named))


@lru_cache(maxsize=256)
def parse_plan(text: str) -> Plan:
    """Read a session's plan. Raises ValueError (pydantic's) if it is none."""
    return Plan.model_validate_json(text)
