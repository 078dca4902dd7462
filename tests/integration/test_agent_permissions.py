"""The agent's token writes its own words on its own node, and nothing else anywhere."""

from collections.abc import Callable
from typing import Any

import pytest

from node_agent import contract
from testbed import manifests
from testbed.api import JSON_PATCH, MERGE_PATCH, Api, ApiError, Json
from testbed.cluster import Cluster


pytestmark = pytest.mark.cluster

FAULTS = contract.FAULTS_ANNOTATION
LOST = {
    "type": "GPULost",
    "status": "True",
    "reason": "FallenOffBus",
    "message": "GPU 0000:04:00.0",
    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


@pytest.fixture
def node(cluster: Cluster) -> str:
    """A node with things of others on it: labels, an annotation, conditions, images, an owner."""
    images = [{"names": [f"registry.example/i{n}:v1"], "sizeBytes": n} for n in range(50)]
    name = cluster.create_node(
        "mine",
        annotations={"example.com/of-others": "1"},
        extra_status={"images": images, "volumesInUse": ["kubernetes.io/csi/a^b"]},
    )
    cluster.patch_node(name, {"metadata": {"finalizers": ["example.com/guard"]}})
    cluster.set_condition(name, "GPULost", "False", reason="Checked")
    return name


@pytest.fixture(autouse=True)
def _removable(cluster: Cluster) -> Any:
    yield
    for name in cluster.nodes():
        cluster.patch_node(name, {"metadata": {"finalizers": None}})


@pytest.fixture
def agent(cluster: Cluster, node: str) -> Api:
    return cluster.api.with_token(cluster.agent_token(node))


def status_path(node: str) -> str:
    return f"/api/v1/nodes/{node}/status"


def refusal(request: Callable[[], object]) -> str:
    """The message with which the API server refuses the request."""
    with pytest.raises(ApiError) as refused:
        request()
    assert refused.value.status == 403, refused.value
    return str(refused.value)


def test_own_conditions_and_annotation_in_one_patch(
    cluster: Cluster, node: str, agent: Api
) -> None:
    before = cluster.node(node)
    conditions = [{**LOST, "type": kind} for kind in contract.ConditionType]
    agent.patch(
        status_path(node),
        {"metadata": {"annotations": {FAULTS: "{}"}}, "status": {"conditions": conditions}},
    )
    after = cluster.node(node)
    assert after["metadata"]["annotations"] == {**before["metadata"]["annotations"], FAULTS: "{}"}
    written = {c["type"]: c["status"] for c in after["status"]["conditions"]}
    assert {written[kind] for kind in contract.ConditionType} == {"True"}
    assert written["Ready"] == "True"


def test_own_annotation_can_be_removed(cluster: Cluster, node: str, agent: Api) -> None:
    cluster.annotate(node, {FAULTS: "{}"})
    agent.patch(status_path(node), {"metadata": {"annotations": {FAULTS: None}}})
    assert FAULTS not in cluster.node(node)["metadata"]["annotations"]


def test_first_annotation_of_a_node_without_any(cluster: Cluster) -> None:
    name = cluster.create_node("bare")
    agent = cluster.api.with_token(cluster.agent_token(name))
    agent.patch(status_path(name), {"metadata": {"annotations": {FAULTS: "{}"}}})
    assert cluster.node(name)["metadata"]["annotations"] == {FAULTS: "{}"}


def test_own_node_can_be_read(node: str, agent: Api) -> None:
    assert agent.get(f"/api/v1/nodes/{node}")["metadata"]["name"] == node


def test_another_node_is_refused(cluster: Cluster, node: str, agent: Api) -> None:
    other = cluster.create_node("other")
    body = {"status": {"conditions": [LOST]}}
    message = refusal(lambda: agent.patch(status_path(other), body))
    assert f"the agent of node {node} may not write node {other}" in message


@pytest.mark.parametrize("bound", [True, False], ids=["pod-without-node", "no-pod"])
def test_a_token_bound_to_no_node_is_refused(cluster: Cluster, node: str, *, bound: bool) -> None:
    token = cluster.token_for(manifests.AGENT_ACCOUNT, bound=bound)
    agent = cluster.api.with_token(token)
    body = {"status": {"conditions": [LOST]}}
    message = refusal(lambda: agent.patch(status_path(node), body))
    assert "bound to a pod on this node" in message


def _condition(kind: str, **changes: object) -> Json:
    return {"status": {"conditions": [{**LOST, "type": kind, **changes}]}}


# What the patch tries -> the patch -> part of the refusal.
FORBIDDEN: dict[str, tuple[Json, str]] = {
    "new label": ({"metadata": {"labels": {"tier": "gold"}}}, "labels"),
    "changed label": ({"metadata": {"labels": {"kubernetes.io/os": "plan9"}}}, "labels"),
    "removed label": ({"metadata": {"labels": {"nvidia.com/gpu.present": None}}}, "labels"),
    "all labels removed": ({"metadata": {"labels": {"$patch": "delete"}}}, "labels"),
    "new annotation": ({"metadata": {"annotations": {"example.com/x": "1"}}}, "annotation"),
    "the controller's session": (
        {"metadata": {"annotations": {"gpu-remediator.io/session": "{}"}}},
        "annotation",
    ),
    "the operator's all-clear": (
        {"metadata": {"annotations": {"gpu-remediator.io/set-healthy": "2026-01-01T00:00:00Z"}}},
        "annotation",
    ),
    "changed annotation": (
        {"metadata": {"annotations": {"example.com/of-others": "2"}}},
        "annotation",
    ),
    "removed annotation": (
        {"metadata": {"annotations": {"example.com/of-others": None}}},
        "annotation",
    ),
    "finalizer removed": (
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/guard"]}},
        "finalizers",
    ),
    "finalizer added": ({"metadata": {"finalizers": ["example.com/mine"]}}, "finalizers"),
    "owner": (
        {
            "metadata": {
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"},
                ]
            }
        },
        "ownerReferences",
    ),
    "new foreign condition": (_condition("KernelDeadlock"), "conditions of others"),
    "changed foreign condition": (_condition("Ready", status="False"), "conditions of others"),
    "removed foreign condition": (
        {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}},
        "conditions of others",
    ),
    "condition that looks like ours": (_condition("GPULost2"), "conditions of others"),
    "capacity": ({"status": {"capacity": {"nvidia.com/gpu": "0"}}}, "nothing in status"),
    "allocatable": ({"status": {"allocatable": {"nvidia.com/gpu": "0"}}}, "nothing in status"),
    "nodeInfo": ({"status": {"nodeInfo": {"bootID": "forged"}}}, "nothing in status"),
    "address": (
        {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}},
        "nothing in status",
    ),
    "images removed": ({"status": {"images": None}}, "nothing in status"),
    "new status field": (
        {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}},
        "nothing in status",
    ),
    "phase": ({"status": {"phase": "Running"}}, "nothing in status"),
    "volumes removed": ({"status": {"volumesInUse": None}}, "nothing in status"),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_anything_else_of_the_own_node_is_refused(
    cluster: Cluster, node: str, agent: Api, what: str
) -> None:
    patch, expected = FORBIDDEN[what]
    before = cluster.node(node)
    assert expected in refusal(lambda: agent.patch(status_path(node), patch))
    assert cluster.node(node) == before
    # The claim is about the policy, not about a patch that nobody could send.
    assert cluster.patch_node_status(node, patch)["metadata"] != before["metadata"]


def test_other_patch_types_are_refused_just_so(node: str, agent: Api) -> None:
    merge = {"metadata": {"labels": {"tier": "gold"}}}
    path = status_path(node)
    assert "labels" in refusal(lambda: agent.patch(path, merge, content_type=MERGE_PATCH))
    steps = [{"op": "add", "path": "/metadata/labels/tier", "value": "gold"}]
    assert "labels" in refusal(lambda: agent.patch(path, steps, content_type=JSON_PATCH))
    # Every condition of others replaced by one of ours.
    replaced = {"status": {"conditions": [LOST]}}
    assert "conditions of others" in refusal(
        lambda: agent.patch(path, replaced, content_type=MERGE_PATCH)
    )


def test_a_duplicated_foreign_condition_does_not_hide_a_removal(
    cluster: Cluster, node: str, agent: Api
) -> None:
    conditions = cluster.node(node)["status"]["conditions"]
    ready = next(c for c in conditions if c["type"] == "Ready")
    forged = {
        "status": {"conditions": [ready if c["type"] == "DiskPressure" else c for c in conditions]}
    }
    message = refusal(lambda: agent.patch(status_path(node), forged, content_type=MERGE_PATCH))
    assert "conditions of others" in message


def test_spec_is_out_of_reach(cluster: Cluster, node: str, agent: Api) -> None:
    cordon = {"spec": {"unschedulable": True}}
    assert 'cannot patch resource "nodes"' in refusal(
        lambda: agent.patch(f"/api/v1/nodes/{node}", cordon)
    )
    # By way of the status subresource the server itself ignores it.
    agent.patch(status_path(node), {**cordon, "status": {"conditions": [LOST]}})
    assert cluster.node(node)["spec"] == {}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/nodes"),
        ("DELETE", "/api/v1/nodes/{node}"),
        ("GET", "/api/v1/pods"),
        ("GET", "/api/v1/namespaces/{namespace}/secrets"),
        ("GET", "/api/v1/namespaces/{namespace}/configmaps"),
        ("GET", "/api/v1/namespaces/default/events"),
    ],
)
def test_verbs_that_the_agent_has_not(
    cluster: Cluster, node: str, agent: Api, method: str, path: str
) -> None:
    path = path.format(node=node, namespace=cluster.namespace)
    assert "forbidden" in refusal(lambda: agent.request(method, path))


def _new_style_event(node: str) -> Json:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "agent-", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "gpu-remediator.io/node-agent",
        "reportingInstance": node,
        "action": "Observe",
        "reason": "Xid79",
        "regarding": {"kind": "Node", "name": node, "uid": node},
        "note": "GPU has fallen off the bus",
        "type": "Warning",
    }


CORE_EVENTS = "/api/v1/namespaces/default/events"
NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


@pytest.fixture
def generous(cluster: Cluster) -> None:
    """What our role leaves out is granted by another: the admission policy stands all the same."""
    name, rbac = f"generous-{cluster.namespace}", "/apis/rbac.authorization.k8s.io/v1"
    roles = f"{rbac}/namespaces/default/roles"
    rule = {"apiGroups": ["", "events.k8s.io"], "resources": ["events"]}
    cluster.api.create(
        roles, {"metadata": {"name": name}, "rules": [{**rule, "verbs": ["create", "patch"]}]}
    )
    account = {
        "kind": "ServiceAccount",
        "name": manifests.AGENT_ACCOUNT,
        "namespace": cluster.namespace,
    }
    cluster.api.create(
        f"{rbac}/namespaces/default/rolebindings",
        {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [account],
        },
    )


def test_events_about_the_own_node(cluster: Cluster, node: str, agent: Api) -> None:
    made = agent.create(CORE_EVENTS, cluster.event_about(node))
    assert len(cluster.events(node)) == 1
    path = f"{CORE_EVENTS}/{made['metadata']['name']}"
    assert 'cannot patch resource "events"' in refusal(lambda: agent.patch(path, {"count": 2}))
    assert 'API group "events.k8s.io"' in refusal(
        lambda: agent.create(NEW_EVENTS, _new_style_event(node))
    )


@pytest.mark.usefixtures("generous")
def test_whoever_grants_more_gets_events_about_the_own_node_only(
    cluster: Cluster, node: str, agent: Api
) -> None:
    made = agent.create(CORE_EVENTS, cluster.event_about(node))
    cluster.wait_for(
        lambda: agent.raw("POST", NEW_EVENTS, body=_new_style_event(node))[0] == 201,
        what="the further rights",
    )
    agent.patch(f"{CORE_EVENTS}/{made['metadata']['name']}", {"count": 2})
    assert sorted(event.get("count", 1) for event in cluster.events(node)) == [1, 2]


@pytest.mark.usefixtures("generous")
def test_events_about_another_node_are_refused(cluster: Cluster, agent: Api) -> None:
    other = cluster.create_node("other")
    expected = "Events about its own node only"
    assert expected in refusal(lambda: agent.create(CORE_EVENTS, cluster.event_about(other)))
    assert expected in refusal(lambda: agent.create(NEW_EVENTS, _new_style_event(other)))


def test_events_about_other_kinds_are_refused(cluster: Cluster, node: str, agent: Api) -> None:
    event = cluster.event_about(node)
    event["involvedObject"] = {"kind": "Pod", "name": node, "namespace": "default"}
    assert "its own node only" in refusal(lambda: agent.create(CORE_EVENTS, event))


@pytest.mark.usefixtures("generous")
@pytest.mark.parametrize("taken_over", [True, False])
def test_events_of_other_nodes_cannot_be_rewritten(
    cluster: Cluster, node: str, agent: Api, *, taken_over: bool
) -> None:
    other = cluster.create_node("other")
    made = cluster.api.create(CORE_EVENTS, cluster.event_about(other))
    patch: Json = {"message": "all is well"}
    if taken_over:
        patch["involvedObject"] = {"name": node, "uid": node}
    path = f"{CORE_EVENTS}/{made['metadata']['name']}"
    assert "its own node only" in refusal(lambda: agent.patch(path, patch))


def test_the_policy_names_the_types_and_the_annotation_of_the_contract() -> None:
    policy = manifests.read(manifests.DEPLOY / "agent" / "admission.yaml")[0]
    variables = {v["name"]: v["expression"] for v in policy["spec"]["variables"]}
    listed = {word.strip(" '[]\n") for word in variables["ownTypes"].split(",")}
    assert listed == set(contract.ConditionType)
    annotation = policy["spec"]["validations"][2]["message"]
    assert contract.FAULTS_ANNOTATION in annotation
