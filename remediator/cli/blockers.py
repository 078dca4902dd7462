"""What would block the drains of nodes now: their pods judged as the drain does, read only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from remediator.act.drain.ahead import ahead
from remediator.act.drain.plan import STUCK, Left
from remediator.act.drain.report import aged
from remediator.cli.cluster import Target, on_cluster
from remediator.kube.budgets import list_budgets
from remediator.kube.client import ApiClient
from remediator.kube.errors import ApiError
from remediator.kube.pods import ApiPods
from remediator.policy.drain import Drain


MAX_NODES: Final = 50
"""Nodes whose pods are looked at: each costs a call."""


def drain_blockers(
    target: Target, drains: Mapping[str, Sequence[Drain]]
) -> dict[str, tuple[str, ...]]:
    """Return by node what would block its drains, in words; nothing blocks the others.

    Raises:
        Failure: the cluster cannot be reached.
    """
    if not drains:
        return {}
    return on_cluster(target, lambda api: _all(api, drains))


async def _all(api: ApiClient, drains: Mapping[str, Sequence[Drain]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    names = list(drains)
    try:
        budgets = await list_budgets(api)
        for name in names[:MAX_NODES]:
            pods, unreadable = await ApiPods(api=api).list_pods(name)
            now = time.time()
            said = [
                ahead(pods, unreadable, drain, budgets, now=now, since=now).left
                for drain in drains[name]
            ]
            lines = [_words(one, now) for left in said for one in left if one.cause in STUCK]
            found[name] = tuple(dict.fromkeys(lines))
    except ApiError as error:
        known = f"what would block its drain is not known: {error}"
        return found | {name: (known,) for name in names if name not in found}
    beyond = f"not looked at: only the pods of the first {MAX_NODES} nodes are"
    return found | dict.fromkeys(names[MAX_NODES:], (beyond,))


def _words(one: Left, now: float) -> str:
    return f"{one.pod}{aged(one, now)}: {one.why or one.cause.value}"
