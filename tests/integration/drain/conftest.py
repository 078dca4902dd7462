"""Nodes with pods of every kind, and a drain of them with the controller's own identity."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from remediator.act.drain.compose import make_drainer
from remediator.act.drain.engine import Drainer, Ended, Health
from remediator.act.drain.plan import Cause
from remediator.act.drain.report import Progress
from remediator.kube.client import ApiClient, connect, load_config
from remediator.policy.drain import Drain, Evictions
from testbed.api import Json
from testbed.cluster import Cluster
from testbed.workload import create_budget, create_owner, relax_budget


FAST = Evictions.model_validate({"perSecond": 1000, "burst": 1000})


def spec(**keys: Any) -> Drain:
    """A drain as a policy file says it."""
    return Drain.model_validate(keys)


class Yard:
    """One node and its pods.

    Pods with `grace` 0 go as soon as they are evicted; others need `end()`, as there is no
    kubelet.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node = cluster.create_node(spec={"unschedulable": True})
        self.pods_path = f"/api/v1/namespaces/{cluster.namespace}/pods"

    def owner(self, kind: str = "StatefulSet") -> Json:
        """A controller that does nothing: the controller manager of the tests runs none for it."""
        name = f"{kind.lower()}-{uuid.uuid4().hex[:8]}"
        if kind != "ConfigMap":
            return create_owner(self.cluster, kind, name)
        path = f"/api/v1/namespaces/{self.cluster.namespace}/configmaps"
        made = self.cluster.api.create(path, {"metadata": {"name": name}})["metadata"]
        reference: Json = {"apiVersion": "v1", "kind": kind, "controller": True}
        return reference | {"name": name, "uid": made["uid"]}

    def pod(self, name: str = "", **options: Any) -> str:
        """A running pod of a controller, as `namespace/name`; on the yard's node by default."""
        options.setdefault("running", True)
        options.setdefault("node", self.node)
        owner = options.pop("owner", self.owner)
        made = self.cluster.create_pod(name, owner=owner() if callable(owner) else owner, **options)
        return f"{self.cluster.namespace}/{made}"

    def there(self, pod: str) -> bool:
        return pod.partition("/")[2] in self.cluster.pods()

    def terminating(self, pod: str) -> bool:
        return "deletionTimestamp" in self.cluster.pod(pod.partition("/")[2])["metadata"]

    def end(self, pod: str) -> None:
        """What the kubelet does when the containers have ended."""
        self.cluster.delete_pod(pod.partition("/")[2])

    def set_phase(self, pod: str, phase: str) -> None:
        name = pod.partition("/")[2]
        self.cluster.api.patch(f"{self.pods_path}/{name}/status", {"status": {"phase": phase}})

    def budget(self, name: str, labels: dict[str, str], minimum: int = 1) -> str:
        """A PodDisruptionBudget, once the disruption controller has worked it out."""
        create_budget(self.cluster, name, labels, minimum=minimum)
        return name

    def relax(self, name: str) -> None:
        """Let the budget allow everything."""
        relax_budget(self.cluster, name)

    def evictions(self, pod: str = "") -> list[Json]:
        """What the API server's audit log has of evictions in this namespace."""
        return [
            entry
            for entry in self.cluster.plane.audit_entries()
            if entry.get("objectRef", {}).get("subresource") == "eviction"
            and entry["objectRef"]["namespace"] == self.cluster.namespace
            and (not pod or entry["objectRef"]["name"] == pod.partition("/")[2])
            and "responseStatus" in entry
        ]


class Run:
    """A drain under way."""

    def __init__(self, drainer: Drainer, node: str, drain: Drain, since: float) -> None:
        self.health = Health()
        self.progress = Progress()
        self.task: asyncio.Task[Ended] = asyncio.create_task(
            drainer.drain(
                node, drain, since=since, health=lambda: self.health, say=self._progressed
            )
        )

    def _progressed(self, progress: Progress) -> None:
        self.progress = progress

    def causes(self) -> dict[str, Cause]:
        """Why each pod is still there."""
        return {one.pod: one.cause for one in self.progress.left}

    def why(self, pod: str) -> str:
        return next((one.why for one in self.progress.left if one.pod == pod), "")

    async def until(self, found: Callable[[], object], within: float = 20.0) -> None:
        """Wait until something is true; the drain must not have failed by then."""
        deadline = time.monotonic() + within
        while not found():
            assert time.monotonic() < deadline, f"it never became true; {self.progress}"
            if self.task.done() and not self.task.cancelled() and self.task.exception():
                self.task.result()
            await asyncio.sleep(0.02)

    async def end(self, within: float = 20.0) -> Ended:
        async with asyncio.timeout(within):
            return await asyncio.shield(self.task)


@pytest.fixture
def yard(cluster: Cluster) -> Yard:
    return Yard(cluster)


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[ApiClient]:
    """As the controller's service account."""
    kubeconfig = cluster.kubeconfig_for(cluster.controller_token())
    async with connect(await load_config(kubeconfig=str(kubeconfig))) as api:
        yield api


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[ApiClient]:
    """As somebody who may delete pods."""
    kubeconfig = cluster.kubeconfig_for(cluster.plane.admin_token)
    async with connect(await load_config(kubeconfig=str(kubeconfig))) as client:
        yield client


@pytest.fixture
async def drain(client: ApiClient, yard: Yard) -> AsyncIterator[Callable[..., Run]]:
    """Begin a drain of the yard's node: `drain(api=None, since=now, node=..., **spec)`."""
    runs: list[Run] = []

    def begin(
        *,
        api: ApiClient | None = None,
        since: float | None = None,
        node: str = yard.node,
        **keys: Any,
    ) -> Run:
        drainer = make_drainer(api or client, evictions=FAST, now=time.time)
        began = time.time() if since is None else since
        runs.append(Run(drainer, node, spec(**keys), began))
        return runs[-1]

    yield begin
    for run in runs:
        run.task.cancel()
    await asyncio.gather(*(run.task for run in runs), return_exceptions=True)
