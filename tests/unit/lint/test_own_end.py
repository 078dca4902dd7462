"""A wait for the end of the policy's own fault: what is said of it is what happens."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.cli.testing import run_file
from remediator.lab.file import parse_tests
from remediator.policy.lint import RULES, lint
from remediator.policy.model import RemediationPolicy


LOST = {"condition": {"type": "GPULost"}}
EKS = {"condition": {"type": "AcceleratedHardwareReady", "status": "False"}}
RULE = [one for one in RULES if one.id == "waits-for-own-end"]


def policy(when: list[dict[str, Any]], kind: str, status: str, **step: Any) -> RemediationPolicy:
    wait = {"wait": {"condition": {"type": kind, "status": status}}, "timeout": "10m", **step}
    return RemediationPolicy.model_validate(
        {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediationPolicy",
            "metadata": {"name": "p"},
            "spec": {
                "mode": "Enforce",
                "when": when,
                "steps": [{"cordon": {}}, wait, {"taint": {}}],
            },
        }
    )


@pytest.mark.parametrize(
    ("when", "kind", "status", "said"),
    [
        ([LOST], "GPULost", "False", True),
        ([LOST | {"attempts": {"atLeast": 1}}], "GPULost", "False", True),
        ([{"xid": {"codes": [79]}}, {"xid": {"codes": [48]}}], "GPUXidError", "False", True),
        ([EKS], "AcceleratedHardwareReady", "True", True),
        ([LOST], "GPULost", "Unknown", False),
        ([LOST], "GPUXidError", "False", False),
        ([LOST, {"xid": {"codes": [79]}}], "GPULost", "False", False),
        ([{"all": [LOST, EKS]}], "GPULost", "False", False),
        ([EKS, {"alert": {"name": "Bad"}}], "AcceleratedHardwareReady", "True", False),
        ([EKS | {"alert": {"name": "Bad"}}], "AcceleratedHardwareReady", "True", False),
    ],
)
def test_only_the_end_of_every_fault_that_the_policy_names_is_told(
    when: list[dict[str, Any]], kind: str, status: str, *, said: bool
) -> None:
    found = list(lint([policy(when, kind, status)], rules=RULE))
    assert [one.at for one in found] == ([("spec", "steps", 2)] if said else [])


TIMELINE = """
apiVersion: gpu-remediator.io/v1alpha1
kind: PolicyTest
spec:
  tests:
    - name: the fault ends while the step waits for it
      timeline:
        - {at: 5m, condition: {type: GPULost, reason: DeviceLost}}
        - {at: 10m, clear: {}}
      expect:
        steps: [{step: cordon, at: 5m}, {step: uncordon, at: 20m}]
    - name: the fault stays
      timeline:
        - {at: 5m, condition: {type: GPULost, reason: DeviceLost}}
      expect:
        steps: [STEPS]
"""


@pytest.mark.parametrize(
    ("step", "steps", "said"),
    [
        ({}, "{step: cordon, at: 5m}", True),
        (
            {"onFailure": "continue"},
            "{step: cordon, at: 5m}, {step: taint, at: 15m}",
            False,
        ),
    ],
)
def test_the_steps_behind_it_begin_as_the_rule_says(
    step: dict[str, Any], steps: str, *, said: bool
) -> None:
    """With `onFailure: continue` they are for the fault that stays, and nothing is said."""
    one = policy([LOST], "GPULost", "False", **step)
    assert bool(list(lint([one], rules=RULE))) is said
    tests = parse_tests(TIMELINE.replace("STEPS", steps).encode(), file="p.test.yaml")
    results = run_file(tests, [one])
    assert [result.name for result in results if not result.passed] == []
