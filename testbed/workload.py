"""Pods that somebody needs: their PodDisruptionBudgets, and a stand-in for their kubelet.

Without a kubelet an evicted pod with a grace period would terminate for ever.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from testbed.api import MERGE_PATCH, Json
from testbed.cluster import Cluster
from testbed.repeating import repeating


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


@contextmanager
def stand_in_kubelet(cluster: Cluster) -> Iterator[None]:
    """End each terminating pod of the cluster's namespace a moment later.

    After that, pods that terminate go on terminating.
    """
    api = cluster.plane.api()
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"

    def look() -> None:
        for pod in api.get(path)["items"]:
            if "deletionTimestamp" in pod["metadata"]:
                api.delete(f"{path}/{pod['metadata']['name']}")

    try:
        with repeating(look, seconds=_INTERVAL, name="kubelet"):
            yield
    finally:
        api.close()


def _budgets(cluster: Cluster) -> str:
    return f"/apis/policy/v1/namespaces/{cluster.namespace}/poddisruptionbudgets"
