"""Policies that hold themselves: what is said of them is what happens, played in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.cli.testing import run_file
from remediator.lab.file import parse_tests
from remediator.policy.lint import RULES, lint
from remediator.policy.model import RemediationPolicy


XID = {"xid": {"codes": [79]}}
LOST = {"condition": {"type": "GPULost"}}
LOST_LONG = {"condition": {"type": "GPULost", "for": "5m"}}
OFF_BUS = {"condition": {"type": "GPULost", "reasons": ["FallenOffBus"]}}
ALERT = {"alert": {"name": "Bad", "labels": {"severity": "page"}}}
ANY_BAD = {"alert": {"name": "Bad"}}
PAGES = {"alert": {"labels": {"severity": "page"}}}
QUERY = {"query": {"promql": "x == 1"}}


def policy(when: list[dict[str, Any]], **spec: Any) -> RemediationPolicy:
    return RemediationPolicy.model_validate(
        {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediationPolicy",
            "metadata": {"name": "p"},
            "spec": {"mode": "Enforce", "when": when, "steps": [{"cordon": {}}], **spec},
        }
    )


def said(one: RemediationPolicy, rule: str) -> list[str]:
    return [hit.fix for hit in lint([one], rules=[each for each in RULES if each.id == rule])]


@pytest.mark.parametrize(
    ("when", "unless", "held"),
    [
        ([LOST], LOST, True),
        ([LOST_LONG], LOST, True),
        ([LOST], LOST_LONG, False),
        ([OFF_BUS], LOST, True),
        ([LOST], OFF_BUS, False),
        ([LOST, XID], LOST, False),
        ([LOST, XID | LOST], LOST, True),
        ([{"all": [LOST, XID]}], LOST, True),
        ([{"any": [LOST, XID]}], LOST, False),
        ([{"any": [LOST, OFF_BUS]}], LOST, True),
        ([ALERT], ANY_BAD, True),
        ([ALERT], PAGES, True),
        ([ANY_BAD], ALERT, False),
        ([QUERY], {"query": {"promql": "x==1"}}, True),
        ([LOST | ALERT], LOST | ANY_BAD, True),
        ([LOST], LOST | ANY_BAD, False),
    ],
)
def test_an_exception_that_is_the_fault_itself(
    when: list[dict[str, Any]], unless: dict[str, Any], *, held: bool
) -> None:
    assert bool(said(policy(when, unless=[unless]), "self-held")) is held
    tells = [{"notify": {"to": ["log"]}}]
    assert not said(policy(when, unless=[unless], steps=tells), "self-held")


def attempts(at_least: int, most: int, *steps: dict[str, Any]) -> RemediationPolicy:
    return policy(
        [XID | {"attempts": {"atLeast": at_least}}],
        limits={"maxAttempts": most},
        steps=[{"cordon": {}}, *steps],
        recover={"for": "1m"},
    )


@pytest.mark.parametrize(
    ("one", "late"),
    [
        (attempts(3, 3, {"drain": {}}), True),
        (attempts(2, 3, {"drain": {}}), False),
        (attempts(3, 3, {"notify": {"to": ["log"]}}), False),
    ],
)
def test_attempts_that_are_used_up_before_they_are_enough(
    one: RemediationPolicy, *, late: bool
) -> None:
    """Where nothing is dropped, to escalate is what the author wants."""
    assert bool(said(one, "late-attempts")) is late


def first(most: int) -> RemediationPolicy:
    """What makes the attempts that the other policy counts."""
    one = policy([XID], limits={"maxAttempts": most}, recover={"for": "1m"})
    return one.model_copy(update={"metadata": one.metadata.model_copy(update={"name": "first"})})


TIMELINE = """
apiVersion: gpu-remediator.io/v1alpha1
kind: PolicyTest
spec:
  tests:
    - name: the fault comes back again and again
      timeline:
        - {at: 1h, xid: {code: 79}}
        - {at: 1h10m, clear: {}}
        - {at: 3h, xid: {code: 79}}
        - {at: 3h10m, clear: {}}
        - {at: 5h, xid: {code: 79}}
      EXPECT
"""


@pytest.mark.parametrize(
    ("one", "expect"),
    [
        (attempts(2, 3, {"drain": {}}), "expect: {steps: [{step: drain, policy: p, after: 5h}]}"),
        (attempts(2, 2, {"drain": {}}), "expectNot: {steps: [{step: drain, policy: p}]}"),
    ],
)
def test_the_step_is_begun_or_not_as_the_rule_says(one: RemediationPolicy, expect: str) -> None:
    text = TIMELINE.replace("EXPECT", expect)
    results = run_file(parse_tests(text.encode(), file="p.test.yaml"), [one, first(9)])
    assert [result for result in results if not result.passed] == []
    assert bool(said(one, "late-attempts")) is expect.startswith("expectNot")
