"""What a drain does when the API server, a budget, the node or a person stands in its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import pytest

from remediator.act.drain.engine import Health
from remediator.act.drain.plan import Cause
from remediator.kube.client import ApiClient, connect
from remediator.kube.config import ApiConfig
from testbed.faultproxy import Answer, Drop, FaultProxy


if TYPE_CHECKING:
    from testbed.cluster import Cluster
    from tests.integration.drain.conftest import Run, Yard


pytestmark = pytest.mark.cluster

Begin = Callable[..., "Run"]
EVICTION = r"/eviction"


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[FaultProxy]:
    plane = cluster.plane
    token = cluster.controller_token()
    async with FaultProxy(plane.url, ca_file=plane.ca_file, token=token) as made:
        yield made


@pytest.fixture
async def proxied(proxy: FaultProxy) -> AsyncIterator[ApiClient]:
    async with connect(ApiConfig(proxy.url), timeout=2.0) as client:
        yield client


async def test_a_budget_holds_its_pod_is_named_and_the_rest_leaves(
    yard: Yard, drain: Begin
) -> None:
    pod, other = yard.pod(labels={"app": "db"}), yard.pod()
    name = yard.budget("db-budget", {"app": "db"})
    run = drain()

    await run.until(lambda: not yard.there(other) and run.causes() == {pod: Cause.BUDGET})
    assert name in run.why(pod)
    assert list(run.progress.blockers) == [Cause.BUDGET]

    yard.relax(name)
    assert (await run.end(30.0)).clean


async def test_a_rule_deletes_past_the_budget_only_with_the_right_to(
    yard: Yard, drain: Begin
) -> None:
    pod = yard.pod(labels={"app": "db"})
    yard.budget("db-budget", {"app": "db"})
    run = drain(pods=[{"deleteAfter": {"timeout": "0s"}}])

    await run.until(lambda: run.causes() == {pod: Cause.REFUSED})
    assert "delete pods" in run.why(pod), "the missing right is named"
    assert yard.there(pod)


async def test_two_budgets_on_a_pod_are_said(yard: Yard, drain: Begin) -> None:
    pod, other = yard.pod(labels={"app": "db", "tier": "data"}), yard.pod()
    yard.budget("one", {"app": "db"})
    yard.budget("two", {"tier": "data"})
    run = drain()

    await run.until(lambda: not yard.there(other) and run.causes() == {pod: Cause.BUDGETS})
    assert len(yard.evictions(pod)) == 1, "asked again only after a minute"


async def test_a_throttle_slows_all_down_and_blames_no_pod(
    yard: Yard, drain: Begin, proxy: FaultProxy, proxied: ApiClient
) -> None:
    pod = yard.pod()
    answer = Answer(429, reason="TooManyRequests", retry_after=1)
    rule = proxy.add(answer, method="POST", path=EVICTION)
    run = drain(api=proxied)

    await run.until(lambda: rule.hits >= 1 and run.causes() == {pod: Cause.THROTTLED})
    assert run.progress.blockers == {}
    proxy.clear()

    assert (await run.end()).clean


async def test_a_namespace_that_is_being_deleted_is_waited_for(
    yard: Yard, drain: Begin, cluster: Cluster
) -> None:
    pod = yard.pod(grace=30)
    cluster.api.request("DELETE", f"/api/v1/namespaces/{cluster.namespace}")
    run = drain()

    await run.until(lambda: run.causes() in ({pod: Cause.TERMINATING}, {pod: Cause.NAMESPACE}))
    yard.end(pod)
    assert (await run.end()).clean


@pytest.mark.parametrize("forwarded", [True, False])
async def test_an_answer_that_never_came_is_asked_for_again(
    yard: Yard, drain: Begin, proxy: FaultProxy, proxied: ApiClient, *, forwarded: bool
) -> None:
    pod = yard.pod()
    proxy.add(Drop(forwarded=forwarded), method="POST", path=EVICTION, times=1)

    assert (await drain(api=proxied).end()).clean
    assert not yard.there(pod)


async def test_a_node_that_takes_pods_is_not_drained(yard: Yard, drain: Begin) -> None:
    pod = yard.pod(labels={"app": "db"})
    yard.budget("db-budget", {"app": "db"})
    run = drain()
    await run.until(lambda: run.causes() == {pod: Cause.BUDGET})

    run.health = Health(takes_pods=True)
    end = await run.end()

    assert not end.done
    assert "cordon it" in end.note


async def test_a_cancelled_drain_asks_no_more_and_another_goes_on(
    yard: Yard, drain: Begin, cluster: Cluster
) -> None:
    elsewhere = cluster.create_node(spec={"unschedulable": True})
    yard.pod(node=elsewhere, grace=30)
    pods = [yard.pod(grace=30, labels={"app": "db"}) for _ in range(3)]
    blocked = yard.pod(labels={"app": "web"})
    budget = yard.budget("web-budget", {"app": "web"})
    first, other = drain(), drain(node=elsewhere)
    await first.until(lambda: all(yard.terminating(pod) for pod in pods))
    first.task.cancel()
    await asyncio.gather(first.task, return_exceptions=True)
    yard.relax(budget)
    late, marker = yard.pod(), yard.pod(node=elsewhere)
    await other.until(lambda: not yard.there(marker))  # a drain that goes on is as fast
    assert yard.evictions(late) == []
    assert yard.there(blocked)

    second = drain()
    await second.until(lambda: not yard.there(blocked))
    for pod in pods:
        yard.end(pod)

    assert (await second.end()).clean
    assert all(len(yard.evictions(pod)) == 1 for pod in pods), "none was evicted twice"


async def test_without_a_kubelet_terminating_pods_are_passed_over_and_said(
    yard: Yard, drain: Begin
) -> None:
    pod = yard.pod(grace=1)
    run = drain(notReadyAfter="0s", skipTerminatingAfter="0s")
    run.health = Health(ready=False)
    end = await run.end()

    assert (end.done, end.clean) == (True, False)
    assert pod in end.note
    assert yard.there(pod), "nothing was forced"


async def test_force_is_opt_in_and_spares_stateful_sets(
    yard: Yard, drain: Begin, admin: ApiClient
) -> None:
    pod = yard.pod(grace=30, owner=yard.owner("ConfigMap"))
    kept = yard.pod(grace=1, owner=yard.owner("StatefulSet"))
    keys = {"notReadyAfter": "0s", "skipTerminatingAfter": "0s", "forceDelete": {"after": "0s"}}
    run = drain(api=admin, **keys)
    run.health = Health(ready=False)
    end = await run.end(90.0)

    assert (end.done, end.progress.passed_over) == (True, (kept,))
    assert not yard.there(pod)
    assert yard.there(kept)
