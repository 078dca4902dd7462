"""The reflector on the real API server, through everything that goes wrong on the way."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from remediator.kube.client import ApiClient, connect, node_reflector
from remediator.kube.config import ApiConfig
from remediator.kube.errors import Forbidden, Unreachable
from remediator.kube.objects import Node
from remediator.kube.reflector import Reflector, ReflectorTimings
from remediator.kube.store import Store
from testbed.cluster import Cluster
from testbed.controlplane import ControlPlane
from testbed.faultproxy import Answer, Cut, Drop, FaultProxy, Freeze, Hang, Inject


pytestmark = pytest.mark.cluster

Eventually = Callable[..., Awaitable[None]]


class Mirror:
    """A running reflector with its store and what its handlers heard."""

    def __init__(
        self,
        api: ApiClient,
        label: str,
        timings: ReflectorTimings,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.store: Store[Node] = Store()
        self.heard: list[tuple[Node | None, Node | None]] = []
        self.gaps: list[float] = []
        self.failures = 0
        self.store.on_event(lambda old, new: self.heard.append((old, new)))
        self.reflector: Reflector[Any, Node] = node_reflector(
            api,
            self.store,
            label_selector=f"test={label}",
            timings=timings,
            on_gap=self.gaps.append,
            failed=self._failed,
            sleep=sleep,
        )

    def _failed(self) -> None:
        self.failures += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Mirror"]:
        task = asyncio.create_task(self.reflector.run())
        try:
            await asyncio.wait_for(self.reflector.synced.wait(), 60)
            yield self
            assert not task.done(), "the reflector must never end by itself"
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def is_true_to(self, cluster: Cluster) -> bool:
        """Whether the store equals the server: names and versions."""
        theirs = {
            name: node["metadata"]["resourceVersion"]
            for name, node in cluster.nodes().items()
            if "test" in node["metadata"]["labels"]
        }
        return theirs == {node.name: node.resource_version for node in self.store}


def label_of(cluster: Cluster) -> str:
    return cluster.prefix.strip("-")


def make(cluster: Cluster, count: int) -> list[str]:
    return [cluster.create_node(labels={"test": label_of(cluster)}) for _ in range(count)]


@pytest.fixture
def restless(quick: ReflectorTimings) -> ReflectorTimings:
    """A watch without a byte for half a second is taken for dead."""
    return dataclasses.replace(quick, read_timeout=0.5)


@pytest.fixture
async def mirror(proxied: ApiClient, cluster: Cluster, quick: ReflectorTimings) -> Mirror:
    return Mirror(proxied, label_of(cluster), quick)


@pytest.fixture
async def restless_mirror(
    proxied: ApiClient, cluster: Cluster, restless: ReflectorTimings
) -> Mirror:
    return Mirror(proxied, label_of(cluster), restless)


async def test_lists_in_pages_then_follows(
    cluster: Cluster, proxy: FaultProxy, mirror: Mirror, eventually: Eventually
) -> None:
    names = make(cluster, 5)

    async with mirror.running():
        assert sorted(node.name for node in mirror.store) == sorted(names)
        assert proxy.count("GET", "limit=2") == 3

        cluster.cordon(names[0])
        cluster.delete_node(names[1])
        make(cluster, 1)
        await eventually(lambda: mirror.is_true_to(cluster))

    assert proxy.count("GET", "limit=2") == 3
    assert mirror.gaps == []


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Answer(500), id="500"),
        pytest.param(Answer(429, reason="TooManyRequests", retry_after=0), id="429"),
        pytest.param(Answer(410, reason="Expired"), id="410"),
        pytest.param(Answer(403, reason="Forbidden"), id="403"),
        pytest.param(Drop(), id="dropped"),
        pytest.param(Cut(after=300), id="cut-in-a-line"),
        pytest.param(Freeze(), id="half-open"),
        pytest.param(
            Inject(b'{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410}}'),
            id="410-event",
        ),
        pytest.param(Inject(b"this is no JSON"), id="garbage"),
        pytest.param(Inject(b"", end=True), id="blank-line-and-end"),
    ],
)
async def test_follows_again_after_watch_trouble(
    cluster: Cluster,
    proxy: FaultProxy,
    restless_mirror: Mirror,
    eventually: Eventually,
    fault: Any,
) -> None:
    mirror = restless_mirror
    names = make(cluster, 2)

    async with mirror.running():
        rule = proxy.add(fault, path="watch=1", times=3)
        proxy.break_connections()
        await eventually(lambda: rule.hits >= 2)
        cluster.cordon(names[0])
        cluster.delete_node(names[1])
        proxy.clear()
        await eventually(lambda: mirror.is_true_to(cluster))

        assert mirror.reflector.failures >= 1
        await eventually(lambda: mirror.reflector.last_error is None)
        assert mirror.gaps


async def test_it_says_whether_it_sees(
    cluster: Cluster, proxy: FaultProxy, restless_mirror: Mirror, eventually: Eventually
) -> None:
    make(cluster, 1)
    mirror, reflector = restless_mirror, restless_mirror.reflector
    seen = [reflector.sees]
    async with mirror.running():
        seen.append(reflector.sees)
        proxy.add(Answer(500), path="watch=1")
        proxy.break_connections()
        await eventually(lambda: reflector.last_error is not None and not reflector.sees)
        assert mirror.failures == reflector.failures >= 1
        proxy.clear()
        await eventually(lambda: reflector.sees)
    assert seen == [False, True]


async def test_blank_lines_are_nothing(
    cluster: Cluster, proxy: FaultProxy, mirror: Mirror, eventually: Eventually
) -> None:
    names = make(cluster, 1)
    proxy.add(Inject(b"\r\n\n"), path="watch=1")

    async with mirror.running():
        cluster.cordon(names[0])
        await eventually(lambda: mirror.is_true_to(cluster))

        assert mirror.reflector.failures == 0


async def test_page_token_that_expired_starts_over_in_one_page(
    cluster: Cluster, proxy: FaultProxy, mirror: Mirror
) -> None:
    make(cluster, 5)
    proxy.add(Answer(410, reason="Expired"), path="continue=", times=1)

    async with mirror.running():
        assert mirror.is_true_to(cluster)
        assert proxy.count("GET", "limit=0") == 1


async def test_trouble_at_start_only_delays(
    cluster: Cluster, proxy: FaultProxy, mirror: Mirror, eventually: Eventually
) -> None:
    make(cluster, 3)
    rule = proxy.add(Answer(403, reason="Forbidden"), path="/nodes", times=4)
    task = asyncio.create_task(mirror.reflector.run())

    await eventually(lambda: rule.hits >= 2)
    assert not mirror.reflector.synced.is_set()
    assert isinstance(mirror.reflector.last_error, Forbidden)
    await eventually(mirror.reflector.synced.is_set)

    assert mirror.is_true_to(cluster)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_failures_never_spin(
    cluster: Cluster, proxy: FaultProxy, proxied: ApiClient, quick: ReflectorTimings
) -> None:
    make(cluster, 1)
    waits: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) >= 20:
            enough.set()
            await asyncio.Event().wait()

    mirror = Mirror(proxied, label_of(cluster), quick, sleep=sleep)
    proxy.add(Answer(410, reason="Expired"), path="watch=1")
    async with mirror.running(), asyncio.timeout(60):
        await enough.wait()

    assert min(waits) >= quick.backoff_base
    assert max(waits) > 2 * quick.backoff_base, "each may be longer than the one before"
    # Between two waits: a watch that is refused, and a list of one page.
    assert len(proxy.requests) <= 2 * len(waits) + 2


async def test_relist_tells_only_what_changed(
    cluster: Cluster, proxy: FaultProxy, mirror: Mirror, eventually: Eventually
) -> None:
    changed, gone, same = make(cluster, 3)

    async with mirror.running():
        mirror.heard.clear()
        proxy.add(Hang(), path="watch=1")
        proxy.break_connections()
        cluster.cordon(changed)
        cluster.delete_node(gone)
        (new,) = make(cluster, 1)
        proxy.clear()
        proxy.add(Answer(410, reason="Expired"), path="watch=1", times=1)
        await eventually(lambda: mirror.is_true_to(cluster))

        lists = mirror.reflector.lists
        heard = {(old and old.name, after and after.name) for old, after in mirror.heard}

    assert lists == 2
    assert (changed, changed) in heard
    assert (gone, None) in heard
    assert (None, new) in heard
    assert all(same not in pair for pair in heard)


async def test_hung_list_ends_by_its_deadline(
    cluster: Cluster, proxy: FaultProxy, proxied: ApiClient
) -> None:
    make(cluster, 1)
    timings = ReflectorTimings(list_timeout=0.5, backoff_base=0.02, backoff_cap=0.1)
    mirror = Mirror(proxied, label_of(cluster), timings)
    rule = proxy.add(Hang(), path="/nodes", times=2)

    async with mirror.running():
        assert rule.hits == 2
        assert mirror.is_true_to(cluster)


async def test_survives_a_restart_and_a_hang_of_the_api_server(
    own_control_plane: ControlPlane, restless: ReflectorTimings, eventually: Eventually
) -> None:
    cluster = Cluster(own_control_plane)
    names = make(cluster, 3)
    proxy = FaultProxy(
        own_control_plane.url,
        ca_file=own_control_plane.ca_file,
        token=own_control_plane.admin_token,
    )
    async with (
        proxy,
        connect(ApiConfig(proxy.url), timeout=0.5) as api,
        Mirror(api, label_of(cluster), restless).running() as mirror,
    ):
        await asyncio.to_thread(own_control_plane.stop_apiserver, grace=0)
        await eventually(lambda: isinstance(mirror.reflector.last_error, Unreachable))
        assert len(mirror.store) == 3
        await asyncio.to_thread(own_control_plane.start_apiserver)
        await asyncio.to_thread(cluster.delete_node, names[0])
        await eventually(lambda: mirror.is_true_to(cluster))

        own_control_plane.pause_apiserver()
        await eventually(lambda: mirror.reflector.staleness > 1.0)
        own_control_plane.resume_apiserver()
        await asyncio.to_thread(cluster.cordon, names[1])
        await eventually(lambda: mirror.is_true_to(cluster))
        assert mirror.gaps
