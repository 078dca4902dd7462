"""Stage 1: what becomes of one pod, by its own nature and by the drain's rules.

Three things come before any rule: what only the kubelet can end (mirror pods), what
comes back by itself (pods of a DaemonSet, which tolerate a cordon), and our own pods.
"""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from remediator.kube.pods import Pod
from remediator.policy.drain import Completed, Drain, PodRule, Protection
from remediator.policy.selector import selector_matches


OWN: Final = "gpu-remediator"
OWN_LABELS: Final = ("app.kubernetes.io/part-of", "app.kubernetes.io/managed-by")
"""Of our controller and our agent; of the Jobs that steps make."""
_NO: Final = frozenset({"false", "no", "never"})
_FORBIDDING: Final = {
    "gpu-remediator.io/evict": _NO,
    "cluster-autoscaler.kubernetes.io/safe-to-evict": frozenset({"false"}),
    "karpenter.sh/do-not-disrupt": frozenset({"true"}),
}
"""Annotations by which a pod's owner forbids its eviction, with the values that do."""


class Fate(StrEnum):
    """What becomes of a pod."""

    SKIP = "skip"
    """It stays; the drain does not wait for it."""
    TERMINATING = "terminating"
    """It is on its way already."""
    LEAVE = "leave"
    """It is evicted, when its turn comes."""
    BLOCKED = "blocked"
    """It would be evicted, but a protection forbids that: only people can help."""


class Verdict(NamedTuple):
    """A pod's fate and the reason; ``rule`` is the one that fits it, if any does."""

    fate: Fate
    why: str = ""
    rule: PodRule | None = None
    protection: Protection | None = None

    @property
    def order(self) -> int:
        """Return the pod's place in the order: lower ones leave first."""
        return self.rule.order if self.rule is not None else 0


def classify(pod: Pod, drain: Drain) -> Verdict:
    """Return what becomes of a pod on a node that is drained."""
    if (why := _stays(pod, drain)) is not None:
        return Verdict(Fate.SKIP, why)
    rule = next((one for one in drain.pods if _fits(one, pod)), None)
    if rule is not None and rule.skip is not None:
        return Verdict(Fate.SKIP, "a rule skips it", rule)
    if pod.terminating:
        return Verdict(Fate.TERMINATING, "it is terminating", rule)
    if pod.completed or _may_finish(rule):
        return Verdict(Fate.LEAVE, "", rule)
    protection = _protection(pod, {*drain.despite, *(rule.despite if rule is not None else ())})
    if protection is not None:
        return Verdict(Fate.BLOCKED, _WHY[protection], rule, protection)
    return Verdict(Fate.LEAVE, "", rule)


def is_gpu_pod(pod: Pod, drain: Drain) -> bool:
    """Tell whether a pod asks for a GPU. A resource claim on a GPU node is taken for one."""
    return pod.claims or any(
        fnmatchcase(name, pattern) for name in pod.resources for pattern in drain.gpu_resources
    )


def _stays(pod: Pod, drain: Drain) -> str | None:
    """Say why a pod stays whatever the rules say, None if they decide."""
    if pod.mirror:
        return "it is a static pod"
    if OWN in {pod.labels.get(key) for key in OWN_LABELS}:
        return "it is gpu-remediator's own"
    if pod.owner is not None and pod.owner.kind == "DaemonSet":
        return "it is of a DaemonSet"
    if drain.gpu_pods_only and not is_gpu_pod(pod, drain):
        return "it asks for no GPU"
    if pod.completed and drain.completed is Completed.SKIP:
        return "it has ended"
    return None


def _may_finish(rule: PodRule | None) -> bool:
    """Tell whether a rule lets a pod run to its end, however long that takes."""
    waits = rule.wait_completion if rule is not None else None
    return waits is not None and waits.max_wait is None


def _fits(rule: PodRule, pod: Pod) -> bool:
    named = not rule.namespaces or any(
        fnmatchcase(pod.namespace, pattern) for pattern in rule.namespaces
    )
    return named and selector_matches(rule.selector, pod.labels)


_WHY: Final = {
    Protection.ANNOTATED: "an annotation of its owner forbids it",
    Protection.EMPTY_DIR: "it keeps data in an emptyDir on the node's disk",
    Protection.UNMANAGED: "no controller would make it anew",
}


def _protection(pod: Pod, despite: set[Protection]) -> Protection | None:
    """Return what forbids the pod's eviction, None if nothing does."""
    holds = {
        Protection.ANNOTATED: any(
            pod.annotations.get(key, "").lower() in values for key, values in _FORBIDDING.items()
        ),
        Protection.EMPTY_DIR: pod.disk_data,
        Protection.UNMANAGED: pod.owner is None,
    }
    return next((one for one, there in holds.items() if there and one not in despite), None)
