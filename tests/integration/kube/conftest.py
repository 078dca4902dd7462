"""Clients of the real API server, straight and through the fault-injecting proxy."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from remediator.kube.client import ApiClient, connect, load_config
from remediator.kube.config import ApiConfig
from remediator.kube.reflector import ReflectorTimings
from testbed.cluster import Cluster
from testbed.faultproxy import FaultProxy


QUICK = ReflectorTimings(
    page_size=2,
    list_timeout=10.0,
    read_timeout=60.0,
    backoff_base=0.02,
    backoff_cap=0.2,
    gap=0.0,
)


@pytest.fixture
def quick() -> ReflectorTimings:
    """Pages of two nodes and short pauses; a watch may be silent as long as a test lasts."""
    return QUICK


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[ApiClient]:
    """As the controller's service account, by a kubeconfig."""
    kubeconfig = cluster.kubeconfig_for(cluster.controller_token())
    async with connect(await load_config(kubeconfig=str(kubeconfig))) as client:
        yield client


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[FaultProxy]:
    """In front of the shared server, as the controller's service account."""
    plane = cluster.plane
    token = cluster.controller_token()
    async with FaultProxy(plane.url, ca_file=plane.ca_file, token=token) as made:
        yield made


@pytest.fixture
async def proxied(proxy: FaultProxy) -> AsyncIterator[ApiClient]:
    """A client that goes through the proxy."""
    async with connect(ApiConfig(proxy.url)) as client:
        yield client


@pytest.fixture
def eventually() -> Callable[..., object]:
    """Wait, without blocking the loop, until something is true."""

    async def wait(found: Callable[[], object], *, within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while not found():
            assert time.monotonic() < deadline, "it never became true"
            await asyncio.sleep(0.01)

    return wait
