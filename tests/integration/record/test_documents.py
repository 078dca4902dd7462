"""Status and saved state on the real API server, with the controller's own permissions."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from remediator.decide.ledger import Ledger
from remediator.kube.client import ApiClient, connect, load_config
from remediator.kube.configmap import ConfigMaps
from remediator.policy.cluster import ClusterSpec
from remediator.record.publish import StatusPublisher
from remediator.record.state import STATE_KEY, UNREADABLE_KEY, LedgerMemory, restore
from remediator.record.status import (
    MAX_STATUS_BYTES,
    STATUS_CONFIGMAP,
    STATUS_KEY,
    NodeStatus,
    Status,
    decode_status,
)
from testbed.cluster import Cluster


pytestmark = pytest.mark.cluster


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[ApiClient]:
    kubeconfig = cluster.kubeconfig_for(cluster.controller_token())
    async with connect(await load_config(kubeconfig=str(kubeconfig))) as client:
        yield client


@pytest.fixture
def maps(cluster: Cluster, api: ApiClient) -> ConfigMaps:
    return ConfigMaps(api=api, namespace=cluster.namespace)


def ledger() -> Ledger:
    return Ledger(cluster=ClusterSpec(), started=0.0)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_status_of_a_fleet_in_flames_is_published_up_to_the_cap(
    cluster: Cluster, maps: ConfigMaps
) -> None:
    """The worst text there is for the server: every second character must be escaped."""
    nodes = tuple(
        NodeStatus(node=f"n{number}", phase="matched", sentence='"\\' * 150)
        for number in range(5000)
    )
    status = Status(version=1, time=1.0, leader="a", mode="DryRun", nodes=nodes)
    publisher = StatusPublisher(configmaps=maps, build=lambda: status)

    assert await publisher.flush(10.0), publisher.problem

    data = await asyncio.to_thread(cluster.configmap, STATUS_CONFIGMAP)
    assert data is not None
    read = decode_status(data[STATUS_KEY])
    travelled = len(json.dumps(data[STATUS_KEY], ensure_ascii=False)) - 2
    assert MAX_STATUS_BYTES * 0.99 < travelled <= MAX_STATUS_BYTES
    assert len(read.nodes) + read.nodes_left_out == 5000


async def test_the_guards_memory_survives_a_restart(cluster: Cluster, maps: ConfigMaps) -> None:
    before, memory = ledger(), LedgerMemory(configmaps=maps)
    assert (await memory.load()).state is None
    memory.keep(before)
    task = asyncio.create_task(memory.run())
    before.start("cordon", "a", ("", "bus"), "u1", 100.0)
    before.open_breaker("bus", "storm", 100.0)
    memory.touch()
    await cluster.eventually(
        lambda: cluster.configmap("gpu-remediator-state"), what="the state is written"
    )
    await stop(task)

    after = ledger()
    restore(after, await LedgerMemory(configmaps=maps).load(), now=200.0)

    assert after.state() == before.state()


async def test_a_state_that_people_damaged_is_kept_beside_the_new_one(
    cluster: Cluster, maps: ConfigMaps
) -> None:
    await maps.write("gpu-remediator-state", {STATE_KEY: "{damaged"}, known=None)
    memory = LedgerMemory(configmaps=maps)
    assert "damaged" in (await memory.load()).problem
    memory.keep(ledger())

    assert await memory.flush(5.0)

    assert await asyncio.to_thread(cluster.configmap, "gpu-remediator-state") == {
        STATE_KEY: "{}",
        UNREADABLE_KEY: "{damaged",
    }
