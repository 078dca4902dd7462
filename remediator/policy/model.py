"""The policy file: ``RemediationPolicy``, as SREs write it.

One model makes the checks, the JSON schema for editors and, later, the CRD. It
is frozen and pure: reading files and placing errors is :mod:`remediator.policy.load`.

Its parts have modules of their own: the clauses of ``when`` and ``unless`` are
:mod:`remediator.policy.when`, steps :mod:`remediator.policy.steps`, windows
:mod:`remediator.policy.windows`.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from remediator.policy.base import LabelSelector, Model
from remediator.policy.codes import Asked
from remediator.policy.quantities import Duration, NodeAmount, Rate, StartRate
from remediator.policy.steps import Step
from remediator.policy.when import Unless, When, joined
from remediator.policy.windows import Window


MAX_STEPS_BYTES: Final = 8192
"""Of a policy's steps as JSON. A session on the Node holds those of several policies."""
API_VERSION: Final = "gpu-remediator.io/v1alpha1"
NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$"


class Mode(StrEnum):
    """What a policy may do. The default changes nothing in the cluster."""

    DISABLED = "Disabled"
    DRY_RUN = "DryRun"
    ENFORCE = "Enforce"


class RecoverWhen(StrEnum):
    """When what a policy did is undone."""

    CLEARED = "cleared"
    MANUAL = "manual"
    NEVER = "never"


class BudgetPer(StrEnum):
    """The group of nodes that a budget counts."""

    POOL = "pool"
    ZONE = "zone"
    CLUSTER = "cluster"


class Nodes(Model):
    """Which nodes a policy is about."""

    selector: LabelSelector = Field(
        default_factory=LabelSelector,
        description="Labels that a node must have. Empty: every GPU node.",
    )
    control_plane: bool = Field(
        default=False,
        description="Also act on control-plane nodes. They are left alone unless named here.",
    )


class Budget(Model):
    """How many nodes may be unavailable at once, counting everyone's."""

    max_unavailable: NodeAmount = Field(
        examples=["10%"],
        description="Nodes, or percent of the group: rounded down, at least 1 unless 0%.",
    )
    per: Annotated[BudgetPer, Field(strict=False)] = Field(
        default=BudgetPer.POOL,
        description="The group that is counted.",
    )


RATED: Final = ("cordon", "drain", "job")
"""Classes of actions that rates count apart."""


class Rates(Model):
    """How often an action may start, per pool."""

    cordon: StartRate | None = Field(
        default=None, description="Nodes cordoned, or tainted so that pods stay away."
    )
    drain: StartRate | None = Field(default=None, description="Drains begun.")
    job: StartRate | None = Field(default=None, description="Jobs begun: resets, reboots.")

    def of(self, action: str) -> Rate | None:
        """Return the rate of a class of actions, one of :data:`RATED`."""
        rate: Rate | None = getattr(self, action) if action in RATED else None
        return rate


class ClusterRates(Rates):
    """How often an action may start, per pool, whatever the policy says."""

    cordon: StartRate = Field(
        default=Rate(10, 600.0), description="Nodes cordoned, or tainted so that pods stay away."
    )
    drain: StartRate = Field(default=Rate(2, 600.0), description="Drains begun.")
    job: StartRate = Field(default=Rate(1, 600.0), description="Jobs begun: resets, reboots.")


_SHORTEST_COOLDOWN: Final = 60.0


class Breaker(Model):
    """When so many nodes match at once that the signal itself is suspect.

    Opens at more than ``max(minNodes, percent of the policy's nodes)`` nodes that
    newly match within ``window``.
    """

    min_nodes: int = Field(default=3, ge=1, description="It never opens at this many or fewer.")
    percent: int = Field(
        default=20, ge=1, le=100, description="Of the nodes that the policy is about."
    )
    window: Duration = Field(default=300.0, description="How far back nodes are counted.")
    cooldown: Duration | None = Field(
        default=None,
        description="Closes by itself when, for so long, no node newly matched and no more than"
        " are believable still match: 1m or more. Default: only people close it.",
    )

    @field_validator("cooldown")
    @classmethod
    def _no_flicker(cls, seconds: float | None) -> float | None:
        if seconds is not None and seconds < _SHORTEST_COOLDOWN:
            raise ValueError("a storm is over when it stays so: write 1m or more")
        return seconds


class Limits(Model):
    """A policy's own guards, beside the cluster's. All must allow."""

    budget: Budget | None = Field(default=None, description="Nodes unavailable at once.")
    rate: Rates = Field(default_factory=Rates, description="Actions started per time.")
    breaker: Breaker | None = Field(default=None, description="In place of the cluster's.")
    max_attempts: int = Field(
        default=3,
        ge=1,
        description="Sessions per node in 24 h that took it out of service or worked on it; the one"
        " after that escalates to people.",
    )


class Recover(Model):
    """When what this policy added is undone, and how long the node must have been well."""

    when: Annotated[RecoverWhen, Field(strict=False)] = Field(
        default=RecoverWhen.CLEARED,
        description="cleared: by itself; manual: when people say so; never: nothing is undone.",
    )
    for_: Duration = Field(
        default=600.0,
        alias="for",
        description="How long the node must have been well. Doubled for each earlier attempt on it"
        " within 24 h, up to 4h.",
    )
    notify: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Channels told of the recovery. Empty: those of the policy's notify steps.",
    )


class Spec(Model):
    """The policy itself."""

    mode: Annotated[Mode, Field(strict=False)] = Field(
        default=Mode.DRY_RUN,
        description="The strictest of this, the cluster's and the node's mode holds.",
    )
    emergency: bool = Field(
        default=False,
        description="Decided before all others, and passes maintenance windows.",
    )
    nodes: Nodes = Field(default_factory=Nodes, description="Default: every GPU node.")
    when: tuple[When, ...] = Field(
        min_length=1,
        strict=False,
        examples=[[{"xid": {"codes": [79]}}]],
        description="The faults. Any entry is enough; within an entry all keys must hold.",
    )
    unless: tuple[Unless, ...] = Field(
        default=(),
        strict=False,
        description="While any entry holds, or cannot be told, no disruptive step begins.",
    )
    windows: tuple[Window, ...] = Field(
        default=(),
        strict=False,
        description="When disruptive steps may begin. Outside they are held, not lost.",
    )
    limits: Limits = Field(default_factory=Limits, description="Default: the cluster's only.")
    steps: tuple[Step, ...] = Field(
        min_length=1,
        max_length=64,
        strict=False,
        examples=[[{"cordon": {}}]],
        description="What is done, one after the other.",
    )
    recover: Recover = Field(
        default_factory=Recover,
        description="How it is undone. Default: by itself, after 10m without the fault.",
    )

    @model_validator(mode="after")
    def _fits_a_session(self) -> Self:
        size = sum(len(step.model_dump_json(by_alias=True)) for step in self.steps)
        if size > MAX_STEPS_BYTES:
            raise ValueError(
                f"the steps take {size} bytes, and a node's session keeps at most "
                f"{MAX_STEPS_BYTES}: shorten their messages",
            )
        return self


class Metadata(Model):
    """Name of the policy; labels and annotations are kept for people."""

    name: str = Field(
        pattern=NAME_PATTERN,
        examples=["gpu-fallen-off-bus"],
        description="Unique among all policies that are loaded.",
    )
    namespace: str = Field(
        default="", description="Where an object is applied to. In a file it means nothing."
    )
    labels: dict[str, str] = Field(default_factory=dict, description="For people.")
    annotations: dict[str, str] = Field(default_factory=dict, description="For people.")


class RemediationPolicy(Model):
    """A policy: which faults, on which nodes, lead to which steps."""

    api_version: Literal["gpu-remediator.io/v1alpha1"]
    kind: Literal["RemediationPolicy"]
    metadata: Metadata
    spec: Spec

    @cached_property
    def name(self) -> str:
        """``metadata.name``."""
        return self.metadata.name

    @cached_property
    def asked(self) -> Asked | None:
        """What our agent must say for "not there"; see :attr:`Clauses.asked`."""
        return joined(entry.asked for entry in self.spec.when)

    @cached_property
    def selects(self) -> str:
        """The nodes' selector as text: equal for policies that select alike."""
        return self.spec.nodes.selector.model_dump_json()

    @cached_property
    def version(self) -> str:
        """Short hash of the spec: changes with its meaning, not with its formatting."""
        meaning = self.spec.model_dump(mode="json", by_alias=True)
        text = json.dumps(meaning, sort_keys=True)  # the order of labels means nothing
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @cached_property
    def plan(self) -> str:
        """Steps and recovery as JSON: what a session keeps, so that it ends as it began."""
        return self.spec.model_dump_json(
            by_alias=True, include={"steps", "recover"}, exclude_defaults=True
        )
