"""Pods that somebody needs: their PodDisruptionBudgets, and a stand-in for their kubelet.

Without a kubelet an evicted pod with a grace period would terminate for ever.
"""

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from testbed.api import MERGE_PATCH, Json
from testbed.cluster import Cluster


_INTERVAL = 0.1  # seconds between two looks


def create_budget(
    cluster: Cluster, name: str, labels: Mapping[str, str], *, minimum: int = 1
) -> None:
    """Create a PodDisruptionBudget; return once the disruption controller has worked it out.

    Args:
        cluster: whose namespace; the pods are there and ready already.
        name: of the budget.
        labels: of the pods.
        minimum: so many of them must stay available.
    """
    path = _budgets(cluster)
    selector = {"matchLabels": dict(labels)}
    spec = {"minAvailable": minimum, "selector": selector}
    cluster.api.create(path, {"metadata": {"name": name}, "spec": spec})

    def observed() -> bool:
        status = cluster.api.get(f"{path}/{name}").get("status", {})
        return bool(status.get("observedGeneration") and status.get("currentHealthy"))

    cluster.wait_for(observed, what=f"budget {name}")


def relax_budget(cluster: Cluster, name: str) -> None:
    """Let a budget allow everything."""
    body = {"spec": {"minAvailable": 0}}
    cluster.api.patch(f"{_budgets(cluster)}/{name}", body, content_type=MERGE_PATCH)


def create_owner(cluster: Cluster, kind: str, name: str) -> Json:
    """Create a controller of pods that does nothing; return the entry of `ownerReferences`.

    Nothing runs here for a StatefulSet, and it has no replicas of its own.
    """
    labels = {"owner": name}
    container = {"name": "main", "image": "pause"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec: Json = {"selector": {"matchLabels": labels}, "template": template}
    if kind == "StatefulSet":
        spec |= {"serviceName": name, "replicas": 1}
    path = f"/apis/apps/v1/namespaces/{cluster.namespace}/{kind.lower()}s"
    body = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    made = cluster.api.create(path, body)["metadata"]
    reference: Json = {"apiVersion": "apps/v1", "kind": kind, "controller": True}
    return reference | {"name": made["name"], "uid": made["uid"]}


class StandInKubelet:
    """Ends each terminating pod of a namespace a moment later; a context manager.

    Args:
        cluster: whose namespace.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._api = cluster.plane.api()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kubelet", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End; pods that terminate then go on terminating."""
        self._stop.set()
        self._thread.join()
        self._api.close()

    def _work(self) -> None:
        path = f"/api/v1/namespaces/{self._cluster.namespace}/pods"
        while not self._stop.wait(_INTERVAL):
            for pod in self._api.get(path)["items"]:
                if "deletionTimestamp" in pod["metadata"]:
                    self._api.delete(f"{path}/{pod['metadata']['name']}")


def _budgets(cluster: Cluster) -> str:
    return f"/apis/policy/v1/namespaces/{cluster.namespace}/poddisruptionbudgets"
