"""`remediator drain NODE`: a person's hand tool, on the real API server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from remediator.cli.root import app


if TYPE_CHECKING:
    from testbed.cluster import Cluster
    from tests.integration.drain.conftest import Yard


pytestmark = pytest.mark.cluster


@pytest.fixture
def kubeconfig(cluster: Cluster) -> str:
    """Of an administrator."""
    return str(cluster.kubeconfig_for(cluster.plane.admin_token))


def drain(kubeconfig: str, *args: str) -> Result:
    return CliRunner().invoke(app, ["drain", *args, "--kubeconfig", kubeconfig])


def test_it_cordons_and_drains(yard: Yard, kubeconfig: str) -> None:
    yard.cluster.uncordon(yard.node)
    pod = yard.pod()
    done = drain(kubeconfig, yard.node)

    assert done.exit_code == 0, done.output
    assert f"{yard.node}: cordoned" in done.output
    assert f"{yard.node}: drained" in done.output
    assert yard.cluster.is_unschedulable(yard.node)
    assert not yard.there(pod)
    annotations = yard.cluster.node(yard.node)["metadata"].get("annotations", {})
    assert not any(key.startswith("gpu-remediator.io/") for key in annotations)


def test_it_names_blockers_and_says_what_helps(yard: Yard, kubeconfig: str) -> None:
    pod, lone = yard.pod(labels={"app": "db"}), yard.pod(owner=None)
    budget = yard.budget("db-budget", {"app": "db"})
    done = drain(kubeconfig, yard.node, "--timeout", "2s")

    assert done.exit_code == 1
    for text in (pod, budget, lone, "despite: [unmanaged]", "out of time"):
        assert text in done.output
    assert yard.there(pod)
    assert yard.there(lone)


def test_dry_run_evicts_nothing_and_names_blockers(yard: Yard, kubeconfig: str) -> None:
    yard.cluster.uncordon(yard.node)
    pod, free = yard.pod(labels={"app": "db"}), yard.pod()
    yard.budget("db-budget", {"app": "db"})
    done = drain(kubeconfig, yard.node, "--dry-run")

    assert done.exit_code == 1
    assert f"would evict {free}" in done.output
    assert f"would evict {pod}" not in done.output
    assert "db-budget" in done.output
    assert yard.evictions() == []
    assert not yard.cluster.is_unschedulable(yard.node)


def test_past_a_budget_when_told_to(yard: Yard, kubeconfig: str) -> None:
    pod = yard.pod(labels={"app": "db"})
    yard.budget("db-budget", {"app": "db"})
    done = drain(kubeconfig, yard.node, "--delete-after", "1s", "--timeout", "30s")

    assert done.exit_code == 0, done.output
    assert not yard.there(pod)


async def test_an_uncordon_stops_it(yard: Yard, kubeconfig: str) -> None:
    pod = yard.pod(labels={"app": "db"})
    yard.budget("db-budget", {"app": "db"})
    running = asyncio.create_task(asyncio.to_thread(drain, kubeconfig, yard.node))
    for _ in range(200):
        await asyncio.sleep(0.05)
        if yard.evictions(pod):
            break
    yard.cluster.uncordon(yard.node)
    done = await running

    assert done.exit_code == 1
    assert "takes new pods" in done.output
    assert not yard.cluster.is_unschedulable(yard.node), "nobody is fought"


def test_a_policy_says_how(yard: Yard, kubeconfig: str, tmp_path: Path) -> None:
    gpu, other = yard.pod(gpus=1), yard.pod()
    steps = [{"cordon": {}}, {"drain": {"gpuPodsOnly": True}}]
    document = {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": "x"},
        "spec": {"when": [{"xid": {"codes": [79]}}], "steps": steps},
    }
    (tmp_path / "p.yaml").write_text(json.dumps(document), "utf-8")
    done = drain(kubeconfig, yard.node, "--policy", str(tmp_path / "p.yaml"))

    assert done.exit_code == 0, done.output
    assert (yard.there(gpu), yard.there(other)) == (False, True)


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("nobody",), 1, "there is no node nobody"),
        (("x", "--despite", "all"), 2, "despite"),
        (("x", "--timeout", "10"), 2, "no duration"),
    ],
)
def test_what_it_refuses(kubeconfig: str, args: tuple[str, ...], code: int, text: str) -> None:
    done = drain(kubeconfig, *args)

    assert (done.exit_code, text in done.output) == (code, True), done.output
