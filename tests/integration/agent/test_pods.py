"""What the agent learns of pods from a real API server, with the optional roles and without."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog
from ruamel.yaml import YAML

from node_agent.attribution.device_ids import Patterns
from node_agent.attribution.model import CLUSTER_LOOKUPS, Lookup, PodMap
from node_agent.attribution.service import Attribution, Config
from node_agent.publish.access import find_access
from node_agent.publish.cluster_get import cluster_get
from node_agent.publish.node_api import NodeApi
from testbed import manifests
from testbed.binaries import provide
from testbed.cluster import Cluster
from testbed.podresources import KubeletSocket, pod
from tests.unit.agent.attribution.builders import GPU0, GPU1


pytestmark = pytest.mark.cluster

OPTIONAL = manifests.DEPLOY / "agent" / "optional"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.fixture
def node(cluster: Cluster) -> Iterator[str]:
    """A node with a ResourceSlice of two GPUs."""
    name = cluster.create_node()
    slice_path = f"{SLICES}/{name}-gpus"
    cluster.api.create(
        SLICES,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{name}-gpus"},
            "spec": {
                "driver": "gpu.nvidia.com",
                "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    {"name": "gpu-1", "attributes": {"uuid": {"string": GPU1}}},
                ],
            },
        },
    )
    yield name
    cluster.api.delete(slice_path)


@pytest.fixture
def roles(cluster: Cluster) -> Iterator[None]:
    """The optional roles, applied as an administrator would."""
    files = (OPTIONAL / "pods.yaml", OPTIONAL / "resource-slices.yaml")
    documents = [
        d for f in files for d in manifests.relocated(manifests.read(f), cluster.namespace)
    ]
    manifests.apply(cluster.api, documents)
    yield
    manifests.delete(cluster.api, documents)


@asynccontextmanager
async def attribution(
    cluster: Cluster, node: str, folder: Path
) -> AsyncIterator["asyncio.Queue[PodMap]"]:
    """At work with the agent's own token; its maps come out of the queue."""
    account = folder / "account"
    account.mkdir()
    (account / "token").write_text(cluster.agent_token(node))
    (account / "ca.crt").write_bytes(cluster.plane.ca_file.read_bytes())
    host, _, port = cluster.plane.url.removeprefix("https://").rpartition(":")
    access = find_access(
        kubeconfig="",
        context="",
        service_account=account,
        environ={"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port},
    )
    maps: asyncio.Queue[PodMap] = asyncio.Queue()
    api = NodeApi(access=access, node=node, timeout=20, clock=time.monotonic)
    async with api:
        service = Attribution(
            config=Config(
                node=node,
                socket=folder / "kubelet" / "pod-resources" / "kubelet.sock",
                labels=Patterns("app"),
                cluster=CLUSTER_LOOKUPS,
                kubelet_gap=0.05,
                cluster_gap=0.05,
            ),
            get=cluster_get(api),
            on_change=maps.put_nowait,
            clock=time.monotonic,
            wall=time.time,
            random=Random(1),  # noqa: S311
            log=structlog.wrap_logger(structlog.ReturnLogger(), processors=[lambda *_: ""]),
        )
        task = asyncio.create_task(service.run())
        yield maps
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(maps: "asyncio.Queue[PodMap]", fits: Any) -> PodMap:
    while not fits(found := await maps.get()):
        pass
    return found


def on_the_node(cluster: Cluster, node: str, kubelet: KubeletSocket) -> tuple[str, str]:
    """One pod that holds a GPU by the device plugin, one by a claim."""
    plain, claiming = (
        cluster.create_pod(node=node, labels={"app": "train", "other": "x"}, running=True)
        for _ in range(2)
    )
    held = {"driver_name": "gpu.nvidia.com", "pool_name": node, "device_name": "gpu-1"}
    claim = {"claim_name": "c", "claim_namespace": "ns", "claim_resources": [held]}
    kubelet.pods = [
        pod(plain, [GPU0], namespace=cluster.namespace),
        pod(claiming, namespace=cluster.namespace, claims=[claim]),
    ]
    return plain, claiming


@pytest.mark.usefixtures("roles")
async def test_with_the_roles_uid_labels_phase_and_dra_devices_are_known(
    cluster: Cluster, node: str, tmp_path: Path
) -> None:
    with KubeletSocket(tmp_path / "kubelet") as kubelet:
        plain, claiming = on_the_node(cluster, node, kubelet)
        async with attribution(cluster, node, tmp_path) as maps:
            found = await until(
                maps,
                lambda found: (
                    set(found.off) == {Lookup.PROCESSES}
                    and all(any(ref.uid for ref in found.of_device(gpu)) for gpu in (GPU0, GPU1))
                ),
            )
    for gpu, name in ((GPU0, plain), (GPU1, claiming)):
        (ref,) = found.of_device(gpu)
        assert ref.pod == f"{cluster.namespace}/{name}"
        assert ref.uid == cluster.pod(name)["metadata"]["uid"]
        assert (ref.phase, ref.labels) == ("Running", (("app", "train"),))


async def test_without_them_the_view_is_off_with_the_role_to_apply(
    cluster: Cluster, node: str, tmp_path: Path
) -> None:
    with KubeletSocket(tmp_path / "kubelet") as kubelet:
        plain, _ = on_the_node(cluster, node, kubelet)
        async with attribution(cluster, node, tmp_path) as maps:
            found = await until(
                maps,
                lambda found: (
                    found.of_device(GPU0)
                    and all("apply" in found.off.get(lookup, "") for lookup in CLUSTER_LOOKUPS)
                ),
            )
    assert "apply deploy/agent/optional/pods.yaml" in found.off[Lookup.PODS]
    slices = found.off[Lookup.RESOURCE_SLICES]
    assert "apply deploy/agent/optional/resource-slices.yaml" in slices
    (ref,) = found.of_device(GPU0)
    assert (ref.pod, ref.uid, ref.labels) == (f"{cluster.namespace}/{plain}", "", ())
    assert found.unresolved == (f"gpu.nvidia.com/{node}/gpu-1",)


def test_the_patch_for_processes_fits_the_daemonset(tmp_path: Path) -> None:
    # kustomize reads nothing outside its root, and takes no absolute path.
    for file in ("agent/daemonset.yaml", "agent/optional/processes.patch.yaml"):
        (tmp_path / Path(file).name).write_bytes((manifests.DEPLOY / file).read_bytes())
    (tmp_path / "kustomization.yaml").write_text(
        "resources: [daemonset.yaml]\npatches: [{path: processes.patch.yaml}]\n"
    )
    built = subprocess.run(  # noqa: S603 - kubectl of the test's control plane
        [provide("kubectl"), "kustomize", str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    spec = YAML(typ="safe").load(built)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["hostPID"] is True
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in spec["volumes"]}
    mounted = {m["mountPath"]: m.get("readOnly") for m in container["volumeMounts"]}
    assert mounted["/var/log/pods"] is mounted["/var/log/containers"] is True
    assert mounted["/var/lib/kubelet/pod-resources"] is True
