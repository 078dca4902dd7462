"""Conditions of nodes that are well, taken for a fault or for an exception.

What is said of them is what happens: the same policies are played in virtual time, as they were
and as the fix has them.
"""

from __future__ import annotations

from typing import Any

import pytest

from remediator.cli.testing import run_file
from remediator.lab.file import parse_tests
from remediator.policy.cluster import ClusterSpec
from remediator.policy.lint import RULES, Finding, lint
from remediator.policy.model import RemediationPolicy


ASKED = [one for one in RULES if one.id in {"healthy-status", "healthy-unless"}]
XID = {"xid": {"codes": [79]}}
READY = {"condition": {"type": "Ready"}}
NOT_READY = {"condition": {"type": "Ready", "status": "False"}}
EKS = {"condition": {"type": "AcceleratedHardwareReady"}}
NO_LOSS = {"condition": {"type": "GPULost", "status": "False"}}
NO_PRESSURE = {"condition": {"type": "DiskPressure", "status": "False"}}
CUSTOM = {"condition": {"type": "GpuWorks", "status": "False"}}
ALERT = {"alert": {"name": "Maintenance"}}


def policy(
    when: list[dict[str, Any]], unless: list[dict[str, Any]] | None = None, **spec: Any
) -> RemediationPolicy:
    return RemediationPolicy.model_validate(
        {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediationPolicy",
            "metadata": {"name": "p"},
            "spec": {
                "mode": "Enforce",
                "when": when,
                "unless": unless or [],
                "steps": [{"cordon": {}}],
                **spec,
            },
        }
    )


def said(*policies: RemediationPolicy) -> list[Finding]:
    return list(lint(policies, rules=ASKED))


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ([READY], "every healthy node matches"),
        ([{"any": [READY, XID]}], "every healthy node matches"),
        ([{"all": [READY]}], "every healthy node matches"),
        ([READY | {"attempts": {"atLeast": 1}}], "every healthy node matches"),
        ([NO_PRESSURE], "every healthy node matches"),
        ([XID | READY], "given back only when that is over"),
        ([{"all": [XID, EKS]}], "given back only when that is over"),
        ([XID | {"any": [NO_LOSS, ALERT]}], "given back only when that is over"),
        ([XID, NOT_READY, CUSTOM], ""),
        ([XID | NOT_READY], ""),
    ],
)
def test_a_node_that_is_well_is_no_fault(when: list[dict[str, Any]], words: str) -> None:
    found = said(policy(when))
    assert [one.rule.id for one in found] == (["healthy-status"] if words else [])
    assert all(words in one.message for one in found)


def test_people_who_end_it_themselves_may_ask_for_what_never_ends() -> None:
    assert not said(policy([XID | READY], recover={"when": "manual"}))
    assert said(policy([READY], recover={"when": "manual"}))


def test_the_cluster_s_own_watchdog_always_fires_too() -> None:
    cluster = ClusterSpec.model_validate(
        {"alertmanagers": [{"name": "a", "urls": ["http://a:9093"], "watchdog": {"name": "Alive"}}]}
    )
    one = policy([XID], [{"alert": {"name": "Alive"}}])
    assert not said(one)
    assert [hit.at for hit in lint([one], cluster=cluster, rules=ASKED)] == [
        ("spec", "unless", 0, "alert", "name")
    ]


@pytest.mark.parametrize(
    ("unless", "at"),
    [
        ([READY], [0]),
        ([ALERT, EKS], [1]),
        ([NO_LOSS], [0]),
        ([NO_PRESSURE], [0]),
        ([NOT_READY], []),
        ([CUSTOM], []),
        ([{"condition": {"type": "GPULost"}}], []),
        ([READY | ALERT], []),
        ([ALERT, {"alert": {"name": "Watchdog"}}], [1]),
        ([{"alert": {"name": "Watchdog"}} | READY], [0]),
        ([{"alert": {"name": "Watchdog"}} | NOT_READY], []),
    ],
)
def test_an_exception_that_every_node_is_is_none(
    unless: list[dict[str, Any]], at: list[int]
) -> None:
    found = said(policy([XID], unless))
    assert [(one.rule.id, one.at[2]) for one in found] == [
        ("healthy-unless", index) for index in at
    ]
    assert not said(policy([XID], unless, steps=[{"notify": {"to": ["log"]}}]))


TIMELINE = """
apiVersion: gpu-remediator.io/v1alpha1
kind: PolicyTest
spec:
  tests:
    - name: as the rule says
      timeline:
        - {at: 1m, condition: {type: Ready, status: "True", reason: KubeletReady}}
        - {at: 5m, xid: {code: 79}}
        - {at: 10m, clear: {}}
      expect: {nodes: [{at: 9m, cordoned: BROKEN}, {at: 40m, cordoned: AFTER}]}
"""


@pytest.mark.parametrize(
    ("one", "broken", "after", "finds"),
    [
        (policy([XID | READY]), True, True, True),
        (policy([XID | {"cel": "ready"}]), True, False, False),
        (policy([READY]), True, True, True),
        (policy([XID], [READY]), False, False, True),
        (policy([XID], [NOT_READY]), True, False, False),
        (policy([XID | {"condition": {"type": "GPULost"}}]), True, False, False),
    ],
)
def test_what_it_says_is_what_happens_and_its_fix_helps(
    one: RemediationPolicy, *, broken: bool, after: bool, finds: bool
) -> None:
    assert bool(said(one)) is finds
    text = TIMELINE.replace("BROKEN", str(broken).lower()).replace("AFTER", str(after).lower())
    results = run_file(parse_tests(text.encode(), file="p.test.yaml"), [one])
    assert [result for result in results if not result.passed] == []


def test_the_expression_of_a_fix_is_one() -> None:
    (found,) = said(policy([XID | EKS]))
    written = found.fix.partition(" cel: ")[2].strip("'")
    assert not said(policy([XID | {"cel": written}]))
