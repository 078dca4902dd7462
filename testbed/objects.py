"""The API objects that a GPU node's kubelet, device plugin and workloads would have made.

Plain data, made of plain arguments; `cluster` sends them.
"""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

from testbed.api import Json


_GPU_LABELS = {
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "NVIDIA-H200",
    "kubernetes.io/arch": "amd64",
    "kubernetes.io/os": "linux",
    # The lifecycle controller would add these two some time later.
    "beta.kubernetes.io/arch": "amd64",
    "beta.kubernetes.io/os": "linux",
}


def node(
    name: str,
    *,
    number: int,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    boot_id: str,
    gpus: int,
    ready: str,
    spec: Json,
    extra_status: Json,
) -> Json:
    """A Node; for the arguments see `Cluster.create_node`. `number` makes its address unique."""
    wanted = {**_GPU_LABELS, "kubernetes.io/hostname": name, **labels}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {key: value for key, value in wanted.items() if value},
            "annotations": dict(annotations),
        },
        "spec": spec,
        "status": {**_status(name, number, boot_id, gpus, ready), **extra_status},
    }


def pod(
    name: str,
    *,
    node: str | None,
    service_account: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    owner: Json | None,
    gpus: int,
    grace: int,
    extra_spec: Json,
) -> Json:
    """A Pod; for the arguments see `Cluster.create_pod`."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {"name": "main", "image": "pause", "resources": {"limits": limits}}
    spec: Json = {
        "serviceAccountName": service_account,
        "automountServiceAccountToken": False,
        "containers": [container],
        # As a DaemonSet's pod, it stays when its node gets a NoExecute taint.
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": grace,
        **extra_spec,
    }
    if node is not None:
        spec["nodeName"] = node
    metadata: Json = {"name": name, "labels": dict(labels), "annotations": dict(annotations)}
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def event_about(node: str) -> Json:
    """A core/v1 Event about a node, as the agent would create it."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"test-{uuid.uuid4().hex[:12]}", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": node, "uid": node},
        "reason": "Xid79",
        "message": "GPU has fallen off the bus",
        "type": "Warning",
        "source": {"component": "node-agent", "host": node},
        "firstTimestamp": _now(),
        "lastTimestamp": _now(),
        "count": 1,
    }


def condition(kind: str, status: str, *, reason: str, message: str = "") -> Json:
    """A condition of a node that has just been written, and has just become so."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": _now(),
        "lastTransitionTime": _now(),
    }


def _status(name: str, number: int, boot_id: str, gpus: int, ready: str) -> Json:
    resources = {"cpu": "96", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    address = f"10.{64 + number // 65536}.{number // 256 % 256}.{number % 256}"
    return {
        "capacity": resources,
        "allocatable": resources,
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": name},
        ],
        "conditions": [
            condition("Ready", ready, reason="KubeletReady", message="kubelet is ready"),
            condition("MemoryPressure", "False", reason="KubeletHasSufficientMemory"),
            condition("DiskPressure", "False", reason="KubeletHasNoDiskPressure"),
        ],
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": boot_id or str(uuid.uuid4()),
            "containerRuntimeVersion": "containerd://2.1.4",
            "kernelVersion": "6.8.0-79-generic",
            "kubeProxyVersion": "",
            "kubeletVersion": "v1.36.3",
            "machineID": uuid.uuid4().hex,
            "operatingSystem": "linux",
            "osImage": "Ubuntu 24.04.3 LTS",
            "systemUUID": str(uuid.uuid4()),
        },
    }


def _now() -> str:
    return datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
