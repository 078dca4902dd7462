"""Whatever the agent can say, a shipped policy sees to it, and has a test that shows it.

From the catalogue and the rules of the agent to the conditions and the report on the node, and from
there to the policies: no list of codes in between that could grow old.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from node_agent.contract import ConditionType, Severity, decode_report
from node_agent.health.conditions import View, ViewState, desired
from node_agent.health.faults import Seen
from node_agent.health.fold import observe
from node_agent.health.rules import RULES
from node_agent.health.state import NodeHealth
from node_agent.sources.pci_sysfs import DeviceClass
from remediator.decide.facts import NodeFacts
from remediator.decide.match import match
from remediator.lab.case import Case
from remediator.lab.file import parse_tests
from remediator.policy.load import load_policies
from remediator.policy.model import RemediationPolicy
from tests.unit.agent.health.builders import CATALOGUE, GPU, RESET_WANTED, sxid, xid
from tests.unit.decide.build import START, condition, node


POLICIES = Path(__file__).parents[3] / "policies"
SHIPPED = {one.name: one for one in load_policies([POLICIES])}
OTHER = "gpu-xid-other"
LATER = START + 3600.0
"""Long after any `for` of a shipped policy."""
UP = dict.fromkeys(View, ViewState(up=True))
UNKNOWN_CODES = (201, 901, 999)
TEXTS = {154: RESET_WANTED, 149: "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0)"}
SERIOUS = [row.code for row in CATALOGUE.xid.values() if row.severity is not Severity.INFO]
ROWS = {
    "gpu-application-errors": (13, 31, 43, 45, 68),
    "gpu-watch": (38, 44, 92, 93, 109, 121),
    "gpu-row-remap-pending": (63, 94),
    "gpu-row-remap-failure": (64,),
    "gpu-reset-required": (48, 62, 95, 110, 119, 120, 136, 140, 143),
    "gpu-fallen-off-bus": (79,),
    "gpu-machine-check": (54, 151),
    OTHER: (61, 78, 122),
}
"""Codes about which NVIDIA's advice and other health checkers differ, each with its policy."""


def facts_of(*lines: Seen) -> NodeFacts:
    """Return what the controller knows of a node whose agent has read these lines."""
    health = NodeHealth(boot_id="boot-1", expected={GPU: DeviceClass.GPU})
    seen = desired(observe(health, lines, boot_id="boot-1"), UP, written=(), indexes={})
    conditions = {
        one.type.value: replace(
            condition(one.type.value, one.status.value, reason=one.reason), seen=LATER
        )
        for one in seen.conditions
    }
    return node(conditions=conditions, faults=decode_report(seen.annotation).faults)


def matching(facts: NodeFacts) -> dict[str, RemediationPolicy]:
    return {name: one for name, one in SHIPPED.items() if match(one, facts, LATER).holds}


def cases_of(name: str) -> tuple[Case, ...]:
    return parse_tests((POLICIES / f"{name}.test.yaml").read_bytes(), file=name).spec.tests


@pytest.mark.parametrize("code", [*SERIOUS, *UNKNOWN_CODES])
def test_every_serious_xid_has_a_policy_and_the_catch_all_only_the_rest(code: int) -> None:
    facts = facts_of(xid(code, START, TEXTS.get(code, "")))
    found = matching(facts)
    assert found
    assert OTHER not in found or len(found) == 1, "people are told of one fault once"


@pytest.mark.parametrize(
    "code", [row.code for row in CATALOGUE.xid.values() if row.severity is Severity.INFO]
)
def test_no_application_error_takes_a_node_or_is_told_to_people(code: int) -> None:
    found = matching(facts_of(xid(code, START)))
    assert {step.action for one in found.values() for step in one.spec.steps} <= {"event"}


@pytest.mark.parametrize("code", [row.code for row in CATALOGUE.sxid.values()])
def test_every_serious_sxid_has_a_policy(code: int) -> None:
    for fatal in (True, False):
        facts = facts_of(sxid(code, START, fatal=fatal))
        raised = facts.conditions[ConditionType.INTERCONNECT_DEGRADED].status == "True"
        assert ("gpu-nvswitch" in matching(facts)) is raised
        assert not fatal or raised


RAISED = sorted(
    {(str(one.type), one.reason) for rule in RULES for one in rule.raises if one.reason}
    | {
        (str(ConditionType.RECOVERY_ACTION_REQUIRED), str(row.reason))
        for row in CATALOGUE.recovery
        if row.reason is not None
    }
)


def test_all_types_raise_something() -> None:
    assert {kind for kind, _ in RAISED} == set(ConditionType) - {ConditionType.XID_ERROR}


@pytest.mark.parametrize(("kind", "reason"), RAISED)
def test_every_condition_that_the_agent_raises_has_a_policy_with_a_test(
    kind: str, reason: str
) -> None:
    fact = replace(condition(kind, "True", reason=reason), seen=LATER)
    no_xid = condition("GPUXidError", "False", now=LATER)
    found = matching(node(conditions={"GPUXidError": no_xid, kind: fact}))
    assert found
    shown = [
        happens.condition
        for name in found
        for case in cases_of(name)
        for happens in case.timeline
        if happens.condition is not None and not case.quiet
    ]
    by_code = any(h.xid or h.sxid for n in found for c in cases_of(n) for h in c.timeline)
    assert by_code or any((one.type, one.reason) == (kind, reason) for one in shown)


@pytest.mark.parametrize(
    ("name", "code"), [(name, code) for name, codes in ROWS.items() for code in codes]
)
def test_a_code_that_needs_care_has_its_policy_with_a_test(name: str, code: int) -> None:
    assert name in matching(facts_of(xid(code, START)))
    tested = {
        happens.xid.code
        for case in cases_of(name)
        for happens in case.timeline
        if happens.xid is not None and not case.quiet
    }
    assert code in tested
