"""The main job, as a newcomer runs it."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_the_demo_sees_the_node_cordoned_and_back() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "unschedulable, as an independent reader sees it" in done.stdout
    assert "spec, labels and annotations of the node are unchanged" in done.stdout
    assert "tainted gpu-remediator.io/unhealthy=overheating:NoSchedule" in done.stdout
    assert "held by a PodDisruptionBudget: inference/llm-0" in done.stdout
    assert "condition Drained=True" in done.stdout
    assert "BREAKER OPEN agents/all" in done.stdout
    assert "no taint, after 2s of being cool" in done.stdout
