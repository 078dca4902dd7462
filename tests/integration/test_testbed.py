"""The testbed keeps its promises: fresh objects for each test, and a server that can break."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed import controlplane
from testbed.api import ApiError
from testbed.cluster import Cluster
from testbed.controlplane import ControlPlane
from testbed.processes import ServerFailedError, free_port


pytestmark = pytest.mark.cluster


def test_a_node_is_what_a_gpu_node_looks_like(cluster: Cluster) -> None:
    name = cluster.create_node(boot_id="boot-1")
    node = cluster.node(name)
    assert node["metadata"]["labels"]["nvidia.com/gpu.present"] == "true"
    assert node["status"]["nodeInfo"]["bootID"] == "boot-1"
    assert node["spec"].get("taints") is None


def test_the_unschedulable_taint_follows_a_cordon(cluster: Cluster) -> None:
    name = cluster.create_node()
    cluster.cordon(name)
    cluster.wait_for(
        lambda: cluster.node(name)["spec"].get("taints"), what="the taint of a cordoned node"
    )
    assert cluster.is_unschedulable(name)
    cluster.uncordon(name)
    cluster.wait_for(lambda: not cluster.node(name)["spec"].get("taints"), what="its removal")


def test_taints_follow_the_ready_condition_that_a_test_sets(cluster: Cluster) -> None:
    name = cluster.create_node()
    cluster.set_ready(name, "Unknown")
    taints = cluster.wait_for(lambda: cluster.node(name)["spec"].get("taints"), what="taints")
    assert "node.kubernetes.io/unreachable" in {taint["key"] for taint in taints}


def test_an_api_server_comes_back_with_its_data(own_control_plane: ControlPlane) -> None:
    cluster = Cluster(own_control_plane)
    name = cluster.create_node()
    own_control_plane.stop_apiserver(grace=0)
    with pytest.raises(OSError, match="refused"):
        own_control_plane.api().get("/api/v1/nodes")
    own_control_plane.start_apiserver()
    assert cluster.node(name)["metadata"]["name"] == name
    with pytest.raises(ApiError, match="Unauthorized"):
        own_control_plane.api(token="wrong").get("/api/v1/nodes")


@pytest.mark.parametrize("taken", [0, 2], ids=["etcd", "kube-apiserver"])
def test_a_port_that_someone_else_took_meanwhile_costs_one_more_attempt(
    monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [free_port() for _ in range(6)]
        ports.insert(taken, other.getsockname()[1])
        monkeypatch.setattr(controlplane, "free_port", iter(ports).__next__)
        with ControlPlane(controllers=False) as plane:
            assert plane.api().get("/version")["gitVersion"].startswith("v1.")
            folder = plane.folder
    assert not folder.exists()


def test_a_server_that_cannot_start_says_why_and_keeps_its_logs() -> None:
    plane = ControlPlane(apiserver_args=["--no-such-flag"])
    with pytest.raises(ServerFailedError, match="unknown flag: --no-such-flag") as failure:
        plane.start()
    kept = Path(str(failure.value).rpartition("logs are kept in ")[2].rstrip(")"))
    assert "no-such-flag" in (kept / "kube-apiserver.log").read_text(encoding="utf-8")
    shutil.rmtree(kept)


def test_servers_end_when_their_owner_is_killed(tmp_path: Path) -> None:
    program = (
        "import time; from testbed.controlplane import ControlPlane\n"
        "plane = ControlPlane(controllers=False).start()\n"
        "print(*[child.pid for child in plane._children.values()], flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = subprocess.Popen(  # noqa: S603  # our own program
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    with owner.stdout:
        pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 2
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/cmdline").exists() and _is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
