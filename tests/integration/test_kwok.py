"""KWOK plays kubelets: what it does, for whom, and what it leaves alone."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from testbed.cluster import Cluster
from testbed.controlplane import ControlPlane
from testbed.kwok import ENDS_AFTER, LABEL, Kwok


pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("kwok")]

LONG_AGO = "2026-01-01T00:00:00Z"


def condition(cluster: Cluster, node: str, kind: str) -> dict[str, Any]:
    found = cluster.node(node)["status"]["conditions"]
    return next(one for one in found if one["type"] == kind)


def beaten_long_ago(cluster: Cluster, node: str, **conditions: str) -> None:
    """Make the last heartbeats of a node's conditions very old."""
    said = [
        {"type": kind, "status": status, "lastHeartbeatTime": LONG_AGO, "message": "so it was"}
        for kind, status in conditions.items()
    ]
    cluster.patch_node_status(node, {"status": {"conditions": said}})


def wait_until_it_runs(cluster: Cluster, pod: str) -> None:
    cluster.wait_for(lambda: cluster.pod(pod)["status"]["phase"] == "Running", what=f"{pod} to run")


def writers(cluster: Cluster, *names: str, verb: str) -> set[str]:
    """Who did this to these pods, by the audit log."""
    return {
        entry["user"]["username"]
        for entry in cluster.plane.audit_entries()
        if entry["verb"] == verb
        and entry.get("objectRef", {}).get("name") in names
        and entry["objectRef"]["resource"] == "pods"
        and entry.get("responseStatus", {}).get("code", 500) < 300
    }


def test_pods_run_and_an_evicted_one_ends(cluster: Cluster) -> None:
    node = cluster.create_node(labels=LABEL)
    soon, later = (
        cluster.create_pod(node=node, grace=30, annotations={ENDS_AFTER: text})
        for text in ("10ms", "10m")
    )
    for pod in (soon, later):
        wait_until_it_runs(cluster, pod)
        ready = {one["type"]: one["status"] for one in cluster.pod(pod)["status"]["conditions"]}
        assert ready["Ready"] == "True"
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}/eviction"
        cluster.api.create(path, eviction)

    cluster.wait_for(lambda: soon not in cluster.pods(), what="the end of an evicted pod")
    assert "deletionTimestamp" in cluster.pod(later)["metadata"]
    assert writers(cluster, soon, verb="delete") == {"system:serviceaccount:kube-system:kwok"}


def test_a_pod_of_a_job_ends_by_itself_and_well(cluster: Cluster) -> None:
    node = cluster.create_node(labels=LABEL)
    path = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
    container = {"name": "main", "image": "pause"}
    spec = {"template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
    made = cluster.api.create(path, {"metadata": {"name": "reset"}, "spec": spec})["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "reset", "uid": made["uid"]}
    soon, later = (
        cluster.create_pod(node=node, owner=owner, annotations={ENDS_AFTER: text})
        for text in ("10ms", "10m")
    )

    cluster.wait_for(
        lambda: cluster.pod(soon)["status"]["phase"] == "Succeeded", what=f"{soon} to succeed"
    )
    (state,) = cluster.pod(soon)["status"]["containerStatuses"]
    assert state["state"]["terminated"]["exitCode"] == 0
    assert cluster.pod(later)["status"]["phase"] == "Running"


def test_a_heartbeat_renews_the_kubelets_conditions_and_no_others(cluster: Cluster) -> None:
    node = cluster.create_node(labels=LABEL)
    beaten_long_ago(cluster, node, Ready="True", DiskPressure="False", GPUXidError="False")

    cluster.wait_for(
        lambda: condition(cluster, node, "Ready")["lastHeartbeatTime"] != LONG_AGO,
        what="a heartbeat",
    )
    text = condition(cluster, node, "Ready")["lastHeartbeatTime"]
    age = time.time() - datetime.fromisoformat(text).astimezone(UTC).timestamp()
    assert -2 < age < 60
    assert condition(cluster, node, "DiskPressure")["lastHeartbeatTime"] == text
    assert condition(cluster, node, "DiskPressure")["message"] == "so it was"
    assert condition(cluster, node, "GPUXidError")["lastHeartbeatTime"] == LONG_AGO


def test_nodes_that_are_not_its_own_or_not_ready_are_left_alone(cluster: Cluster) -> None:
    own, down, foreign = (
        cluster.create_node(labels=labels, ready=ready)
        for labels, ready in ((LABEL, "True"), (LABEL, "Unknown"), ({}, "True"))
    )
    alone = cluster.create_pod(node=foreign)
    for node, ready in ((down, "Unknown"), (foreign, "True"), (own, "True")):
        beaten_long_ago(cluster, node, Ready=ready)
    last = cluster.create_pod(node=own)

    cluster.wait_for(
        lambda: condition(cluster, own, "Ready")["lastHeartbeatTime"] != LONG_AGO,
        what="the heartbeat of the node that is its own, the last of the three",
    )
    wait_until_it_runs(cluster, last)
    assert cluster.pod(alone)["status"]["phase"] == "Pending"
    assert condition(cluster, down, "Ready")["lastHeartbeatTime"] == LONG_AGO
    assert condition(cluster, foreign, "Ready")["lastHeartbeatTime"] == LONG_AGO


def test_another_writer_does_not_put_a_heartbeat_off(cluster: Cluster) -> None:
    node = cluster.create_node(labels=LABEL)
    due = int(time.time()) + 4
    last = datetime.fromtimestamp(due - 300, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": last}
    cluster.patch_node_status(node, {"status": {"conditions": [ready]}})

    def beaten() -> bool:
        cluster.annotate(node, {"example.com/written": str(time.time())})
        return bool(condition(cluster, node, "Ready")["lastHeartbeatTime"] != last)

    cluster.wait_for(beaten, what="the heartbeat, in spite of writes without a pause")
    text = condition(cluster, node, "Ready")["lastHeartbeatTime"]
    assert datetime.fromisoformat(text).timestamp() >= due, "and not before it is due"


def test_it_ends_with_its_context(
    control_plane: ControlPlane,
) -> None:
    with Kwok(control_plane, label={"nobody": "has-it"}) as running:
        child = running.process
        assert child.running
    assert not child.running
