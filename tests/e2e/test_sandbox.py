"""The sandbox, as somebody uses it who tries a policy: dry-run, enforce, the end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest


ROOT = Path(__file__).parents[2]
POLICY = "gpu-fallen-off-bus.yaml"
PATIENCE = 60.0


class Sandbox(NamedTuple):
    process: subprocess.Popen[str]
    printed: list[str]
    policies: Path

    def command(self, *words: str) -> str:
        """The printed command that has these words."""
        return next(line for line in self.printed if all(word in line for word in words))

    def run(self, command: str) -> str:
        """Do as a person does who copies it."""
        done = subprocess.run(  # noqa: S603 - what our own program printed
            ["/bin/bash", "-c", f"{self.command('export KUBECONFIG=')}\n{command}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def until(self, found: Callable[[str], object], command: str) -> str:
        """Its output, once it is as expected."""
        deadline = time.monotonic() + PATIENCE
        while not found(output := self.run(command)):
            assert time.monotonic() < deadline, output
            time.sleep(0.2)
        return output


@contextlib.contextmanager
def started(policies: Path, *more: str) -> Iterator[Sandbox]:
    """A sandbox on this folder, once it has printed everything."""
    argv = [
        sys.executable,
        "-m",
        "demo.sandbox",
        "--policies",
        str(policies),
        "--nodes",
        "3",
        *more,
    ]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        assert process.stdout is not None
        printed: list[str] = []
        try:
            for line in process.stdout:
                printed.append(line.rstrip("\n"))
                if "reboot:" in line:  # the last that it prints
                    break
            assert process.poll() is None, "\n".join(printed)
            yield Sandbox(process, printed, policies)
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_a_policy_is_tried_in_dry_run_then_enforced_and_nothing_is_left(tmp_path: Path) -> None:
    shutil.copy(ROOT / "policies" / POLICY, tmp_path)
    with started(tmp_path) as sandbox:
        config = Path(sandbox.command("sed -i").split()[-1])
        try_it(sandbox)
        assert config.exists()
    assert not config.parent.exists(), "its folder goes with it"


def try_it(sandbox: Sandbox) -> None:
    status, nodes = sandbox.command("remediator status"), sandbox.command("get nodes")
    assert sandbox.run(nodes).count(" Ready ") == 3
    sandbox.run(sandbox.command("happen", "xid"))

    would = sandbox.until(lambda text: "gpu-1" in text, status)
    assert "mode DryRun" in would
    assert "SchedulingDisabled" not in sandbox.run(nodes)

    policy = sandbox.policies / POLICY
    text = policy.read_text("utf-8")
    policy.write_text(text.replace("mode: DryRun", "mode: Enforce"), "utf-8")
    sandbox.run(sandbox.command("sed -i"))
    cordoned = sandbox.until(lambda text: "SchedulingDisabled" in text, nodes)
    assert re.findall(r"(\S+) +Ready,SchedulingDisabled", cordoned) == ["gpu-1"]

    sandbox.until(lambda text: "gpu-1" in text, "remediator history")
    sandbox.run("kubectl apply -f policies/gpu-nvlink.yaml")
    accepted = "kubectl get remediationpolicy gpu-nvlink -o jsonpath={.status.conditions[*].reason}"
    sandbox.until(lambda text: "InForce" in text, accepted)


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_a_drain_and_a_job_run_to_their_end(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    spec: dict[str, Any] = {
        "mode": "Enforce",
        "when": [{"xid": {"codes": [119]}}],
        "steps": [{"cordon": {}}, {"drain": {}}, {"job": {"template": "reset"}}],
        "recover": {"for": "0s"},
    }
    write(tmp_path / "policies" / "reset.yaml", "RemediationPolicy", spec)
    containers = [{"name": "reset", "image": "example/reset"}]
    template = {"spec": {"runtimeClassName": "nvidia", "containers": containers}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": template}}
    (tmp_path / "reset-job.yaml").write_text(json.dumps(job), "utf-8")
    config = tmp_path / "remediator-config.yaml"
    spec = {"mode": "Enforce", "settling": "0s", "templates": {"reset": {"file": "reset-job.yaml"}}}
    write(config, "RemediatorConfig", spec)

    with started(tmp_path / "policies", "--config", str(config)) as sandbox:
        sandbox.run("python -m demo.sandbox happen gpu-2 'xid: {code: 119}'")
        sandbox.until(lambda text: "Complete" in text, "kubectl get jobs")
        back = [line for line in sandbox.printed if line.endswith(f"mode: DryRun/' {config}")]
        assert len(back) == 1, "a file of people's own is put back afterwards"
        pods = sandbox.run("kubectl get pods -n team -o wide")
        assert pods.count("gpu-1") == pods.count("gpu-3") == 2
        assert "gpu-2" not in pods
        sandbox.run("python -m demo.sandbox happen gpu-2 'reboot: {takes: 1s}'")
        sandbox.until(lambda text: "SchedulingDisabled" not in text, "kubectl get nodes")


def write(path: Path, kind: str, spec: dict[str, Any]) -> None:
    head = {"apiVersion": "gpu-remediator.io/v1alpha1", "kind": kind, "metadata": {"name": "reset"}}
    path.write_text(json.dumps({**head, "spec": spec}), "utf-8")


def test_faults_are_played_on_this_machine_only(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        '{"clusters": [{"cluster": {"server": "https://prod.example.com",'
        ' "certificate-authority": "ca"}}], "users": [{"user": {"token": "t"}}]}',
        "utf-8",
    )
    refused = subprocess.run(
        [sys.executable, "-m", "demo.sandbox", "happen", "gpu-1", "xid: {code: 79}"],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert refused.returncode == 1
    assert "https://prod.example.com is no sandbox" in refused.stderr
