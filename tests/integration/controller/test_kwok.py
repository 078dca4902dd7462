"""A drain from the fault to the node's return, on a node whose kubelet is KWOK's.

Nothing here ends a pod but KWOK, and nothing makes one ready.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from testbed.kwok import LABEL
from testbed.workload import create_budget, relax_budget


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site


pytestmark = pytest.mark.cluster


def status_of(site: Site, node: str, kind: str) -> str:
    found = site.cluster.node(node)["status"]["conditions"]
    return next((one["status"] for one in found if one["type"] == kind), "")


@pytest.mark.usefixtures("kwok")
def test_evicted_pods_end_and_the_node_is_drained_and_comes_back(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.policy(steps=[{"cordon": {}}, {"drain": {"despite": ["unmanaged"]}}])
    cluster, node = site.cluster, site.node(labels=LABEL)
    free = {cluster.create_pod(node=node, grace=30) for _ in range(3)}
    held = cluster.create_pod(node=node, grace=30, labels={"app": "db"})

    def running() -> bool:
        return {
            one["status"]["phase"] for one in cluster.pods().values() if "nodeName" in one["spec"]
        } == {"Running"}

    site.wait(running, "pods that run")
    create_budget(cluster, "db-budget", {"app": "db"})
    run()

    site.says(node, 79)
    site.wait(lambda: not free & cluster.pods().keys(), "the end of what may go")
    assert site.cordoned(node)
    assert status_of(site, node, "DrainInProgress") == "True"
    assert "deletionTimestamp" not in cluster.pod(held)["metadata"], "its budget holds it"

    relax_budget(cluster, "db-budget")
    site.wait(lambda: status_of(site, node, "Drained") == "True", "the end of the drain")
    assert held not in cluster.pods()

    site.says(node)
    site.wait(lambda: site.session(node) is None, "recovery")
    assert not site.cordoned(node)
