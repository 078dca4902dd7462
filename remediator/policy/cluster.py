"""``RemediatorConfig``: what holds for the whole cluster, in one file.

Which nodes are GPU nodes, how they form pools and zones, the guards that hold
for every policy, and the channels that policies name. Settings of the process
itself (addresses, kubeconfig, lease) are :mod:`remediator.settings`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from remediator.policy.base import LabelKey, LabelSelector, Model
from remediator.policy.channels import Channel
from remediator.policy.drain import Evictions
from remediator.policy.model import (
    Breaker,
    Budget,
    BudgetPer,
    ClusterRates,
    Metadata,
    Mode,
)
from remediator.policy.quantities import Amount, Duration
from remediator.policy.sources import Alertmanager, Prometheus, Webhook, check_sources
from remediator.policy.steps import NAME_PATTERN
from remediator.policy.templates import Endpoint, Template


DEFAULT_BUDGETS: Final = (
    Budget.model_construct(max_unavailable=Amount(1, percent=False), per=BudgetPer.POOL),
    Budget.model_construct(max_unavailable=Amount(10, percent=True), per=BudgetPer.CLUSTER),
)
"""What holds where neither RemediatorConfig nor the policy sets a budget."""


class DryRun(StrEnum):
    """What a dry run asks of the API server."""

    CLIENT = "Client"
    SERVER = "Server"


class Pools(Model):
    """How nodes form pools: the value of the first of these labels that a node has."""

    labels: tuple[LabelKey, ...] = Field(
        default=(
            "gpu-remediator.io/pool",
            "karpenter.sh/nodepool",
            "eks.amazonaws.com/nodegroup",
            "cloud.google.com/gke-nodepool",
            "kubernetes.azure.com/agentpool",
        ),
        strict=False,
        description="Nodes with none of them form a pool of their own.",
    )


class Zones(Model):
    """How nodes form zones."""

    label: LabelKey = Field(
        default="topology.kubernetes.io/zone",
        description="Its value is the zone. Nodes without it form a zone of their own.",
    )


class Sanity(Model):
    """When agents as a whole are not to be believed: more than ``max(minAgents, percent)`` silent.

    Then no new disruptive step rests on what agents say.
    """

    min_agents: int = Field(default=2, ge=0, description="So many silent ones never matter.")
    percent: int = Field(default=20, ge=1, le=100, description="Of the GPU nodes with an agent.")


class Remediations(Model):
    """How long the records of sessions are kept, as `Remediation` objects. A view, no memory."""

    keep: int = Field(
        default=500, ge=0, le=20_000, description="So many that have ended. 0: none are written."
    )
    max_age: Duration = Field(default=90 * 86400.0, description="And none that ended before.")


class ClusterSpec(Model):
    """The settings that hold for the whole cluster."""

    mode: Mode = Field(
        default=Mode.DRY_RUN,
        strict=False,
        description="The most that any policy may do.",
    )
    dry_run: DryRun = Field(
        default=DryRun.CLIENT,
        strict=False,
        description="Client: a dry run sends nothing. Server: it sends its requests with"
        " dryRun=All, and says which would be refused.",
    )
    gpu_nodes: LabelSelector = Field(
        default_factory=lambda: LabelSelector.model_validate(
            {"matchLabels": {"nvidia.com/gpu.present": "true"}},
        ),
        description="The nodes that are ours to look at and that budgets count.",
    )
    pools: Pools = Field(default_factory=Pools, description="How nodes form pools.")
    zones: Zones = Field(default_factory=Zones, description="The label that names a node's zone.")
    budgets: tuple[Budget, ...] = Field(
        default=(),
        strict=False,
        description="Hold for every policy. None here and in the policy: 1 per pool, 10% of all.",
    )
    rates: ClusterRates = Field(
        default_factory=ClusterRates, description="Hold for every policy, per pool."
    )
    breaker: Breaker = Field(
        default_factory=Breaker,
        description="Of every source, and of every policy that has none of its own.",
    )
    sanity: Sanity = Field(
        default_factory=Sanity, description="When so many agents are silent that none is believed."
    )
    evictions: Evictions = Field(
        default_factory=Evictions, description="How fast drains evict, all together."
    )
    remediations: Remediations = Field(
        default_factory=Remediations, description="The records of sessions."
    )
    settling: Duration = Field(
        default=60.0,
        description="No new disruptive step for this long after the controller took over.",
    )
    tell_held_after: Duration = Field(
        default=3600.0,
        description="People are told once of a step that guards have held for this long; of a "
        "fatal fault also after 1m.",
    )
    channels: dict[str, Channel] = Field(
        default_factory=dict,
        description="By the names that policies use. `log` always exists.",
    )
    templates: dict[Annotated[str, Field(pattern=NAME_PATTERN)], Template] = Field(
        default_factory=dict,
        description="Objects that `job` and `create` steps make, by the names that they use.",
    )
    endpoints: dict[Annotated[str, Field(pattern=NAME_PATTERN)], Endpoint] = Field(
        default_factory=dict,
        description="Where `webhook` steps go, by the names that they use.",
    )
    alertmanagers: tuple[Alertmanager, ...] = Field(
        default=(), strict=False, description="Where alerts come from."
    )
    prometheus: tuple[Prometheus, ...] = Field(
        default=(),
        strict=False,
        description="Who answers queries; the first, where a policy names none.",
    )
    webhook: Webhook | None = Field(
        default=None, description="Lets Alertmanagers tell of an alert before the next poll."
    )
    alerts_to: tuple[str, ...] = Field(
        default=("log",),
        strict=False,
        description="Channels for what nobody else is told: breaker open, node frozen, holds.",
    )

    @field_validator("alerts_to")
    @classmethod
    def _channels_exist(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        known = ["log", *info.data.get("channels", names)]
        for name in names:
            if name not in known:
                raise ValueError(
                    f"{name} is no channel: write one of: {', '.join(known)},"
                    " or add it under spec.channels",
                )
        return names

    @model_validator(mode="after")
    def _sources_fit(self) -> Self:
        check_sources(self.alertmanagers, self.prometheus, self.webhook)
        return self


class RemediatorConfig(Model):
    """The file of the cluster's settings. Without one, the defaults hold."""

    api_version: Literal["gpu-remediator.io/v1alpha1"]
    kind: Literal["RemediatorConfig"]
    metadata: Metadata | None = None
    spec: ClusterSpec = Field(default_factory=ClusterSpec)
