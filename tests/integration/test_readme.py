"""What the README has people type on their own cluster, typed on a real API server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.binaries import provide
from testbed.cluster import Cluster
from testbed.processes import Child


if TYPE_CHECKING:
    from testbed.controlplane import ControlPlane


ROOT = Path(__file__).parents[2]
ELSEWHERE = ("docker ", "export PATH", "remediator run ")
"""Begin what is not typed here: images, and what goes on until it is ended."""
STANDS_FOR = {"YOUR-SRE-GROUP": "sre"}


def blocks(text: str) -> list[str]:
    """The shell blocks of a part of the page, without comments at the ends of lines."""
    found = re.findall(r"^ *```sh\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(r" +# .*$", "", one, flags=re.MULTILINE) for one in found]


def commands(text: str) -> list[str]:
    """What is typed, one command each, in the page's order."""
    lines = "\n".join(blocks(text)).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith(ELSEWHERE)]


def part(heading: str, end: str) -> str:
    page = (ROOT / "README.md").read_text("utf-8")
    return page[page.index(f"\n{heading}\n") : page.index(f"\n{end}\n")]


class Person:
    """Types commands in the folder of the repository, with the cluster's kubeconfig."""

    def __init__(self, plane: ControlPlane, node: str) -> None:
        path = f"{Path(sys.executable).parent}:{provide('kubectl').parent}:{os.environ['PATH']}"
        kubeconfig = plane.kubeconfig(plane.folder / "person.kubeconfig")
        self.kubeconfig = f"--kubeconfig={kubeconfig}"
        self.environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": path}
        self._stands_for = {**STANDS_FOR, "NODE": node}

    def types(self, command: str) -> str:
        for word, real in self._stands_for.items():
            command = re.sub(rf"\b{word}\b", real, command)
        done = subprocess.run(  # noqa: S603 - of our own page
            ["/bin/bash", "-o", "pipefail", "-c", command],
            cwd=ROOT,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_the_commands_for_ones_own_cluster_work_in_their_order(
    own_control_plane: ControlPlane,
) -> None:
    cluster = Cluster(own_control_plane)
    node = cluster.create_node()
    person = Person(own_control_plane, node)
    looks = commands(part("### 1. Look, from your machine", "### 2. Install, still in dry-run"))
    made, *looks = looks
    person.types(made)
    program = str(Path(sys.executable).with_name("remediator"))
    argv = [program, "run", "--policies=policies/", "--listen=127.0.0.1:0", person.kubeconfig]
    controller = Child("remediator", argv, log=own_control_plane.folder / "log")
    controller.start()
    try:
        controller.wait_until(
            lambda: cluster.configmap("gpu-remediator-status") is not None, timeout=60
        )
        for command in [*looks, *commands(part("### Stop it", "## Where to read on"))]:
            person.types(command)
        controller.stop()
    finally:
        controller.close()
    for command in commands(part("### 2. Install, still in dry-run", "### Stop it")):
        person.types(command)
    namespaced = "namespaces/gpu-remediator"
    assert cluster.api.get(f"/apis/apps/v1/{namespaced}/deployments/gpu-remediator")["metadata"]
    assert cluster.api.get(f"/api/v1/{namespaced}/configmaps/gpu-remediator-policies")["data"]
    assert not cluster.is_unschedulable(node)
