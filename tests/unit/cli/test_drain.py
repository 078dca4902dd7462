"""`drain NODE`: what its flags, and the drain step of a policy, come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remediator.cli.drain import Wish, wish
from remediator.cli.failure import Failure


POLICY = """
apiVersion: gpu-remediator.io/v1alpha1
kind: RemediationPolicy
metadata: {name: p}
spec:
  when: [{xid: {codes: [79]}}]
  steps: [STEPS]
"""
DRAIN = "{drain: {gpuPodsOnly: true, pods: [{namespaces: [a], skip: {}}]}, timeout: 3h}"


def wanted(folder: Path, steps: str | None, *, timeout: float | None = None, **keys: Any) -> Wish:
    file = folder / "p.yaml"
    if steps is not None:
        file.write_text(POLICY.replace("STEPS", steps))
    policy = file if steps is not None else None
    return wish(policy=policy, keys=keys, per_second=20, timeout=timeout)


@pytest.mark.parametrize(
    ("steps", "timeout", "seconds"),
    [
        (None, None, 3600.0),
        (None, 60.0, 60.0),
        (DRAIN, None, 10800.0),
        (DRAIN, 60.0, 60.0),
        ("{drain: {}}", None, 3600.0),
    ],
)
def test_it_gives_up_when_the_flag_says_else_when_the_step_does(
    tmp_path: Path, steps: str | None, timeout: float | None, seconds: float
) -> None:
    assert wanted(tmp_path, steps, timeout=timeout).timeout == seconds


def test_flags_change_what_the_step_says_and_a_rule_comes_last(tmp_path: Path) -> None:
    rule = {"deleteAfter": {"timeout": "10m"}}
    drain = wanted(tmp_path, DRAIN, strict=True, pods=[rule]).drain
    assert (drain.gpu_pods_only, drain.strict) == (True, True)
    assert [one.skip is not None for one in drain.pods] == [True, False]


@pytest.mark.parametrize("steps", ["{cordon: {}}", f"{DRAIN}, {DRAIN}"])
def test_a_policy_without_one_drain_is_refused(tmp_path: Path, steps: str) -> None:
    with pytest.raises(Failure, match="drain steps, not one") as caught:
        wanted(tmp_path, steps)
    assert caught.value.code == 2
