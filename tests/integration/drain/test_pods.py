"""What a drain does with each kind of pod, on the real API server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from remediator.act.drain.plan import Cause


if TYPE_CHECKING:
    from remediator.kube.client import ApiClient
    from tests.integration.drain.conftest import Run, Yard


pytestmark = pytest.mark.cluster

Begin = Callable[..., "Run"]
MIRROR = {"kubernetes.io/config.mirror": "hash"}
DISK = {"volumes": [{"name": "scratch", "emptyDir": {}}]}
MEMORY = {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}


async def test_ordinary_pods_are_evicted_and_waited_for(yard: Yard, drain: Begin) -> None:
    quick, slow = yard.pod(), yard.pod(grace=30)
    run = drain()

    await run.until(lambda: not yard.there(quick) and yard.terminating(slow))
    await run.until(lambda: run.causes() == {slow: Cause.TERMINATING})
    assert not run.task.done(), "an accepted eviction is no end"
    yard.end(slow)
    end = await run.end()

    assert end.clean
    assert (end.progress.total, end.progress.gone) == (2, 2)
    assert len(yard.evictions(slow)) == 1, "it was asked once"
    assert all(
        entry["requestObject"]["deleteOptions"]["preconditions"]["uid"]
        for entry in yard.evictions()
        if "requestObject" in entry
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("mirror", {"annotations": MIRROR, "owner": None, "service_account": ""}),
        ("own", {"labels": {"app.kubernetes.io/part-of": "gpu-remediator"}}),
        ("own job", {"labels": {"app.kubernetes.io/managed-by": "gpu-remediator"}}),
    ],
)
async def test_what_always_stays(
    yard: Yard, drain: Begin, kind: str, options: dict[str, Any]
) -> None:
    pod = yard.pod(**options)
    end = await drain(pods=[{"deleteAfter": {"timeout": "0s"}}]).end()

    assert end.clean, kind
    assert yard.there(pod)
    assert not yard.terminating(pod)
    assert yard.evictions() == []


@pytest.mark.parametrize("past", [False, True])
async def test_containers_get_the_grace_period_that_the_drain_says(
    yard: Yard, drain: Begin, admin: ApiClient, *, past: bool
) -> None:
    pod = yard.pod(grace=30)
    rules = [{"deleteAfter": {"timeout": "0s"}}] if past else []
    run = drain(api=admin, gracePeriod="7s", pods=rules)
    await run.until(lambda: yard.terminating(pod))
    name = pod.partition("/")[2]
    assert yard.cluster.pod(name)["metadata"]["deletionGracePeriodSeconds"] == 7
    assert bool(yard.evictions(pod)) is not past
    yard.end(pod)
    assert (await run.end()).clean


async def test_without_one_each_pod_keeps_its_own(yard: Yard, drain: Begin) -> None:
    pod = yard.pod(grace=30)
    run = drain()
    await run.until(lambda: yard.terminating(pod))
    name = pod.partition("/")[2]
    assert yard.cluster.pod(name)["metadata"]["deletionGracePeriodSeconds"] == 30
    yard.end(pod)
    assert (await run.end()).clean


async def test_pods_of_a_daemon_set_stay(yard: Yard, drain: Begin) -> None:
    pod = yard.pod(owner=yard.owner("DaemonSet"))
    other = yard.pod()

    assert (await drain().end()).progress.skipped == {pod: "it is of a DaemonSet"}
    assert yard.there(pod)
    assert not yard.there(other)


@pytest.mark.parametrize(
    ("cause", "word", "options"),
    [
        (Cause.UNMANAGED, "unmanaged", {"owner": None}),
        (Cause.EMPTY_DIR, "emptyDir", {"extra_spec": DISK}),
        (Cause.ANNOTATED, "annotated", {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}),
    ],
)
async def test_a_protected_pod_blocks_and_the_others_leave(
    yard: Yard, drain: Begin, cause: Cause, word: str, options: dict[str, Any]
) -> None:
    pod, other = yard.pod(**options), yard.pod()
    run = drain()

    await run.until(lambda: not yard.there(other) and run.causes() == {pod: cause})
    assert yard.evictions(pod) == []
    run.task.cancel()

    assert (await drain(despite=[word]).end()).clean
    assert not yard.there(pod)


async def test_strict_evicts_nothing_while_a_pod_is_protected(yard: Yard, drain: Begin) -> None:
    pod, other = yard.pod(owner=None), yard.pod()
    run = drain(strict=True)

    await run.until(lambda: run.causes() == {pod: Cause.UNMANAGED, other: Cause.STRICT})
    assert yard.evictions() == []


async def test_an_empty_dir_of_memory_is_no_data(yard: Yard, drain: Begin) -> None:
    pod = yard.pod(extra_spec=MEMORY)

    assert (await drain().end()).clean
    assert not yard.there(pod)


async def test_completed_pods_do_not_block(yard: Yard, drain: Begin) -> None:
    pod = yard.pod(owner=None, extra_spec=DISK)
    yard.set_phase(pod, "Succeeded")

    assert (await drain().end()).progress.skipped == {pod: "it has ended"}
    assert yard.there(pod), "its log stays"
    assert (await drain(completed="evict").end()).clean
    assert not yard.there(pod)


async def test_gpu_pods_only(yard: Yard, drain: Begin) -> None:
    gpu, other = yard.pod(gpus=1), yard.pod()

    assert (await drain(gpuPodsOnly=True).end()).clean
    assert (yard.there(gpu), yard.there(other)) == (False, True)


async def test_orders_leave_one_after_the_other(yard: Yard, drain: Begin) -> None:
    first = yard.pod(labels={"tier": "web"}, grace=30)
    second = yard.pod(labels={"tier": "db"})
    rule = {"selector": {"matchLabels": {"tier": "db"}}, "order": 1, "evict": {}}
    run = drain(pods=[rule])

    await run.until(lambda: run.causes() == {first: Cause.TERMINATING, second: Cause.ORDER})
    assert yard.evictions(second) == []
    yard.end(first)

    assert (await run.end()).clean
    assert not yard.there(second)


async def test_a_job_may_run_to_its_end(yard: Yard, drain: Begin) -> None:
    pod = yard.pod(labels={"job": "training"}, owner=None, extra_spec=DISK)
    rule = {"selector": {"matchLabels": {"job": "training"}}, "waitCompletion": {}}
    run = drain(pods=[rule])

    await run.until(lambda: run.causes() == {pod: Cause.COMPLETION})
    assert yard.evictions() == []
    yard.set_phase(pod, "Succeeded")

    assert (await run.end()).clean


async def test_after_its_longest_wait_a_job_is_evicted(yard: Yard, drain: Begin) -> None:
    pod = yard.pod()
    run = drain(pods=[{"waitCompletion": {"maxWait": "1s"}}])

    await run.until(lambda: run.causes() == {pod: Cause.COMPLETION})
    assert (await run.end()).clean


async def test_a_successor_of_the_same_name_on_another_node_is_not_evicted(
    yard: Yard, drain: Begin
) -> None:
    owner = yard.owner("StatefulSet")
    pod = yard.pod("db-0", owner=owner, grace=30)
    run = drain()
    await run.until(lambda: yard.terminating(pod))

    yard.end(pod)
    elsewhere = yard.cluster.create_node()
    yard.pod("db-0", owner=owner, grace=30, node=elsewhere)

    assert (await run.end()).clean
    assert not yard.terminating(pod)
    assert len(yard.evictions(pod)) == 1


async def test_pods_that_terminate_already_are_waited_for_and_not_asked(
    yard: Yard, drain: Begin
) -> None:
    pod = yard.pod(grace=600)
    yard.cluster.api.request("DELETE", f"{yard.pods_path}/{pod.partition('/')[2]}")
    run = drain()

    await run.until(lambda: run.causes() == {pod: Cause.TERMINATING})
    assert yard.evictions() == []
    yard.end(pod)
    assert (await run.end()).clean
