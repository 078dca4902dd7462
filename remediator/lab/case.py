"""The file ``*.test.yaml``: nodes, a timeline of facts, and what must come of it.

One model makes the checks, the error messages and the JSON schema, as for policies. What a
timeline may say is :mod:`remediator.lab.given`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from remediator.decide.decision import HELD_BY_NO_GUARD, NodePhase
from remediator.decide.guards import GUARD_NAMES
from remediator.decide.session import Result
from remediator.lab.given import Happens, NodeGiven
from remediator.policy.base import LabelKey, Model
from remediator.policy.keys import closest
from remediator.policy.model import Metadata
from remediator.policy.quantities import Duration
from remediator.policy.steps import ACTIONS


KIND: Final = "PolicyTest"
_HOLDERS: Final = (*GUARD_NAMES, *HELD_BY_NO_GUARD)
_PHASES: Final = tuple(str(one) for one in NodePhase)


def _one_of(name: str, known: tuple[str, ...], what: str) -> str:
    """Return a name that there is: another one would never come, and never be missed."""
    if name in known:
        return name
    meant = closest(name, known) or f"one of: {', '.join(known)}"
    raise ValueError(f"{name} is no {what}: write {meant}")


class _Expected(Model):
    """What all expectations have in common."""

    node: str | None = Field(default=None, description="Which node; default: any of them.")
    policy: str | None = Field(default=None, description="Whose; default: any policy's.")


class StepExpected(_Expected):
    """A step that ends, or that is undone (`uncordon`, `untaint`)."""

    step: str = Field(min_length=1, examples=["cordon"], description="The action, or its undo.")
    at: Duration | None = Field(default=None, description="Exactly then, to the second.")
    after: Duration | None = Field(default=None, description="Not before.")
    by: Duration | None = Field(default=None, description="Not after.")
    result: Annotated[Result, Field(strict=False)] = Field(
        default=Result.DONE, description="How it ended."
    )
    count: int | None = Field(default=None, ge=0, description="Exactly so many of them.")

    @field_validator("step")
    @classmethod
    def _known_step(cls, name: str) -> str:
        return _one_of(name, ACTIONS, "step")


class HoldExpected(_Expected):
    """A guard, or something else, that holds a step back."""

    guard: str = Field(min_length=1, examples=["budget"], description="As `status` names it.")
    at: Duration | None = Field(default=None, description="Then; default: at any time.")
    reason: str = Field(default="", description="A part of the reason.")

    @field_validator("guard")
    @classmethod
    def _known_guard(cls, name: str) -> str:
        return _one_of(name, _HOLDERS, "guard, and nothing else that holds")


class MessageExpected(_Expected):
    """A message that is sent."""

    to: str | None = Field(default=None, description="A channel that it goes to.")
    contains: str = Field(default="", description="A part of its title or text.")
    after: Duration | None = Field(default=None, description="Not before.")
    by: Duration | None = Field(default=None, description="Not after.")
    count: int | None = Field(default=None, ge=0, description="Exactly so many of them.")


class EventExpected(_Expected):
    """A Kubernetes Event of a step."""

    reason: str = Field(min_length=1, description="Its reason.")
    by: Duration | None = Field(default=None, description="Not after.")


class NodeExpected(Model):
    """A node as it is at a time. In dry-run: as it would be."""

    at: Duration = Field(description="When; what happens at that instant has happened.")
    node: str | None = Field(default=None, description="Default: every node.")
    cordoned: bool | None = Field(default=None, description="Unschedulable.")
    tainted: str | None = Field(default=None, description="A taint of this key is there.")
    untainted: str | None = Field(default=None, description="No taint of this key is there.")
    labels: dict[LabelKey, str] = Field(default_factory=dict, description="They are there.")
    session: bool | None = Field(default=None, description="A session is on it.")
    phase: str | None = Field(default=None, description="As `status` names it.")

    @field_validator("phase")
    @classmethod
    def _known_phase(cls, name: str | None) -> str | None:
        return name if name is None else _one_of(name, _PHASES, "phase")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        said = (self.cordoned, self.tainted, self.untainted, self.session, self.phase)
        if all(one is None for one in said) and not self.labels:
            raise ValueError(
                "say what the node is like: cordoned, tainted, untainted, labels, session or phase"
            )
        return self


class Expect(Model):
    """What must have come of a timeline."""

    steps: tuple[StepExpected, ...] = Field(
        default=(), strict=False, description="Each must be found; per node in this order."
    )
    holds: tuple[HoldExpected, ...] = Field(default=(), strict=False, description="Of guards.")
    messages: tuple[MessageExpected, ...] = Field(
        default=(), strict=False, description="In any order."
    )
    events: tuple[EventExpected, ...] = Field(default=(), strict=False, description="On nodes.")
    nodes: tuple[NodeExpected, ...] = Field(default=(), strict=False, description="At times.")


class ExpectNot(Model):
    """What must not have come of it."""

    steps: tuple[StepExpected, ...] = Field(default=(), strict=False, description="None of these.")
    holds: tuple[HoldExpected, ...] = Field(default=(), strict=False, description="None of these.")
    messages: tuple[MessageExpected, ...] = Field(
        default=(), strict=False, description="None of these."
    )
    events: tuple[EventExpected, ...] = Field(
        default=(), strict=False, description="None of these."
    )


class Case(Model):
    """One test: a timeline and what must come of it."""

    name: str = Field(min_length=1, max_length=200, description="What it shows, in words.")
    mode: Literal["Enforce", "DryRun"] | None = Field(
        default=None, description="In place of the file's `mode`."
    )
    nodes: tuple[NodeGiven, ...] = Field(
        default=(), strict=False, description="In place of the file's nodes."
    )
    timeline: tuple[Happens, ...] = Field(default=(), strict=False, description="What happens.")
    until: Duration | None = Field(
        default=None, description="The end; default: an hour after the last time that is named."
    )
    expect: Expect = Field(default_factory=Expect, description="What must come of it.")
    expect_not: ExpectNot = Field(default_factory=ExpectNot, description="What must not.")
    quiet: bool = Field(
        default=False,
        description="Nothing at all is done, told or held. `true` is itself an expectation.",
    )

    @model_validator(mode="after")
    def _expects_something(self) -> Self:
        wanted = (*_lists(self.expect), *_lists(self.expect_not))
        if not self.quiet and not any(wanted):
            raise ValueError(
                "a test that expects nothing cannot fail: write expect, or quiet: true"
            )
        if self.quiet and any(_lists(self.expect)):
            raise ValueError(
                "`quiet: true` says that nothing happens, and `expect` that something does"
            )
        return self


class TestSpec(Model):
    """The tests of one file."""

    __test__ = False  # no test class, whatever pytest thinks of its name

    policies: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Policy files, from this file's folder. Default: the one of the same name.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="`spec` of a RemediatorConfig, its mode left out. Default: the defaults.",
    )
    mode: Literal["Enforce", "DryRun"] = Field(
        default="Enforce",
        description="The policies are tested as though their own mode were this.",
    )
    start: str = Field(
        default="2026-01-05T12:00:00Z",
        description="The time of day at the beginning (RFC 3339), for windows.",
    )
    settled: bool = Field(
        default=True,
        description="The controller has run for a while; `false`: it takes over at 0s.",
    )
    nodes: tuple[NodeGiven, ...] = Field(
        default_factory=lambda: (NodeGiven(name="gpu-1"),),
        strict=False,
        description="Default: one, `gpu-1`.",
    )
    tests: tuple[Case, ...] = Field(min_length=1, strict=False, description="One after the other.")

    @field_validator("start")
    @classmethod
    def _is_a_time(cls, text: str) -> str:
        try:
            instant(text)
        except ValueError:
            raise ValueError(f'{text} is no time: write one as "2026-01-05T12:00:00Z"') from None
        return text


class PolicyTest(Model):
    """A file of policy tests."""

    api_version: Literal["gpu-remediator.io/v1alpha1"]
    kind: Literal["PolicyTest"]
    metadata: Metadata | None = None
    spec: TestSpec


def instant(text: str) -> float:
    """Return epoch seconds of a date with its time; in UTC, where no zone is given.

    Raises:
        ValueError: it is none.
    """
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _lists(expected: Expect | ExpectNot) -> list[tuple[Any, ...]]:
    return [getattr(expected, name) for name in type(expected).model_fields]
