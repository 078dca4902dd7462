"""The toy cluster: a real control plane, GPU nodes with pods, and a controller on your policies.

Real are the API server, the controller manager, the controller and its rights; KWOK plays the
kubelets. There is no agent: what agents would write is written here, at first that all is well,
then a heartbeat each minute, and what `happen` says.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from demo.sandbox.happen import SandboxError, beaten, checked, write
from testbed.api import ApiError
from testbed.cluster import Cluster
from testbed.controlplane import ControlPlane
from testbed.kwok import LABEL, Kwok
from testbed.manifests import DEPLOY, apply, install_crds, read
from testbed.processes import Child
from testbed.repeating import repeating
from testbed.workload import create_budget, create_owner


_TEAM: Final = "team"
_HEARTBEAT: Final = 60.0  # seconds; the agent's own is five minutes, and three of them missed count
_CONFIG: Final = """\
# Of this sandbox only. Both this file and the policy must say Enforce before a node is touched.
apiVersion: gpu-remediator.io/v1alpha1
kind: RemediatorConfig
spec:
  mode: DryRun
  settling: 1s
"""


_MORE_RIGHTS: Final = ("drain-delete.yaml", "jobs.yaml")
"""Of `deploy/controller/optional`, for policies that need them."""


class World(NamedTuple):
    """What people need to know of it."""

    plane: ControlPlane
    nodes: Sequence[str]
    kubeconfig: Path
    config: Path
    own: bool
    """Whether ``config`` is the sandbox's own, and goes with it."""
    controller: Child


@contextlib.contextmanager
def agents(plane: ControlPlane, nodes: Sequence[str]) -> Iterator[None]:
    """Say that all nodes are well, and then go on with the heartbeats of their agents."""
    api = plane.api()

    def beat() -> None:
        for name in nodes:
            # A node that people deleted has no agent any more.
            with contextlib.suppress(SandboxError, ApiError, OSError):
                write(api, name, beaten)

    try:
        for name in nodes:
            write(api, name, checked)
        with repeating(beat, seconds=_HEARTBEAT, name="agents"):
            yield
    finally:
        api.close()


@contextlib.contextmanager
def set_up(policies: Path, *, config: Path | None, count: int) -> Iterator[World]:
    """Start everything; end all of it afterwards, each by its own pid.

    Args:
        policies: file or folder of the controller.
        config: its RemediatorConfig; None for one of the sandbox's own, in dry-run.
        count: of GPU nodes.
    """
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(more_controllers=["job-controller"]))
        cluster = Cluster(plane)
        stack.callback(cluster.api.close)
        cluster.install()
        install_crds(cluster.api)
        for file in _MORE_RIGHTS:
            apply(cluster.api, read(DEPLOY / "controller" / "optional" / file))
        # The GPU operator's: without it the Job controller makes no pod of NVIDIA's templates.
        runtime = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
        cluster.api.create("/apis/node.k8s.io/v1/runtimeclasses", runtime)
        stack.enter_context(Kwok(plane))
        nodes = [cluster.create_node(str(one), labels=LABEL) for one in range(1, count + 1)]
        stack.enter_context(agents(plane, nodes))
        team = Cluster(plane, namespace=_TEAM)
        stack.callback(team.api.close)
        _pods(team, nodes)
        own = config is None
        if config is None:
            config = plane.folder / "remediator-config.yaml"
            config.write_text(_CONFIG, "utf-8")
        controller = stack.enter_context(_controller(cluster, policies, config))
        kubeconfig = plane.kubeconfig(plane.folder / "kubeconfig", namespace=cluster.namespace)
        yield World(plane, nodes, kubeconfig, config, own, controller)


def _pods(team: Cluster, nodes: Sequence[str]) -> None:
    """On each node a pod of training, and one of a service that can spare a single one."""
    team.api.create("/api/v1/namespaces", {"metadata": {"name": _TEAM}})
    account = f"/api/v1/namespaces/{_TEAM}/serviceaccounts"
    team.wait_for(lambda: team.api.get(account)["items"], what="the default service account")
    for name in ("train", "serve"):
        owner = create_owner(team, "StatefulSet", name)
        for number, node in enumerate(nodes):
            team.create_pod(
                f"{name}-{number}",
                node=node,
                service_account="default",
                labels={"app": name},
                owner=owner,
                gpus=4,
                grace=30,
            )
    team.wait_for(
        lambda: all(one["status"]["phase"] == "Running" for one in team.pods().values()),
        what="pods that run",
    )
    create_budget(team, "serve", {"app": "serve"}, minimum=len(nodes) - 1)


@contextlib.contextmanager
def _controller(cluster: Cluster, policies: Path, config: Path) -> Iterator[Child]:
    argv = [
        str(Path(sys.executable).with_name("remediator")),
        "run",
        f"--policies={policies}",
        "--policies-from=both",
        f"--config={config}",
        f"--kubeconfig={cluster.kubeconfig_for(cluster.controller_token())}",
        f"--namespace={cluster.namespace}",
        "--listen=127.0.0.1:0",
        "--log-format=console",
    ]
    child = Child("remediator", argv, log=cluster.plane.folder / "remediator.log")
    child.start()
    try:
        child.wait_until(lambda: "policies_in_force" in child.log.read_text("utf-8"), timeout=30)
        yield child
        child.stop()
    finally:
        child.close()
