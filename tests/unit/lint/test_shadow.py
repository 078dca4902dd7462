"""A policy is called needless only where nothing is left that it does alone."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.policy.lint import RULES, lint
from remediator.policy.model import RemediationPolicy


RULE = [one for one in RULES if one.id == "shadowed-policy"]
CORDON: dict[str, Any] = {"cordon": {}}
DRAIN: dict[str, Any] = {"drain": {}}
APPROVE: dict[str, Any] = {"approve": {}}
BOTH = {"steps": [CORDON, {"notify": {"to": ["log", "oncall"]}}]}
POOL = {"nodes": {"selector": {"matchLabels": {"a": "b"}}}}


def log(message: str = "", **step: Any) -> dict[str, Any]:
    return {"notify": {"to": ["log"], "message": message}, **step}


def steps(*given: dict[str, Any]) -> dict[str, Any]:
    return {"steps": [*given, log()]}


def job(name: str, **step: Any) -> dict[str, Any]:
    return steps(CORDON, DRAIN, {"job": {"template": name}, **step})


def when(**entry: Any) -> dict[str, Any]:
    return {"when": [entry]}


def lost(**more: Any) -> dict[str, Any]:
    return when(condition={"type": "GPULost", **more})


def policy(name: str, spec: dict[str, Any]) -> RemediationPolicy:
    base = {"when": [{"xid": {"codes": [79]}}], "steps": [CORDON, log()]}
    return RemediationPolicy.model_validate(
        {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediationPolicy",
            "metadata": {"name": name},
            "spec": base | spec,
        }
    )


def needless(*policies: RemediationPolicy) -> list[str]:
    return [one.policy for one in lint(policies, rules=RULE)]


FAULTS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({}, {}, True),
    (when(xid={"codes": [48, 79]}), {}, True),
    (when(xid={"codes": [48]}), {}, False),
    (when(xid={"minSeverity": "info"}), when(xid={"minSeverity": "fatal"}), True),
    (when(xid={"minSeverity": "fatal"}), when(xid={"minSeverity": "info"}), False),
    (when(xid={"minSeverity": "info"}), {}, False),
    ({}, when(xid={"minSeverity": "fatal"}), False),
    (
        when(xid={"minSeverity": "info", "except": [79]}),
        when(xid={"minSeverity": "info", "except": [48]}),
        False,
    ),
    (
        when(xid={"minSeverity": "info", "except": [79]}),
        when(xid={"minSeverity": "info", "except": [48, 79]}),
        True,
    ),
    (lost(), lost(**{"for": "1m"}), True),
    (lost(**{"for": "1m"}), lost(), False),
    (lost(), lost(**{"for": "5m", "clearFor": "1m"}), True),
    (lost(**{"for": "5m"}), lost(**{"for": "5m", "clearFor": "1m"}), False),
    (lost(**{"for": "5m", "clearFor": "1m"}), lost(**{"for": "5m"}), True),
    (lost(reasons=["DeviceLost"]), lost(), False),
    (lost(), lost(severity="fatal"), False),
    (when(xid={"codes": [79]}, condition={"type": "GPULost"}), {}, False),
    ({}, when(xid={"codes": [79]}, condition={"type": "GPULost"}), True),
]
DEEDS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    (steps(), steps(CORDON), False),
    (steps(CORDON, DRAIN), steps(CORDON), True),
    (steps(CORDON), steps(CORDON, DRAIN), False),
    (job("gpu-reset"), job("gpu-reset"), True),
    (job("gpu-reset"), job("reboot"), False),
    (job("gpu-reset", timeout="1h"), job("gpu-reset"), False),
    (job("gpu-reset", onFailure="continue"), job("gpu-reset", onFailure="escalate"), False),
    (steps(CORDON, {"drain": {"gpuPodsOnly": True}}), steps(CORDON, DRAIN), False),
    (steps({"taint": {"value": "x"}}), steps({"taint": {}}), False),
    (steps({"label": {"set": {"a": "1"}}}), steps({"label": {"set": {"a": "2"}}}), False),
    # A step before it may hold the one, and not the other.
    (steps(CORDON, APPROVE, DRAIN), steps(CORDON, DRAIN), False),
    (steps(CORDON, APPROVE, DRAIN), steps(CORDON), True),
    (steps(log(onFailure="hold"), CORDON), steps(CORDON), False),
]
PEOPLE: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    (BOTH, {}, True),
    ({}, BOTH, False),
    ({}, {"steps": [CORDON, log("call the vendor")]}, True),
    ({}, steps(CORDON, {"event": {}}), False),
    (steps(CORDON, {"event": {"reason": "Other"}}), steps(CORDON, {"event": {}}), False),
    ({}, {"recover": {"notify": ["oncall"]}}, False),
    (BOTH | {"recover": {"notify": ["oncall"]}}, {}, False),
]
REST: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    (POOL, {}, False),
    ({}, POOL, True),
    ({}, {"nodes": {"controlPlane": True}}, False),
    ({"mode": "DryRun"}, {"mode": "Enforce"}, False),
    ({}, {"emergency": True}, False),
    ({"emergency": True}, {}, True),
    ({"recover": {"when": "manual"}}, {}, False),
    ({}, {"recover": {"for": "1h"}}, False),
    ({"limits": {"budget": {"maxUnavailable": 1}}}, {}, False),
    ({}, {"limits": {"maxAttempts": 5}}, False),
    ({"windows": [{"start": "09:00", "end": "17:00"}]}, {}, False),
    ({"unless": [{"alert": {"name": "Busy"}}]}, {}, False),
]


@pytest.mark.parametrize(("wide", "narrow", "shadowed"), [*FAULTS, *DEEDS, *PEOPLE, *REST])
def test_a_policy_is_shadowed_by_one_that_does_all_it_does(
    wide: dict[str, Any], narrow: dict[str, Any], *, shadowed: bool
) -> None:
    found = needless(policy("a-wide", wide), policy("b-narrow", narrow))
    assert ("b-narrow" in found) is shadowed


def test_of_two_that_are_the_same_one_is_told() -> None:
    assert needless(policy("a", {}), policy("b", {})) == ["b"]


def test_a_policy_that_another_one_counts_is_no_needless_one() -> None:
    second = when(xid={"codes": [48]}, attempts={"atLeast": 1, "policies": ["b"]})
    assert needless(policy("a", {}), policy("b", {}), policy("c", second)) == []
