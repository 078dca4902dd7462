"""Puts a drain's parts together, for the controller and for a person's own hands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from remediator.act.drain.engine import Drainer, Observer
from remediator.act.drain.marks import Marks, Nodes
from remediator.act.drain.rate import EvictionRate
from remediator.act.drain.view import watch_with
from remediator.act.drain.worker import DrainWorker, Watchers
from remediator.kube.client import ApiClient
from remediator.kube.node_status import NodeConditions
from remediator.kube.pods import ApiPods
from remediator.policy.drain import Evictions


class Counts(Observer, Watchers, Protocol):
    """Counts all that drains do."""


def make_drainer(
    api: ApiClient,
    *,
    evictions: Evictions,
    now: Callable[[], float],
    pods: ApiPods | None = None,
    observer: Observer | None = None,
) -> Drainer:
    """Return what drains nodes by this connection.

    Args:
        api: the transport.
        evictions: how fast.
        now: epoch seconds.
        pods: the way to the pods; default by the same connection, unchecked.
        observer: counts.
    """
    return Drainer(
        pods=pods or ApiPods(api=api),
        watch=watch_with(api),
        rate=EvictionRate(per_second=evictions.per_second, burst=evictions.burst),
        now=now,
        observer=observer,
    )


def make_drains(
    *,
    api: ApiClient,
    pods: ApiPods,
    conditions: NodeConditions,
    fleet: Nodes,
    evictions: Evictions,
    now: Callable[[], float],
    may_mark: Callable[[], bool],
    observer: Counts,
) -> tuple[DrainWorker, Marks]:
    """Return the worker of the step `drain`, and what keeps the conditions of nodes.

    Args:
        api: the transport, for watches.
        pods: the way to the pods.
        conditions: writes those of nodes.
        fleet: the nodes.
        evictions: how fast.
        now: epoch seconds.
        may_mark: whether conditions may be written now.
        observer: counts.
    """
    marks = Marks(nodes=fleet, writer=conditions, now=now, may_write=may_mark)
    drainer = make_drainer(api, evictions=evictions, now=now, pods=pods, observer=observer)
    return DrainWorker(drainer=drainer, facts=fleet, marks=marks, observer=observer), marks
