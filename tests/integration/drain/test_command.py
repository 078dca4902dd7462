"""`remediator drain NODE`: a person's hand tool, on the real API server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner
from typer.testing import Result as Ran

from remediator.cli import blockers
from remediator.cli.cluster import Target
from remediator.cli.root import app
from remediator.decide.session import (
    SESSION_ANNOTATION,
    SESSION_VERSION,
    Added,
    Before,
    HoldState,
    PolicyHold,
    Result,
    Session,
    StepResult,
    encode,
)
from remediator.policy.drain import Drain


if TYPE_CHECKING:
    from testbed.api import Json
    from testbed.cluster import Cluster
    from tests.integration.drain.conftest import Yard


pytestmark = pytest.mark.cluster


@pytest.fixture
def kubeconfig(cluster: Cluster) -> str:
    """Of an administrator."""
    return str(cluster.kubeconfig_for(cluster.plane.admin_token))


def drain(kubeconfig: str, *args: str) -> Ran:
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


def test_dry_run_names_the_budgets_of_later_pods_and_what_passes_them(
    yard: Yard, kubeconfig: str, tmp_path: Path
) -> None:
    pod, first = yard.pod(labels={"app": "db"}), yard.pod()
    yard.budget("db-budget", {"app": "db"})
    rule = {"selector": {"matchLabels": {"app": "db"}}, "deleteAfter": {"timeout": "30m"}}
    file = policy_file(tmp_path, {"pods": [{**rule, "order": 1}]})
    done = drain(kubeconfig, yard.node, "--dry-run", "--policy", file)

    assert done.exit_code == 1
    assert f"would evict {first}" in done.output
    (said,) = [line for line in done.output.splitlines() if line.startswith(f"  {pod}")]
    assert "db-budget" in said
    assert said.endswith(", when its order comes; deleted past it after 30m")


class Watching:
    """`drain NODE --watch` in a thread, read while it goes on."""

    def __init__(self, kubeconfig: str, node: str, *args: str) -> None:
        self._lines: list[str] = []
        command = [str(Path(sys.executable).parent / "remediator"), "drain", node, "--watch", *args]
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [*command, "--kubeconfig", kubeconfig],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._lines += (line.rstrip() for line in self._process.stdout)

    @property
    def output(self) -> str:
        return "\n".join(self._lines)

    def end(self) -> int:
        code = self._process.wait(timeout=30)
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code


def test_watching_follows_the_session_s_drain_by_its_own_rules(yard: Yard, kubeconfig: str) -> None:
    pods = [yard.pod(gpus=1, labels={"app": "train"}) for _ in range(2)]
    other = yard.pod()
    began = time.time() - 3600.0
    rule = {"waitCompletion": {"maxWait": "2h"}}
    session = session_with({"drain": {"gpuPodsOnly": True, "pods": [rule]}}, yard, began)
    yard.cluster.annotate(yard.node, {SESSION_ANNOTATION: encode(session)})
    watching = Watching(kubeconfig, yard.node, "--strict")
    yard.cluster.wait_for(lambda: "running to their end" in watching.output, what="the rules")
    assert f"{yard.node}: as policy bus drains it" in watching.output
    assert "0 of 2 pods gone" in watching.output
    yard.end(pods[0])
    yard.cluster.wait_for(lambda: "1 of 2 pods gone" in watching.output, what="one that is gone")
    late = session_with({"drain": {"gpuPodsOnly": True, "pods": [rule]}}, yard, began - 7200.0)
    yard.cluster.annotate(yard.node, {SESSION_ANNOTATION: encode(late)})
    yard.cluster.wait_for(lambda: "being evicted" in watching.output, what="the end of the wait")
    hold = replace(
        late.holds[0],
        state=HoldState.HELD,
        work_since=None,
        results=(StepResult(0, "drain", Result.TIMED_OUT, at=began, note="too late"),),
    )
    yard.cluster.annotate(yard.node, {SESSION_ANNOTATION: encode(replace(late, holds=(hold,)))})
    assert watching.end() == 0
    assert "the drain of policy bus has ended: timed-out, too late" in watching.output
    assert yard.evictions() == []
    assert yard.there(other)


def test_watching_without_a_session_goes_by_the_flags_until_nothing_is_left(
    yard: Yard, kubeconfig: str
) -> None:
    pod = yard.pod()
    watching = Watching(kubeconfig, yard.node)
    yard.cluster.wait_for(lambda: "0 of 1 pods gone" in watching.output, what="the pod")
    yard.end(pod)
    assert watching.end() == 0
    assert "1 of 1 pods gone" in watching.output


def session_with(step: Json, yard: Yard, since: float) -> Session:
    """A session whose policy `bus` has this step under way."""
    hold = PolicyHold(
        policy="bus",
        version="1",
        plan=json.dumps({"steps": [step]}),
        reasons=("Xid 79",),
        instances=(),
        since=since,
        step_since=since,
        work_since=since,
    )
    return Session(
        version=SESSION_VERSION,
        id="s",
        node_uid=yard.cluster.node(yard.node)["metadata"]["uid"],
        boot_id="b",
        started=since,
        before=Before(cordoned=True),
        added=Added(),
        holds=(hold,),
    )


def policy_file(folder: Path, drain_step: Json) -> str:
    document = {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": "x"},
        "spec": {
            "when": [{"xid": {"codes": [79]}}],
            "steps": [{"cordon": {}}, {"drain": drain_step}],
        },
    }
    (folder / "p.yaml").write_text(json.dumps(document), "utf-8")
    return str(folder / "p.yaml")


def test_nodes_beyond_the_first_are_said_not_to_be_looked_at(
    yard: Yard, kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = yard.pod(labels={"app": "db"}, owner=None)
    yard.budget("db-budget", {"app": "db"})
    monkeypatch.setattr(blockers, "MAX_NODES", 1)
    drains = [Drain(), Drain.model_validate({"despite": ["unmanaged"]})]
    target = Target(kubeconfig=kubeconfig, context=None, namespace=yard.cluster.namespace)
    found = blockers.drain_blockers(target, {yard.node: drains, "another": drains})
    assert [line.startswith(pod) for line in found[yard.node]] == [True, True]
    assert "no controller" in found[yard.node][0]
    assert "db-budget" in found[yard.node][1], "of the other drain"
    assert found["another"] == ("not looked at: only the pods of the first 1 nodes are",)


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
    file = policy_file(tmp_path, {"gpuPodsOnly": True})
    done = drain(kubeconfig, yard.node, "--policy", file)

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
