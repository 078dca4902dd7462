"""The controller and the people who operate it may do what they need, verb by verb, and no more."""

from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from remediator.cli.root import app
from testbed import manifests
from testbed.api import JSON, MERGE_PATCH, Api, ApiError, Json
from testbed.cluster import Cluster


pytestmark = pytest.mark.cluster

CONFIGMAPS = ("gpu-remediator-state", "gpu-remediator-status", "gpu-remediator-control")
OWN = (*CONFIGMAPS, "gpu-remediator-messages")
"""Those of the controller; an operator has no need of the last."""


@pytest.fixture
def controller(cluster: Cluster) -> Api:
    return cluster.api.with_token(cluster.controller_token())


@pytest.fixture
def operator(cluster: Cluster) -> Api:
    """A person with the operator roles, as the comment in their manifest says."""
    name = f"gpu-remediator-operator-{cluster.namespace}"
    account = {"metadata": {"name": "sre"}}
    cluster.api.create(f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts", account)
    subject = {"kind": "ServiceAccount", "name": "sre", "namespace": cluster.namespace}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    for path, kind, role in (
        (f"{rbac}/clusterrolebindings", "ClusterRole", name),
        (
            f"{rbac}/namespaces/{cluster.namespace}/rolebindings",
            "Role",
            "gpu-remediator-operator",
        ),
    ):
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
        cluster.api.create(path, binding)
    return cluster.api.with_token(cluster.token_for("sre"))


def is_refused(request: Callable[[], object]) -> bool:
    with pytest.raises(ApiError) as refusal:
        request()
    return refusal.value.status == 403


def test_nodes(cluster: Cluster, controller: Api) -> None:
    name = cluster.create_node()
    assert controller.get("/api/v1/nodes", limit="1")["items"]
    controller.patch(
        f"/api/v1/nodes/{name}",
        {
            "metadata": {"annotations": {"gpu-remediator.io/session": "{}"}},
            "spec": {"unschedulable": True},
        },
    )
    assert cluster.is_unschedulable(name)
    watch = controller.raw("GET", "/api/v1/nodes", query={"watch": "true", "timeoutSeconds": "1"})
    assert watch[0] == 200


def test_drains(cluster: Cluster, controller: Api) -> None:
    name = cluster.create_node()
    pod = cluster.create_pod(node=name, running=True)
    listed = controller.get("/api/v1/pods", fieldSelector=f"spec.nodeName={name}")
    assert [item["metadata"]["name"] for item in listed["items"]] == [pod]
    watch = {"watch": "true", "timeoutSeconds": "1", "fieldSelector": f"spec.nodeName={name}"}
    assert controller.raw("GET", "/api/v1/pods", query=watch)[0] == 200
    condition = {"type": "DrainInProgress", "status": "True", "reason": "AdminRequested"}
    controller.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}})
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    controller.create(f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}/eviction", eviction)
    assert pod not in cluster.pods()


def test_events_leases_and_configmaps(cluster: Cluster, controller: Api) -> None:
    event = cluster.event_about(cluster.create_node())
    made = controller.create("/api/v1/namespaces/default/events", event)
    controller.patch(f"/api/v1/namespaces/default/events/{made['metadata']['name']}", {"count": 2})
    own = f"/api/v1/namespaces/{cluster.namespace}/events"
    about = {"kind": "ConfigMap", "namespace": cluster.namespace, "name": OWN[1]}
    named = {"name": "refused", "namespace": cluster.namespace}
    controller.create(own, {**event, "metadata": named, "involvedObject": about})
    controller.patch(f"{own}/refused", {"count": 2})
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{cluster.namespace}/leases"
    controller.create(leases, {"metadata": {"name": "gpu-remediator"}, "spec": {}})
    controller.patch(f"{leases}/gpu-remediator", {"spec": {"holderIdentity": "me"}})
    assert controller.get(f"{leases}/gpu-remediator")["spec"]["holderIdentity"] == "me"
    for name in OWN:
        _use_configmap(cluster, controller, name)
    watch = {
        "watch": "true",
        "timeoutSeconds": "1",
        "fieldSelector": f"metadata.name={CONFIGMAPS[0]}",
    }
    configmaps = f"/api/v1/namespaces/{cluster.namespace}/configmaps"
    assert controller.raw("GET", configmaps, query=watch)[0] == 200


def _use_configmap(cluster: Cluster, controller: Api, name: str) -> None:
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps"
    controller.create(path, {"metadata": {"name": name}})
    controller.patch(f"{path}/{name}", {"data": {"key": "2"}})
    listed = controller.get(path, fieldSelector=f"metadata.name={name}")
    assert [item["data"] for item in listed["items"]] == [{"key": "2"}]


FORBIDDEN: list[tuple[str, str, Json | None]] = [
    ("DELETE", "/api/v1/nodes/{node}", None),
    ("POST", "/api/v1/nodes", {"metadata": {"name": "made-up"}}),
    ("GET", "/api/v1/secrets", None),
    ("GET", "/api/v1/namespaces/{namespace}/secrets", None),
    ("GET", "/api/v1/namespaces/{namespace}/pods/x", None),
    ("DELETE", "/api/v1/namespaces/{namespace}/pods/x", None),
    ("PATCH", "/api/v1/namespaces/{namespace}/pods/x", {"metadata": {"labels": {"a": "b"}}}),
    ("GET", "/api/v1/namespaces/{namespace}/configmaps", None),
    ("GET", "/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt", None),
    ("GET", "/api/v1/namespaces/default/configmaps/gpu-remediator-state", None),
    ("DELETE", "/api/v1/namespaces/{namespace}/configmaps/gpu-remediator-state", None),
    ("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases/x", None),
    ("GET", "/api/v1/namespaces/default/events", None),
    ("POST", "/apis/events.k8s.io/v1/namespaces/default/events", {"metadata": {"name": "e"}}),
    ("PUT", "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/gpu-remediator", {}),
    ("PUT", "/api/v1/namespaces/{namespace}/configmaps/gpu-remediator-status", {}),
    ("POST", "/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": "p"}}),
]


@pytest.mark.parametrize(("method", "path", "body"), FORBIDDEN)
def test_what_the_controller_may_not(
    cluster: Cluster, controller: Api, method: str, path: str, body: Json | None
) -> None:
    path = path.format(node=cluster.create_node(), namespace=cluster.namespace)
    content_type = MERGE_PATCH if method == "PATCH" else JSON
    assert is_refused(
        lambda: controller.request(method, path, body=body, content_type=content_type)
    )


def test_what_an_operator_may_drain(cluster: Cluster, operator: Api) -> None:
    pod = cluster.create_pod(node=cluster.create_node(spec={"unschedulable": True}), running=True)
    kubeconfig = str(cluster.kubeconfig_for(operator.token))
    node = cluster.pod(pod)["spec"]["nodeName"]
    args = ["drain", node, "--despite", "unmanaged", "--kubeconfig", kubeconfig]

    assert CliRunner().invoke(app, [*args, "--dry-run"]).exit_code == 0
    assert pod in cluster.pods()
    assert CliRunner().invoke(app, args).exit_code == 0
    assert pod not in cluster.pods()
    assert is_refused(
        lambda: operator.request("DELETE", f"/api/v1/namespaces/{cluster.namespace}/pods/x")
    )


def test_what_an_operator_may(cluster: Cluster, operator: Api) -> None:
    name = cluster.create_node()
    configmaps = f"/api/v1/namespaces/{cluster.namespace}/configmaps"
    for configmap in CONFIGMAPS:
        cluster.api.create(configmaps, {"metadata": {"name": configmap}})
        assert operator.get(f"{configmaps}/{configmap}")
    assert operator.get("/api/v1/nodes")["items"]
    operator.patch(
        f"/api/v1/nodes/{name}",
        {"metadata": {"annotations": {"gpu-remediator.io/set-healthy": "2026-01-01T00:00:00Z"}}},
    )
    operator.patch(f"{configmaps}/gpu-remediator-control", {"data": {"paused": "true"}})
    state = f"{configmaps}/gpu-remediator-state"
    assert is_refused(lambda: operator.patch(state, {"data": {"tokens": "99"}}))
    assert is_refused(lambda: operator.request("DELETE", f"/api/v1/nodes/{name}"))


def test_records_and_policies_as_objects(cluster: Cluster, controller: Api, operator: Api) -> None:
    manifests.install_crds(cluster.api)
    kinds = f"/apis/gpu-remediator.io/v1alpha1/namespaces/{cluster.namespace}"
    cluster.wait_for(
        lambda: cluster.api.raw("GET", f"{kinds}/remediationpolicies")[0] == 200, what="the kinds"
    )
    record = {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "Remediation",
        "metadata": {"name": "one"},
        "spec": {
            "node": "n",
            "nodeUID": "u",
            "session": "one",
            "policy": "p",
            "started": "2026-01-01T00:00:00Z",
        },
    }
    controller.create(f"{kinds}/remediations", record)
    status = {"status": {"phase": "Running"}}
    controller.patch(f"{kinds}/remediations/one/status", status, content_type=MERGE_PATCH)
    assert operator.get(f"{kinds}/remediations/one")["status"] == status["status"]
    change = {"metadata": {"labels": {"a": "b"}}}
    for refused in (
        lambda: controller.patch(f"{kinds}/remediations/one", change, content_type=MERGE_PATCH),
        lambda: operator.delete(f"{kinds}/remediations/one"),
        lambda: controller.create(f"{kinds}/remediationpolicies", record),
        lambda: controller.get("/apis/gpu-remediator.io/v1alpha1/remediations"),
    ):
        assert is_refused(refused)
    controller.delete(f"{kinds}/remediations/one")
    assert controller.get(f"{kinds}/remediationpolicies")["items"] == []
