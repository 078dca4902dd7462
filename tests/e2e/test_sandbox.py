"""The sandbox, as somebody uses it who tries a policy: dry-run, enforce, the end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest


ROOT = Path(__file__).parents[2]
POLICY = "gpu-fallen-off-bus.yaml"
PATIENCE = 60.0


class Sandbox(NamedTuple):
    process: subprocess.Popen[str]
    printed: list[str]
    policy: Path

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


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    policies = tmp_path / "policies"
    policies.mkdir()
    shutil.copy(ROOT / "policies" / POLICY, policies)
    argv = [sys.executable, "-m", "demo.sandbox", "--policies", str(policies), "--nodes", "3"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        assert process.stdout is not None
        printed: list[str] = []
        try:
            for line in process.stdout:
                printed.append(line.rstrip("\n"))
                if "reboot:" in line:  # the last that it prints
                    break
            assert process.poll() is None, "\n".join(printed)
            yield Sandbox(process, printed, policies / POLICY)
        finally:
            process.kill()


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_a_policy_is_tried_in_dry_run_then_enforced_and_nothing_is_left(sandbox: Sandbox) -> None:
    status, nodes = sandbox.command("remediator status"), sandbox.command("get nodes")
    assert sandbox.run(nodes).count(" Ready ") == 3
    sandbox.run(sandbox.command("happen", "xid"))

    would = sandbox.until(lambda text: "gpu-1" in text, status)
    assert "mode DryRun" in would
    assert "SchedulingDisabled" not in sandbox.run(nodes)

    text = sandbox.policy.read_text("utf-8")
    sandbox.policy.write_text(text.replace("mode: DryRun", "mode: Enforce"), "utf-8")
    sandbox.run(sandbox.command("sed -i"))
    cordoned = sandbox.until(lambda text: "SchedulingDisabled" in text, nodes)
    assert re.findall(r"(\S+) +Ready,SchedulingDisabled", cordoned) == ["gpu-1"]

    config = Path(sandbox.command("sed -i").split()[-1])
    sandbox.process.send_signal(signal.SIGINT)
    assert sandbox.process.wait(PATIENCE) == 0
    assert not config.parent.exists()


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
