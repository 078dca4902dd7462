"""What would block the drain of a node now: its pods judged as the drain does, read only.

A PodDisruptionBudget is asked by its own status, since an eviction is the only way to ask the
API server, and an eviction is no question.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from remediator.act.drain.plan import STUCK, Left, Past, plan
from remediator.cli.cluster import Target, on_cluster
from remediator.kube.budgets import Budget, list_budgets
from remediator.kube.client import ApiClient
from remediator.kube.errors import ApiError
from remediator.kube.pods import ApiPods, Pod
from remediator.policy.drain import Drain


MAX_NODES: Final = 50
"""Nodes whose pods are looked at: each costs a call."""


def drain_blockers(target: Target, drains: Mapping[str, Drain]) -> dict[str, tuple[str, ...]]:
    """Return by node what would block its drain, in words; nothing blocks the others.

    Raises:
        Failure: the cluster cannot be reached.
    """
    if not drains:
        return {}
    return on_cluster(target, lambda api: _all(api, drains))


async def _all(api: ApiClient, drains: Mapping[str, Drain]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    try:
        budgets = await list_budgets(api)
        for name, drain in list(drains.items())[:MAX_NODES]:
            pods, unreadable = await ApiPods(api=api).list_pods(name)
            found[name] = blockers_of(pods, unreadable, drain, budgets, time.time())
    except ApiError as error:
        known = f"what would block its drain is not known: {error}"
        return found | {name: (known,) for name in drains if name not in found}
    return found


def blockers_of(
    pods: Sequence[Pod],
    unreadable: Mapping[str, str],
    drain: Drain,
    budgets: Sequence[Budget],
    now: float,
) -> tuple[str, ...]:
    """Return what would block a drain that began now, a line a pod."""
    said = plan(pods, drain, Past(since=now, unreadable=unreadable), now)
    stuck = [_words(one) for one in said.left if one.cause in STUCK]
    for pod in (*said.evict, *said.delete):
        covering = [one for one in budgets if one.covers(pod)]
        if len(covering) > 1:
            names = ", ".join(one.name for one in covering)
            stuck.append(f"{pod.name}: covered by {len(covering)} disruption budgets: {names}")
            continue
        stuck += [f"{pod.name}: {why}" for one in covering if (why := one.refusal(pod))]
    return tuple(stuck)


def _words(one: Left) -> str:
    return f"{one.pod}: {one.why or one.cause.value}"
