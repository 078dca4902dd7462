"""Server dry-run of what ends pods and objects: the server answers, and they stay as they are.

Of a DELETE with a body the query does not count, so a `dryRun` that is said there is no dry-run:
these tests then find the object gone.
"""

import json

import pytest

from remediator.kube.client import ApiClient
from remediator.kube.dynamic import Kind, ObjectApi
from remediator.kube.errors import ApiError
from remediator.kube.pods import ApiPods, Pod
from testbed.api import Json
from testbed.cluster import Cluster
from testbed.manifests import DEPLOY, apply, read, relocated


pytestmark = pytest.mark.cluster

JOB = Kind("batch/v1", "Job")


def grant(cluster: Cluster, file: str) -> None:
    documents = relocated(read(DEPLOY / "controller" / "optional" / file), cluster.namespace)
    apply(cluster.api, documents)


async def the_pod(pods: ApiPods, node: str) -> Pod:
    (found,), unreadable = await pods.list_pods(node)
    assert not unreadable
    return found


@pytest.mark.parametrize("verb", ["evict", "delete"])
@pytest.mark.parametrize("grace", [None, 0.0])
async def test_a_pod_stays(
    cluster: Cluster, api: ApiClient, verb: str, grace: float | None
) -> None:
    grant(cluster, "drain-delete.yaml")
    node = cluster.create_node()
    name = cluster.create_pod(node=node, running=True)
    before = cluster.pod(name)
    asking, doing = ApiPods(api=api, server_dry_run=True), ApiPods(api=api)
    pod = await the_pod(asking, node)

    await getattr(asking, verb)(pod, grace=grace)

    assert cluster.pod(name) == before
    await getattr(doing, verb)(pod, grace=grace)
    assert name not in cluster.pods(), "the same request without dry-run ends it"


async def test_the_deletion_of_another_pod_is_refused_in_dry_run_too(
    cluster: Cluster, api: ApiClient
) -> None:
    grant(cluster, "drain-delete.yaml")
    node = cluster.create_node()
    name = cluster.create_pod(node=node)
    pods = ApiPods(api=api, server_dry_run=True)
    gone = await the_pod(pods, node)
    cluster.delete_pod(name)
    cluster.create_pod(name, node=node)

    with pytest.raises(ApiError, match="UID"):
        await pods.delete(gone)

    assert name in cluster.pods()


async def test_a_job_stays(cluster: Cluster, api: ApiClient) -> None:
    grant(cluster, "jobs.yaml")
    path = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
    pod: Json = {"containers": [{"name": "a", "image": "b"}], "restartPolicy": "Never"}
    body = {"metadata": {"name": "reset"}, "spec": {"template": {"spec": pod}}}
    uid = cluster.api.create(path, body)["metadata"]["uid"]
    asking = ObjectApi(api=api, check=lambda: None, server_dry_run=True)

    await asking.delete(JOB, cluster.namespace, "reset", uid=uid)

    (job,) = cluster.api.get(path)["items"]
    assert "deletionTimestamp" not in job["metadata"], json.dumps(job["metadata"])
    doing = ObjectApi(api=api, check=lambda: None)
    await doing.delete(JOB, cluster.namespace, "reset", uid=uid)
    assert cluster.api.get(path)["items"] == [], "the same request without dry-run deletes it"
