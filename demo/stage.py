"""What the demo plays on: control plane, three GPU nodes, one agent, one controller.

The same control plane as in the tests, the manifests of `deploy/`, and the two programs as
processes of their own with the tokens that they would have in their pods. Nobody is admin but
the demo itself, which plays the SRE.
"""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from demo.witness import Witness
from testbed.binaries import provide
from testbed.cluster import Cluster
from testbed.controlplane import ControlPlane
from testbed.gpunode import Agent, GpuMachine
from testbed.processes import Child


SHIPPED = Path(__file__).parent.parent / "policies" / "gpu-fallen-off-bus.yaml"
RECOVER_FOR = "2s"
"""The shipped policy waits ten minutes before it trusts a node again; a demo cannot."""


class Stage(NamedTuple):
    """Everything that was set up."""

    plane: ControlPlane
    cluster: Cluster
    nodes: list[str]
    machine: GpuMachine
    agent: Agent
    witness: Witness
    folder: Path
    kubeconfig: Path

    @property
    def node(self) -> str:
        """The node with the agent."""
        return self.nodes[0]

    def controller(self, mode: str) -> "Controller":
        """A controller whose policy and cluster are in this mode (not started)."""
        return Controller(self, mode)

    def kubectl(self, *arguments: str) -> str:
        """What `kubectl` prints, with the SRE's kubeconfig."""
        argv = [provide("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        return _output([str(one) for one in argv])

    def remediator(self, *arguments: str) -> str:
        """What `remediator` prints, with the SRE's kubeconfig."""
        return _output([_program("remediator"), *arguments, f"--kubeconfig={self.kubeconfig}"])


class Controller:
    """One `remediator run`; a context manager."""

    def __init__(self, stage: Stage, mode: str) -> None:
        self.folder = stage.folder / f"controller-{mode}"
        self.policy = self.folder / "policies" / SHIPPED.name
        self.config = self.folder / "remediator-config.yaml"
        self._write(mode)
        token = stage.cluster.controller_token()
        argv = [
            _program("remediator"),
            "run",
            f"--policies={self.policy.parent}",
            f"--config={self.config}",
            f"--kubeconfig={stage.cluster.kubeconfig_for(token)}",
            f"--namespace={stage.cluster.namespace}",
            "--listen=127.0.0.1:0",
            "--log-format=json",
        ]
        self.process = Child(f"remediator ({mode})", argv, log=self.folder / "remediator.log")

    def __enter__(self) -> Self:
        """Start it, and wait until it leads and has its policies in force."""
        self.process.start()
        try:
            self.process.wait_until(lambda: bool(self.said("policies_in_force")), timeout=30)
        except BaseException:
            self.process.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """SIGTERM: it finishes its writes and hands the lease back."""
        self.process.stop()
        self.process.close()

    def said(self, event: str) -> list[dict[str, object]]:
        """Its log lines of one kind, oldest first."""
        lines = (
            self.process.log.read_text("utf-8").splitlines() if self.process.log.exists() else []
        )
        records = (json.loads(line) for line in lines if line.startswith("{"))
        return [record for record in records if record.get("event") == event]

    def _write(self, mode: str) -> None:
        self.policy.parent.mkdir(parents=True)
        text = SHIPPED.read_text("utf-8")
        text = re.sub(r"(?m)^  mode: DryRun$", f"  mode: {mode}", text)
        text = re.sub(
            r"(?m)^  recover: .*$", f"  recover: {{when: cleared, for: {RECOVER_FOR}}}", text
        )
        self.policy.write_text(text, "utf-8")
        self.config.write_text(
            "apiVersion: gpu-remediator.io/v1alpha1\n"
            "kind: RemediatorConfig\n"
            f"spec: {{mode: {mode}, settling: 1s}}\n",
            "utf-8",
        )


@contextlib.contextmanager
def set_up() -> Iterator[Stage]:
    """Start everything but the controller; end all of it afterwards, each by its own pid."""
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(ControlPlane())
        cluster = Cluster(plane)
        cluster.install()
        cluster.install_admission()
        folder = plane.folder / "demo"
        folder.mkdir()
        (folder / "machine").mkdir()
        machine = GpuMachine(folder / "machine", gpus=8)
        nodes = [
            cluster.create_node(f"{letter}", boot_id=machine.boot_id, gpus=8) for letter in "abc"
        ]
        witness = Witness(plane.url, token=plane.admin_token, ca_file=plane.ca_file)
        stack.callback(witness.close)
        agent = Agent(
            machine,
            node=nodes[0],
            url=plane.url,
            token=cluster.agent_token(nodes[0]),
            ca_file=plane.ca_file,
        )
        stack.enter_context(agent)
        kubeconfig = plane.kubeconfig(folder / "sre.kubeconfig", namespace=cluster.namespace)
        yield Stage(plane, cluster, nodes, machine, agent, witness, folder, kubeconfig)


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _output(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr
