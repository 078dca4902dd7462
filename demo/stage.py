"""What the demo plays on: control plane, three GPU nodes, an agent on each, controllers.

The same control plane as in the tests, the manifests of `deploy/`, and the two programs as
processes of their own with the tokens that they would have in their pods. Nobody is admin but
the demo itself, which plays the SRE.
"""

import contextlib
import difflib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from demo.witness import Witness
from testbed.binaries import provide
from testbed.cluster import Cluster
from testbed.controlplane import ControlPlane
from testbed.fake_nvml import FakeNvml
from testbed.gpunode import Agent, GpuMachine
from testbed.processes import Child


POLICIES = Path(__file__).parent.parent / "policies"
LOST = "gpu-fallen-off-bus"
HOT = "gpu-overheating"
RESET = "gpu-reset-required"
QUICK = "2s"
"""The shipped policies wait for minutes before they believe or trust; a demo cannot."""


class Driven(NamedTuple):
    """A node with NVIDIA's driver (NVML), and its agent."""

    node: str
    machine: GpuMachine
    driver: FakeNvml
    agent: Agent


class Stage(NamedTuple):
    """Everything that was set up."""

    plane: ControlPlane
    cluster: Cluster
    node: str
    machine: GpuMachine
    agent: Agent
    hot: Driven
    busy: Driven
    witness: Witness
    folder: Path
    kubeconfig: Path

    def controller(self, mode: str, *policies: str, config: str = "") -> "Controller":
        """A controller (not started).

        Args:
            mode: of its policies and of its RemediatorConfig.
            policies: names of shipped ones.
            config: more of the RemediatorConfig's `spec`.
        """
        return Controller(self, mode, policies, config)

    def kubectl(self, *arguments: str) -> str:
        """What `kubectl` prints, with the SRE's kubeconfig."""
        argv = [provide("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        return _output([str(one) for one in argv])

    def remediator(self, *arguments: str) -> str:
        """What `remediator` prints, with the SRE's kubeconfig."""
        return _output([_program("remediator"), *arguments, f"--kubeconfig={self.kubeconfig}"])


class Controller:
    """One `remediator run`; a context manager."""

    def __init__(self, stage: Stage, mode: str, policies: Sequence[str], config: str) -> None:
        self.folder = stage.folder / f"controller-{mode}-{len(policies)}"
        self._policies = self.folder / "policies"
        self._policies.mkdir(parents=True)
        for name in policies:
            text = _adapted((POLICIES / f"{name}.yaml").read_text("utf-8"), mode)
            (self._policies / f"{name}.yaml").write_text(text, "utf-8")
        self.config = self.folder / "remediator-config.yaml"
        self.config.write_text(
            "apiVersion: gpu-remediator.io/v1alpha1\n"
            "kind: RemediatorConfig\n"
            f"spec: {{mode: {mode}, settling: 1s{config}}}\n",
            "utf-8",
        )
        token = stage.cluster.controller_token()
        argv = [
            _program("remediator"),
            "run",
            f"--policies={self._policies}",
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

    def difference(self, policy: str) -> str:
        """What is not as in the shipped policy."""
        name = f"{policy}.yaml"
        theirs, ours = (
            (folder / name).read_text("utf-8").splitlines() for folder in (POLICIES, self._policies)
        )
        lines = difflib.unified_diff(theirs, ours, lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


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
        machine = _machine(folder / "a")
        node = cluster.create_node("a", boot_id=machine.boot_id, gpus=8)
        witness = Witness(plane.url, token=plane.admin_token, ca_file=plane.ca_file)
        stack.callback(witness.close)
        agent = stack.enter_context(_agent(cluster, node, machine))
        hot, busy = (stack.enter_context(_driven(cluster, folder, name)) for name in "bc")
        kubeconfig = plane.kubeconfig(folder / "sre.kubeconfig", namespace=cluster.namespace)
        yield Stage(plane, cluster, node, machine, agent, hot, busy, witness, folder, kubeconfig)


def _machine(folder: Path) -> GpuMachine:
    folder.mkdir()
    return GpuMachine(folder, gpus=8)


@contextlib.contextmanager
def _driven(cluster: Cluster, folder: Path, name: str) -> Iterator[Driven]:
    machine = _machine(folder / name)
    driver = machine.install_driver()
    node = cluster.create_node(name, boot_id=machine.boot_id, gpus=8)
    with _agent(cluster, node, machine, driver) as agent:
        yield Driven(node, machine, driver, agent)


def _agent(
    cluster: Cluster, node: str, machine: GpuMachine, driver: FakeNvml | None = None
) -> Agent:
    return Agent(
        machine,
        node=node,
        url=cluster.plane.url,
        token=cluster.agent_token(node),
        ca_file=cluster.plane.ca_file,
        driver=driver,
    )


def _adapted(text: str, mode: str) -> str:
    """A shipped policy in another mode, impatient, and one of them with a drain."""
    text = re.sub(r"(?m)^  mode: DryRun$", f"  mode: {mode}", text)
    text = re.sub(r"(?m)^  recover: .*$", f"  recover: {{when: cleared, for: {QUICK}}}", text)
    text = re.sub(r"(?m)^        for: 2m$", f"        for: {QUICK}", text)
    if f"name: {RESET}\n" in text:
        text = re.sub(r"(?m)^    - cordon: \{\}$", "    - cordon: {}\n    - drain: {}", text)
    return text


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _output(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr
