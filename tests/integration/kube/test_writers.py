"""ConfigMaps and Events on the real API server, with the controller's own permissions."""

import asyncio
import contextlib

import pytest

from remediator.kube.client import ApiClient, configmap_reflector
from remediator.kube.configmap import ConfigMaps
from remediator.kube.errors import Conflict, NotFound
from remediator.kube.events import EventRecorder, Home
from remediator.kube.objects import ConfigMap
from remediator.kube.store import Store
from remediator.kube.tenure import NotLeading
from testbed.cluster import Cluster
from testbed.faultproxy import Answer, FaultProxy, Hang


pytestmark = pytest.mark.cluster

STATE = "gpu-remediator-state"


def leading() -> None:
    """The lease is ours."""


async def test_configmap_is_written_on_condition_of_what_was_read(
    cluster: Cluster, api: ApiClient
) -> None:
    maps = ConfigMaps(api=api, namespace=cluster.namespace)
    assert await maps.read(STATE) is None

    first = await maps.write(STATE, {"a": "1", "b": "2"}, known=None)
    second = await maps.write(STATE, {"a": None, "c": "3"}, known=first)

    assert cluster.configmap(STATE) == {"b": "2", "c": "3"}
    assert await maps.read(STATE) == second
    with pytest.raises(Conflict):
        await maps.write(STATE, {"a": "9"}, known=first)
    with pytest.raises(Conflict):
        await maps.write(STATE, {"a": "9"}, known=None)
    assert cluster.configmap(STATE) == {"b": "2", "c": "3"}


async def test_deleted_configmap_is_not_found(cluster: Cluster, api: ApiClient) -> None:
    maps = ConfigMaps(api=api, namespace=cluster.namespace)
    known = await maps.write(STATE, {"a": "1"}, known=None)
    cluster.api.delete(f"/api/v1/namespaces/{cluster.namespace}/configmaps/{STATE}")

    with pytest.raises(NotFound):
        await maps.write(STATE, {"a": "2"}, known=known)


async def test_one_configmap_can_be_watched(
    cluster: Cluster, api: ApiClient, eventually: object
) -> None:
    store: Store[ConfigMap] = Store()
    reflector = configmap_reflector(api, store, namespace=cluster.namespace, name=STATE)
    task = asyncio.create_task(reflector.run())
    await asyncio.wait_for(reflector.synced.wait(), 5)
    assert len(store) == 0

    maps = ConfigMaps(api=api, namespace=cluster.namespace)
    await maps.write(STATE, {"a": "1"}, known=None)
    await eventually(lambda: STATE in store)  # type: ignore[operator]

    found = store.get(STATE)
    assert found is not None
    assert found.data == {"a": "1"}
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_same_event_again_is_counted_also_by_another_process(
    cluster: Cluster, api: ApiClient
) -> None:
    name = cluster.create_node()
    uid = cluster.node(name)["metadata"]["uid"]
    for _ in range(2):  # a recorder each, as after a restart
        recorder = EventRecorder(api=api, check=leading)
        for number in range(3):
            recorder.record(
                node=name,
                uid=uid,
                kind="Warning",
                reason="Cordoned",
                message=f"Xid 79, attempt {number}",
                key="cordon",
            )
        await recorder.flush(5)
        assert (recorder.sent, recorder.repeated, recorder.failed) == (1, 2, 0)

    (event,) = cluster.events(name)
    assert event["count"] == 6
    assert event["involvedObject"]["uid"] == uid
    assert event["reason"] == "Cordoned"
    assert event["type"] == "Warning"


async def test_event_that_expired_is_made_again(cluster: Cluster, api: ApiClient) -> None:
    name = cluster.create_node()
    recorder = EventRecorder(api=api, check=leading, dedupe_ttl=0.0)
    for _ in range(2):
        recorder.record(node=name, uid="u", kind="Normal", reason="Uncordoned", message="well")
        await recorder.flush(5)
        for event in cluster.events(name):
            path = f"/api/v1/namespaces/default/events/{event['metadata']['name']}"
            cluster.api.delete(path)

    assert recorder.sent == 2
    assert recorder.failed == 0


async def test_an_event_about_no_node_is_about_the_configmap_beside_it(
    cluster: Cluster, api: ApiClient
) -> None:
    for home in (None, Home(cluster.namespace, STATE)):
        for _ in range(2):  # also from another process, it is the same one
            recorder = EventRecorder(api=api, check=leading, home=home)
            recorder.record(node="", uid="", kind="Warning", reason="Refused", message="it is")
            await recorder.flush(5)
            assert (recorder.sent, recorder.dropped) == ((1, 0) if home else (0, 1))
    (event,) = cluster.api.get(f"/api/v1/namespaces/{cluster.namespace}/events")["items"]
    assert event["involvedObject"]["kind"] == "ConfigMap"
    assert event["involvedObject"]["name"] == STATE
    assert (event["reason"], event["count"]) == ("Refused", 2)


async def test_events_that_waited_until_another_leads_are_not_sent(
    cluster: Cluster, api: ApiClient
) -> None:
    name = cluster.create_node()
    checks: list[None] = []

    def check() -> None:
        checks.append(None)
        if len(checks) > 1:
            raise NotLeading("the lease is not ours")

    told: list[str] = []
    recorder = EventRecorder(api=api, check=check, count=told.append)
    for reason in ("Cordoned", "Uncordoned", "Released"):
        recorder.record(node=name, uid="u", kind="Normal", reason=reason, message="m")
    await recorder.flush(5)

    assert [event["reason"] for event in cluster.events(name)] == ["Cordoned"]
    assert (recorder.sent, recorder.dropped, recorder.failed) == (1, 2, 0)
    assert told == ["sent", "dropped", "dropped"]


async def test_there_is_room_for_an_event_again_after_a_while(proxied: ApiClient) -> None:
    now = [100.0]
    recorder = EventRecorder(api=proxied, check=leading, burst=1, clock=lambda: now[0])
    for seconds in (0.0, 1.0):
        now[0] += seconds
        assert recorder.has_room("Cordoned")
        recorder.record(node="n", uid="u", kind="Normal", reason="Cordoned", message=str(now[0]))
        assert not recorder.has_room("Cordoned")
        assert recorder.has_room("Uncordoned")
    assert recorder.dropped == 0


async def test_events_never_block_nor_fail_who_records(
    proxy: FaultProxy, proxied: ApiClient
) -> None:
    recorder = EventRecorder(api=proxied, check=leading, buffer=3, burst=100)
    for number in range(10):
        recorder.record(
            node=f"n{number}", uid=f"u{number}", kind="Normal", reason="Cordoned", message="m"
        )
    assert recorder.dropped == 7
    assert not recorder.has_room("Cordoned")

    proxy.add(Answer(403, reason="Forbidden"), times=1)
    proxy.add(Answer(500), times=1)
    proxy.add(Hang())
    await recorder.flush(0.5)

    assert recorder.sent == 0
