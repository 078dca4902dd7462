"""A machine, its Node and its agent, on the real control plane."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from testbed.cluster import PATIENCE, Cluster
from testbed.fake_nvml import FakeNvml
from testbed.gpunode import Agent, GpuMachine


class Setup(NamedTuple):
    """One node: its files, its object's name, its agent (not started)."""

    cluster: Cluster
    machine: GpuMachine
    node: str
    agent: Agent
    driver: FakeNvml | None = None

    def conditions(self) -> dict[str, tuple[str, str]]:
        """Our condition types on the Node: status and reason."""
        return {
            c["type"]: (c["status"], c.get("reason", ""))
            for c in self.raw_conditions()
            if c["type"].startswith("GPU")
        }

    def raw_conditions(self) -> list[dict[str, Any]]:
        conditions: list[dict[str, Any]] = self.cluster.node(self.node)["status"]["conditions"]
        return conditions

    def events(self) -> list[tuple[str, str]]:
        """Reason and type of the agent's own Events about the node."""
        return [
            (event["reason"], event["type"])
            for event in self.cluster.events(self.node)
            if event["source"].get("component") == "gpu-remediator-node-agent"
        ]

    def wait_for(
        self, kind: str, status: str, reason: str = "", *, timeout: float = PATIENCE
    ) -> None:
        """Return when the condition has this status (and reason)."""

        def found() -> bool:
            now = self.conditions().get(kind, ("", ""))
            return now[0] == status and (not reason or now[1] == reason)

        try:
            self.cluster.wait_for(found, what=f"{kind}={status} {reason}", timeout=timeout)
        except TimeoutError as error:
            error.add_note(f"there is {self.conditions()}")
            error.add_note(f"the agent said:\n{self.agent.log_text[-2000:]}")
            raise


MakeSetup = Callable[..., Setup]


@pytest.fixture
def make_setup(tmp_path: Path) -> Iterator[MakeSetup]:
    """Build a node on a cluster; its agent is ended after the test."""
    made: list[Setup] = []

    def make(
        cluster: Cluster, *, gpus: int = 8, url: str = "", model: str = "", **settings: str
    ) -> Setup:
        folder = tmp_path / f"machine-{len(made)}"
        folder.mkdir()
        machine = GpuMachine(folder, gpus=gpus)
        driver = machine.install_driver(model=model) if model else None
        node = cluster.create_node(boot_id=machine.boot_id, gpus=gpus)
        agent = Agent(
            machine,
            node=node,
            url=url or cluster.plane.url,
            token=cluster.agent_token(node),
            ca_file=cluster.plane.ca_file,
            settings=settings,
            driver=driver,
        )
        made.append(Setup(cluster, machine, node, agent, driver))
        return made[-1]

    yield make
    for setup in made:
        setup.agent.kill()
        setup.agent.process.close()


@pytest.fixture
def setup(cluster: Cluster, make_setup: MakeSetup) -> Setup:
    """A node with eight GPUs on the shared server; the agent is running."""
    made = make_setup(cluster)
    made.agent.start()
    return made
