"""PodDisruptionBudgets, read only: which pods they would not let go now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from remediator.kube.answers import read_answer
from remediator.kube.codec import Codec, WireObject
from remediator.kube.objects import epoch_seconds
from remediator.kube.transport import ApiClient
from remediator.policy.base import LabelRequirement, LabelSelector
from remediator.policy.selector import selector_matches


if TYPE_CHECKING:
    from remediator.kube.pods import Pod


BUDGETS_PATH: Final = "/apis/policy/v1/poddisruptionbudgets"


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A PodDisruptionBudget. ``name`` is ``namespace/name``; no selector selects nothing."""

    name: str
    uid: str = ""
    resource_version: str = ""
    selector: LabelSelector | None = None
    always_allows_unready: bool = False
    allowed: int = 0
    healthy: int = 0
    desired: int = 0
    up_to_date: bool = True
    refusing_since: float | None = None
    """Epoch seconds since when it lets no pod go, by its own condition; None if it does not say."""

    def covers(self, pod: Pod) -> bool:
        """Whether it is about this pod."""
        return (
            self.selector is not None
            and self.name.partition("/")[0] == pod.namespace
            and selector_matches(self.selector, pod.labels)
        )

    def refusal(self, pod: Pod) -> str:
        """Why the eviction of a pod that it covers would be refused now, "" if it would not.

        As the API server decides it (pkg/registry/core/pod/storage/eviction.go): pods that
        have not started or have ended are not counted; of one that is not ready it depends.
        """
        if pod.phase in {"Pending", "Succeeded", "Failed"} or pod.terminating:
            return ""
        if not self.up_to_date:
            return f"the disruption budget {self.name} is still being processed by the server"
        spared = self.always_allows_unready or 0 < self.desired <= self.healthy
        if self.allowed > 0 or (not pod.ready and spared):
            return ""
        return (
            f"the disruption budget {self.name} needs {self.desired} healthy pods"
            f" and has {self.healthy}"
        )


class _Expression(msgspec.Struct):
    key: str = ""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = "In"
    values: tuple[str, ...] | None = None


class _Selector(msgspec.Struct, rename="camel"):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[_Expression, ...] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    selector: _Selector | None = None
    unhealthy_pod_eviction_policy: str = ""


class _Condition(msgspec.Struct, rename="camel"):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class _Status(msgspec.Struct, rename="camel"):
    conditions: tuple[_Condition, ...] | None = None
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    observed_generation: int = 0


class WireBudget(WireObject):
    """A PodDisruptionBudget as it comes over the wire."""

    spec: _Spec | None = None
    status: _Status | None = None


def narrow_budget(wire: WireBudget, _old: Budget | None = None) -> Budget:
    """The Budget of `wire`."""
    meta, spec, status = wire.metadata, wire.spec or _Spec(), wire.status or _Status()
    return Budget(
        name=f"{meta.namespace}/{meta.name}",
        uid=meta.uid,
        resource_version=meta.resource_version,
        selector=None if spec.selector is None else _selector(spec.selector),
        always_allows_unready=spec.unhealthy_pod_eviction_policy == "AlwaysAllow",
        allowed=status.disruptions_allowed,
        healthy=status.current_healthy,
        desired=status.desired_healthy,
        up_to_date=status.observed_generation >= max(meta.generation, 1),
        refusing_since=_refusing_since(status),
    )


def _refusing_since(status: _Status) -> float | None:
    for one in status.conditions or ():
        if (one.type, one.status) == ("DisruptionAllowed", "False"):
            return epoch_seconds(one.last_transition_time)
    return None


def _selector(wire: _Selector) -> LabelSelector:
    """Of the server's own, which needs no check."""
    return LabelSelector.model_construct(
        match_labels=wire.match_labels or {},
        match_expressions=tuple(
            LabelRequirement.model_construct(
                key=one.key, operator=one.operator, values=one.values or ()
            )
            for one in wire.match_expressions or ()
        ),
    )


_BUDGETS: Final = Codec(WireBudget, narrow_budget)


async def list_budgets(api: ApiClient) -> list[Budget]:
    """All PodDisruptionBudgets.

    Raises:
        ApiError: they could not be listed.
    """
    answer = await api.request("GET", BUDGETS_PATH, compressed=True)
    page = read_answer("GET", BUDGETS_PATH, answer, _BUDGETS.page)
    return [narrow_budget(one) for one in page.items]
