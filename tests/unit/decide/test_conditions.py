"""Conditions of anyone: reversed sense, alternating reasons, how bad they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from node_agent.contract import Severity
from remediator.decide.facts import ConditionFact
from remediator.decide.match import Answer, instance_answer, match
from tests.unit.decide.build import START, condition, node, policy, xid


EKS = policy(
    when=[
        {"condition": {"type": "AcceleratedHardwareReady", "status": "False", "severity": "fatal"}}
    ]
)


def accelerated(status: str) -> Any:
    kind = "AcceleratedHardwareReady"
    return node(conditions={kind: condition(kind, status, reason="NvidiaXID79Error")})


@pytest.mark.parametrize(
    ("status", "answer"),
    [("False", Answer.HOLDS), ("True", Answer.CLEAR), ("Unknown", Answer.UNKNOWN)],
)
def test_a_type_that_says_what_is_well_is_faulty_when_false(status: str, answer: Answer) -> None:
    assert match(EKS, accelerated(status), START).answer is answer


def test_it_is_as_bad_as_the_policy_says_and_ends_when_it_is_well() -> None:
    found = match(EKS, accelerated("False"), START)
    assert found.severity is Severity.FATAL
    (instance,) = found.instances
    assert instance_answer(instance, accelerated("False"), START) is Answer.HOLDS
    assert instance_answer(instance, accelerated("Unknown"), START) is Answer.UNKNOWN
    assert instance_answer(instance, accelerated("True"), START) is Answer.CLEAR


@pytest.mark.parametrize(
    ("kind", "status", "answer"),
    [
        ("Ready", "Unknown", Answer.HOLDS),
        ("Ready", "True", Answer.CLEAR),
        ("Ready", "False", Answer.UNKNOWN),
        ("GpuHealthy", "Unknown", Answer.HOLDS),
        ("GpuHealthy", "True", Answer.CLEAR),
        ("GpuHealthy", "False", Answer.UNKNOWN),
        ("KernelDeadlock", "Unknown", Answer.HOLDS),
        ("KernelDeadlock", "False", Answer.CLEAR),
        ("KernelDeadlock", "True", Answer.UNKNOWN),
    ],
)
def test_what_is_bad_in_another_way_is_no_health(kind: str, status: str, answer: Answer) -> None:
    silent = policy(when=[{"condition": {"type": kind, "status": "Unknown"}}])
    facts = node(conditions={kind: condition(kind, status)})
    assert match(silent, facts, START).answer is answer


def test_own_conditions_are_as_bad_as_the_worst_fault_unless_the_policy_says() -> None:
    lost = {"GPULost": condition("GPULost", "True")}
    facts = node(conditions=lost, faults=(xid(),))
    assert (
        match(policy(when=[{"condition": {"type": "GPULost"}}]), facts, START).severity == "fatal"
    )
    said = policy(when=[{"condition": {"type": "GPULost", "severity": "info"}}])
    assert match(said, facts, START).severity is Severity.INFO


WAITS = policy(
    when=[{"condition": {"type": "GPULost", "reasons": ["A", "B"], "for": "10m"}}],
)


def flapping(reason: str, reasons: dict[str, float]) -> Any:
    fact = ConditionFact("GPULost", "True", reason, "", since=START, seen=START, reasons=reasons)
    return node(conditions={"GPULost": replace(fact, seen=START + 600)})


def test_alternating_reasons_do_not_restart_the_wait() -> None:
    """Karpenter 2833: each change of the reason began the toleration anew."""
    seen = {"A": START, "B": START + 300}
    for reason in ("A", "B"):
        facts = flapping(reason, seen)
        assert match(WAITS, facts, START + 599).answer is Answer.PENDING
        assert match(WAITS, facts, START + 599).next_look == START + 600
        assert match(WAITS, facts, START + 600).holds


def test_the_wait_begins_with_the_reasons_that_count() -> None:
    facts = flapping("A", {"Else": START, "A": START + 500})
    assert match(WAITS, facts, START + 600).answer is Answer.PENDING
    assert match(WAITS, facts, START + 600).next_look == START + 1100
    assert match(WAITS, facts, START + 1100).holds
    assert match(WAITS, flapping("Else", {"Else": START, "A": START + 500}), 0).answer is (
        Answer.UNKNOWN
    )
