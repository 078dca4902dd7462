"""The controller before two real Alertmanagers that form a pair, on the real API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.cluster import Cluster
from testbed.monitoring import Pair
from tests.integration.controller.conftest import Replica, Site


ALERT = "GpuFallenOffBus"
QUICK = {"interval": "1s", "timeout": "5s", "goneAfter": "1s"}
"""Times of a poll, for tests."""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with Pair(tmp_path) as made:
        yield made


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Site:
    """A site without any policy yet."""
    return Site(cluster, tmp_path, cluster.controller_token())


@pytest.fixture
def run(site: Site) -> Iterator[Callable[..., Replica]]:
    """Start replicas; those that still run are stopped in the end."""
    replicas: list[Replica] = []

    def start(**options: Any) -> Replica:
        replicas.append(Replica(site, **{"webhook_listen": "127.0.0.1:0", **options}).start())
        return replicas[-1]

    yield start
    for replica in replicas:
        replica.stop()
    broken = [replica.error for replica in replicas if replica.error is not None]
    assert not broken, broken


@pytest.fixture
def watched(site: Site, pair: Pair) -> Site:
    """A site with the pair, its watchdog, and a policy for one alert."""
    pair.fire(alertname="Watchdog")
    site.config(alertmanagers=[main(pair)])
    site.policy("fallen", when=[{"alert": {"name": ALERT}}])
    return site


def main(pair: Pair, **changes: Any) -> dict[str, Any]:
    """The pair as an entry of RemediatorConfig; a change to None leaves a key out."""
    entry = {"name": "main", "urls": pair.urls, "watchdog": {}, **QUICK, **changes}
    return {key: value for key, value in entry.items() if value is not None}
