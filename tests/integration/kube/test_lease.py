"""Two replicas and a real Lease: hung server, broken connections, hand-over, frozen loop."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from remediator.kube.client import ApiClient, connect
from remediator.kube.config import ApiConfig
from remediator.kube.lease import Elector, LeaseLost, LeaseTimings
from testbed.cluster import Cluster
from testbed.faultproxy import Answer, Drop, FaultProxy, Hang


pytestmark = pytest.mark.cluster

Eventually = Callable[..., Awaitable[None]]
QUICK = LeaseTimings(duration=4.0, renew_deadline=2.0, retry_period=0.2, call_timeout=0.8)
LONG = LeaseTimings(duration=600.0, renew_deadline=300.0, retry_period=0.2)


def elector(
    api: ApiClient, cluster: Cluster, identity: str, timings: LeaseTimings = QUICK
) -> Elector:
    return Elector(
        api=api,
        namespace=cluster.namespace,
        name="lead",
        identity=identity,
        timings=timings,
        end_process=pytest.fail,
    )


async def hold(candidate: Elector) -> None:
    async with candidate.lead():
        await asyncio.Event().wait()


@pytest.fixture
def timings() -> LeaseTimings:
    return QUICK


@pytest.fixture
async def pair(
    cluster: Cluster,
    proxied: ApiClient,
    api: ApiClient,
    eventually: Eventually,
    timings: LeaseTimings,
) -> AsyncIterator[tuple[Elector, "asyncio.Task[None]", Elector, "asyncio.Task[None]"]]:
    """The leader goes through the proxy, the follower straight; never are both fresh."""
    leader = elector(proxied, cluster, "a", timings)
    follower = elector(api, cluster, "b", timings)
    first = asyncio.create_task(hold(leader))
    await eventually(leader.is_fresh)
    second = asyncio.create_task(hold(follower))
    both: list[bool] = []

    async def watch() -> None:
        while True:
            both.append(leader.is_fresh() and follower.is_fresh())
            await asyncio.sleep(0.01)

    watcher = asyncio.create_task(watch())
    yield leader, first, follower, second
    for task in (first, second, watcher):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, LeaseLost):
            await task
    assert not any(both), "two leaders"


Pair = tuple[Elector, "asyncio.Task[None]", Elector, "asyncio.Task[None]"]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Hang(), id="hung"),
        pytest.param(Drop(), id="dropped"),
        pytest.param(Answer(500), id="500"),
        pytest.param(Answer(429, reason="TooManyRequests", retry_after=30), id="429"),
    ],
)
async def test_follower_takes_over_when_the_leader_is_cut_off(
    pair: Pair, proxy: FaultProxy, eventually: Eventually, fault: Hang | Drop | Answer
) -> None:
    leader, task, follower, _ = pair
    proxy.add(fault, path="/leases")

    with pytest.raises(LeaseLost):
        await asyncio.wait_for(task, 60)
    assert not leader.is_fresh()
    assert not follower.is_fresh()
    await eventually(follower.is_fresh)


async def test_leader_whose_renewals_arrive_unconfirmed_stops_all_the_same(
    pair: Pair, proxy: FaultProxy, eventually: Eventually
) -> None:
    leader, task, follower, _ = pair
    proxy.add(Drop(forwarded=True), path="/leases")

    with pytest.raises(LeaseLost):
        await asyncio.wait_for(task, 60)
    assert not leader.is_fresh()
    await eventually(follower.is_fresh)


@pytest.mark.parametrize("timings", [LONG])
async def test_one_renewal_that_arrives_unconfirmed_costs_nothing(
    pair: Pair, proxy: FaultProxy, eventually: Eventually
) -> None:
    leader, task, _, _ = pair
    lost = proxy.add(Drop(forwarded=True), method="PATCH", path="/leases", times=1)
    await eventually(lambda: lost.seen == 1)
    seen = proxy.count("PATCH", "/leases")
    await eventually(lambda: proxy.count("PATCH", "/leases") > seen + 2)

    assert leader.is_fresh()
    assert not task.done()
    assert leader.transitions == 0


@pytest.mark.parametrize("timings", [LONG])  # only a release explains a change
async def test_orderly_end_hands_over(pair: Pair, cluster: Cluster, eventually: Eventually) -> None:
    _, task, follower, _ = pair
    task.cancel()

    await eventually(follower.is_fresh)

    path = f"/apis/coordination.k8s.io/v1/namespaces/{cluster.namespace}/leases/lead"
    spec = cluster.api.get(path)["spec"]
    assert spec["holderIdentity"] == "b"
    assert spec["leaseTransitions"] == 1


FROZEN = """
import asyncio, sys, time
from remediator.kube.client import connect
from remediator.kube.config import ApiConfig
from remediator.kube.lease import Elector, LeaseTimings

async def main():
    async with connect(ApiConfig(sys.argv[1])) as api:
        elector = Elector(
            api=api, namespace=sys.argv[2], name="lead", identity="frozen",
            timings=LeaseTimings(duration=4.0, renew_deadline=2.0, retry_period=0.2),
        )
        async with elector.lead():
            time.sleep(30)

asyncio.run(main())
"""


async def test_process_with_a_frozen_loop_is_ended_before_another_leads(
    cluster: Cluster, proxy: FaultProxy, eventually: Eventually
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FROZEN, proxy.url, cluster.namespace), stderr=subprocess.PIPE
    )
    try:
        await eventually(lambda: proxy.count("POST", "/leases") == 1)
        async with connect(ApiConfig(proxy.url)) as api:
            follower = elector(api, cluster, "b")
            task = asyncio.create_task(hold(follower))
            await eventually(lambda: process.returncode is not None)
            assert not follower.is_fresh()
            await eventually(follower.is_fresh)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        _, errors = await process.communicate()
    assert process.returncode == 70
    assert b"after the last renewal of the lease lead" in errors
