"""How a drain treats the pods of a node.

Deadline and what follows it are the step's own ``timeout`` and ``onFailure``. What no
setting changes: mirror pods, pods of a DaemonSet and gpu-remediator's own pods stay,
and a pod that is already terminating is waited for, not asked again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import Field, StringConstraints, model_validator

from remediator.policy.base import LabelSelector, Model, schema_keywords
from remediator.policy.quantities import Duration


GPU_RESOURCES: Final = (
    *("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*"),
    *("amd.com/gpu", "gpu.intel.com/*"),
)
NAMESPACE_PATTERN: Final = r"^[-a-z0-9*]+$"
RESOURCE_PATTERN: Final = r"^[-A-Za-z0-9._/*]+$"

_NAMESPACE = Annotated[
    str, StringConstraints(pattern=NAMESPACE_PATTERN, min_length=1, max_length=63)
]
_RESOURCE = Annotated[str, StringConstraints(pattern=RESOURCE_PATTERN, max_length=317)]


class Protection(StrEnum):
    """Why a pod is not evicted although nothing else speaks against it."""

    EMPTY_DIR = "emptyDir"
    """It keeps data on the node's disk, in an emptyDir, which an eviction deletes."""
    UNMANAGED = "unmanaged"
    """No controller makes it anew elsewhere."""
    ANNOTATED = "annotated"
    """Its owner says that it must not be evicted."""


_Despite = Annotated[
    tuple[Annotated[Protection, Field(strict=False)], ...],
    Field(strict=False, max_length=len(Protection)),
]


class OnWindowEnd(StrEnum):
    """What becomes of a drain when its policy's windows close."""

    FINISH = "finish"
    PAUSE = "pause"


class OnRecovery(StrEnum):
    """What becomes of a drain when the fault clears meanwhile."""

    STOP = "stop"
    FINISH = "finish"


class Completed(StrEnum):
    """What becomes of pods that have ended."""

    SKIP = "skip"
    EVICT = "evict"


class EvictPods(Model):
    """Evict them now; PodDisruptionBudgets are respected, for as long as it takes."""


class SkipPods(Model):
    """Leave them where they are; the drain does not wait for them."""


class WaitForCompletion(Model):
    """Let them run to their end."""

    max_wait: Duration | None = Field(
        default=None,
        description="After this long, since the drain began, they are evicted. Default: the"
        " step's deadline ends the wait.",
    )


class DeletePods(Model):
    """Evict them now, and delete what is left after a time, past its PodDisruptionBudget."""

    timeout: Duration = Field(
        description="After this long, since the drain began, what is left is deleted."
    )


BEHAVIOURS: Final = ("evict", "skip", "wait_completion", "delete_after")
_KEYS: Final = ("evict", "skip", "waitCompletion", "deleteAfter")


class PodRule(Model):
    """What becomes of some pods: exactly one of evict, skip, waitCompletion, deleteAfter."""

    model_config = schema_keywords(oneOf=[{"required": [key]} for key in _KEYS])

    selector: LabelSelector = Field(
        default_factory=LabelSelector, description="Labels of the pods. Empty: all."
    )
    namespaces: tuple[_NAMESPACE, ...] = Field(
        default=(),
        strict=False,
        examples=[["team-*"]],
        description="Of the pods; `*` stands for any text. Empty: all.",
    )
    order: int = Field(
        default=0,
        ge=-1000,
        le=1000,
        description="Pods of a higher order are left alone until those of every lower are gone.",
    )
    despite: _Despite = Field(
        default=(), description="Protections that do not count for these pods."
    )
    evict: EvictPods | None = Field(default=None, description="Evict them.")
    skip: SkipPods | None = Field(default=None, description="Leave them.")
    wait_completion: WaitForCompletion | None = Field(
        default=None, description="Let them run to their end."
    )
    delete_after: DeletePods | None = Field(
        default=None, description="Evict them; later delete them past their budget."
    )

    @model_validator(mode="after")
    def _exactly_one_behaviour(self) -> Self:
        given = [
            key
            for key, name in zip(_KEYS, BEHAVIOURS, strict=True)
            if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise ValueError(
                f"a pod rule is exactly one of: {', '.join(_KEYS)}; "
                + (f"this one has {', '.join(given)}" if given else "this one has none"),
            )
        return self


class ForceDelete(Model):
    """Delete without waiting for the kubelet, which does not answer.

    Only pods that are terminating on a node that is not Ready. Their processes may go on all
    the same: a second copy can then run beside the first.
    """

    after: Duration = Field(description="For pods that have been terminating this long.")
    stateful_sets: bool = Field(
        default=False,
        description="Also pods of a StatefulSet, of which two must never run: data may be lost.",
    )


class Drain(Model):
    """Evict the node's pods, PodDisruptionBudgets respected.

    Done when every pod that has to leave is gone, not when its eviction was accepted. Needs
    a node that takes no new pods: put a `cordon` (or a `taint` with NoSchedule) before it.
    """

    gpu_pods_only: bool = Field(
        default=False,
        description="Only pods that ask for a GPU, by a resource or by a resource claim.",
    )
    gpu_resources: tuple[_RESOURCE, ...] = Field(
        default=GPU_RESOURCES,
        strict=False,
        min_length=1,
        description="What a GPU is called among a container's resources; `*` stands for any text.",
    )
    pods: tuple[PodRule, ...] = Field(
        default=(),
        strict=False,
        max_length=50,
        examples=[[{"selector": {"matchLabels": {"job": "training"}}, "waitCompletion": {}}]],
        description="The first rule that fits a pod counts. None fits: it is evicted.",
    )
    despite: _Despite = Field(
        default=(),
        examples=[["emptyDir"]],
        description="Protections that do not count. By default each blocks the drain: `emptyDir`"
        " (data on disk), `unmanaged` (no controller), `annotated` (its owner forbids it).",
    )
    completed: Annotated[Completed, Field(strict=False)] = Field(
        default=Completed.SKIP,
        description="Pods that have ended: skip keeps their logs, evict deletes them.",
    )
    strict: bool = Field(
        default=False,
        description="Evict nothing at all while a protection blocks any pod.",
    )
    grace_period: Duration | None = Field(
        default=None, description="For containers to end. Default: each pod's own."
    )
    not_ready_after: Duration = Field(
        default=300.0,
        description="A node that is not Ready for this long is taken for one whose kubelet ends"
        " no pods any more.",
    )
    skip_terminating_after: Duration = Field(
        default=60.0,
        description="On such a node, pods that have been terminating this long past their grace"
        " period are not waited for.",
    )
    force_delete: ForceDelete | None = Field(
        default=None, description="On such a node, delete them instead. Default: never."
    )
    on_recovery: Annotated[OnRecovery, Field(strict=False)] = Field(
        default=OnRecovery.STOP,
        description="When the fault clears meanwhile: stop leaves the other pods alone.",
    )
    on_window_end: Annotated[OnWindowEnd, Field(strict=False)] = Field(
        default=OnWindowEnd.FINISH,
        description="When the policy's `windows` close meanwhile, or a blackout begins: pause"
        " evicts nothing more until they open again, and the deadline does not run.",
    )


class Evictions(Model):
    """How fast pods are evicted, by all drains together."""

    per_second: int = Field(default=20, ge=1, le=10_000, description="In the long run.")
    burst: int = Field(default=50, ge=1, le=10_000, description="At once, after a pause.")
