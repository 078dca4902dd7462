"""What a clause says of a node: silence is never an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from node_agent.contract import STALE_AFTER_SECONDS, Severity
from remediator.decide.match import Answer, instance_answer, match
from tests.unit.decide.build import START, condition, node, policy, xid


XID_79 = policy()
LOST_FOR_1M = policy(when=[{"condition": {"type": "GPULost", "for": "1m"}}])
STALE = START + STALE_AFTER_SECONDS


@pytest.mark.parametrize(
    ("facts", "now", "expected"),
    [
        (node(faults=(xid(),)), START, Answer.HOLDS),
        (node(), START, Answer.CLEAR),
        (node(), STALE - 1, Answer.CLEAR),
        (node(), STALE, Answer.UNKNOWN),
        (node(faults=(xid(),)), STALE, Answer.HOLDS),
        (node(faults=(xid(48),)), START, Answer.CLEAR),
        (node(faults=(xid(48),), faults_truncated=True), START, Answer.UNKNOWN),
        (node(faults=(xid(48),), info_truncated=True), START, Answer.UNKNOWN),
        (node(info_truncated=True), START, Answer.UNKNOWN),
        (node(conditions={}), START, Answer.UNKNOWN),
        (node(conditions={"GPUXidError": condition("GPUXidError", "Unknown")}), 0, Answer.UNKNOWN),
        (
            node(
                conditions={"GPUXidError": condition("GPUXidError", "True")},
                faults_note="of a newer version",
            ),
            START,
            Answer.UNKNOWN,
        ),
        (node(boot_id="boot-2"), START, Answer.UNKNOWN),
        (node(boot_id="", faults_boot_id=""), START, Answer.UNKNOWN),
        (node(faults=(xid(),), boot_id="boot-2"), START, Answer.HOLDS),
    ],
    ids=[
        "reported",
        "said-clear",
        "still-fresh",
        "stale-false",
        "stale-true-still-holds",
        "another-code",
        "another-code-and-truncated",
        "another-code-and-application-errors-truncated",
        "said-clear-and-application-errors-truncated",
        "never-said",
        "said-unknown",
        "unreadable-details",
        "of-an-earlier-boot",
        "boot-unknown",
        "fault-of-an-earlier-boot",
    ],
)
def test_xid(facts: Any, now: float, expected: Answer) -> None:
    assert match(XID_79, facts, now).answer is expected


def test_stale_fault_is_said_to_be_stale() -> None:
    facts = node(faults=(xid(),))
    assert match(XID_79, facts, START).fresh
    assert not match(XID_79, facts, STALE).fresh
    assert match(XID_79, facts, START).next_look == STALE


def test_sxid_and_xid_of_the_same_number_are_different() -> None:
    sxid = policy(when=[{"sxid": {"codes": [79]}}])
    assert match(sxid, node(faults=(xid(),)), START).answer is Answer.CLEAR


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"minSeverity": "warning"}, {79, 61, 901}),
        ({"minSeverity": "warning", "except": [79]}, {61, 901}),
        ({"minSeverity": "fatal"}, {79}),
        ({"minSeverity": "info", "except": [61, 79]}, {901, 31}),
        ({"codes": [31]}, {31}),
    ],
)
def test_codes_are_asked_for_by_name_or_by_how_bad_they_are(
    asked: dict[str, Any], expected: set[int]
) -> None:
    seen = {79: "fatal", 61: "warning", 901: "warning", 31: "info"}
    faults = {code: xid(code, severity=Severity(word)) for code, word in seen.items()}
    rule = policy(when=[{"xid": asked}])
    found = {code for code, one in faults.items() if match(rule, node(faults=(one,)), START).holds}
    assert found == expected
    together = match(rule, node(faults=tuple(faults.values())), START)
    assert {int(one.split(":")[1]) for one in together.instances} == expected


def test_no_code_so_bad_is_as_clear_as_the_report_is_trusted() -> None:
    serious = policy(when=[{"xid": {"minSeverity": "warning", "except": [79]}}])
    assert match(serious, node(), START).answer is Answer.CLEAR
    assert match(serious, node(faults=(xid(),)), START).answer is Answer.CLEAR
    assert match(serious, node(), STALE).answer is Answer.UNKNOWN
    cut = node(faults=(xid(),), faults_truncated=True)
    assert match(serious, cut, START).answer is Answer.UNKNOWN
    switch = policy(when=[{"sxid": {"minSeverity": "info"}}])
    assert match(switch, node(faults=(xid(),)), START).answer is Answer.CLEAR


def lost(status: str = "True", *, since: float = START, seen: float = START, reason: str = "X"):  # type: ignore[no-untyped-def]  # noqa: ANN201
    fact = replace(condition("GPULost", status, reason=reason), since=since, seen=seen)
    return node(conditions={"GPULost": fact})


def test_for_is_waited_out_whatever_the_reason_becomes() -> None:
    assert match(LOST_FOR_1M, lost(), START + 59.9).answer is Answer.PENDING
    assert match(LOST_FOR_1M, lost(), START + 59.9).next_look == START + 60
    for reason in ("FallenOffBus", "CountMismatch"):
        facts = lost(seen=START + 60, reason=reason)
        assert match(LOST_FOR_1M, facts, START + 60).answer is Answer.HOLDS


def test_another_reason_is_neither_fault_nor_health() -> None:
    only = policy(when=[{"condition": {"type": "GPULost", "reasons": ["FallenOffBus"]}}])
    assert match(only, lost(reason="FallenOffBus"), START).answer is Answer.HOLDS
    assert match(only, lost(reason="CountMismatch"), START).answer is Answer.UNKNOWN


def test_silence_of_our_agent_is_unknown_and_of_others_is_not_known() -> None:
    unknown = policy(when=[{"condition": {"type": "GPULost", "status": "Unknown", "for": "1m"}}])
    assert match(unknown, lost("False"), STALE + 59).answer is Answer.PENDING
    assert match(unknown, lost("False"), STALE + 60).answer is Answer.HOLDS
    kernel = policy(when=[{"condition": {"type": "KernelDeadlock"}}])
    facts = node(conditions={"KernelDeadlock": condition("KernelDeadlock", "False")})
    assert match(kernel, facts, STALE * 2).answer is Answer.CLEAR


def test_all_keys_of_an_entry_must_hold_and_the_worst_answer_decides() -> None:
    both = policy(when=[{"xid": {"codes": [79]}, "condition": {"type": "GPULost"}}])
    facts = node(faults=(xid(),))
    assert match(both, facts, START).answer is Answer.UNKNOWN
    with_lost = {**facts.conditions, "GPULost": condition("GPULost", "True")}
    found = match(both, replace(facts, conditions=with_lost), START)
    assert found.holds
    assert len(found.instances) == 2
    not_lost = {**facts.conditions, "GPULost": condition("GPULost", "False")}
    assert match(both, replace(facts, conditions=not_lost), START).answer is Answer.CLEAR


def test_any_entry_is_enough_and_clear_needs_all() -> None:
    either = policy(when=[{"xid": {"codes": [79]}}, {"condition": {"type": "GPULost"}}])
    assert match(either, node(faults=(xid(),)), START).holds
    assert match(either, node(), START).answer is Answer.UNKNOWN
    stale = match(either, node(faults=(xid(),)), STALE)
    assert stale.holds
    assert not stale.fresh


def test_severity_is_the_worst_reported() -> None:
    faults = (xid(severity=Severity.WARNING), xid(pci="0000:01:00.0", severity=Severity.FATAL))
    assert match(XID_79, node(faults=faults), START).severity is Severity.FATAL
    assert match(XID_79, node(faults=faults[:1]), START).severity is Severity.WARNING


@pytest.mark.parametrize(
    "instance",
    ["alert:GpuLost:n1", "", "condition:GPULost", "condition:GPULost=Perhaps", "condition:=True"],
)
def test_an_instance_that_we_do_not_understand_is_never_clear(instance: str) -> None:
    well = replace(node(), conditions={**node().conditions, **lost("False").conditions})
    assert instance_answer(instance, well, START) is Answer.UNKNOWN


@pytest.mark.parametrize("facts", [node(faults=(xid(),)), lost()])
def test_what_matched_can_be_asked_for_by_its_instance(facts: Any) -> None:
    rule = policy(when=[{"xid": {"codes": [79]}}, {"condition": {"type": "GPULost"}}])
    for instance in match(rule, facts, START).instances:
        assert instance_answer(instance, facts, START) is Answer.HOLDS
        well = replace(node(), conditions={**node().conditions, **lost("False").conditions})
        assert instance_answer(instance, well, START) is Answer.CLEAR
        assert instance_answer(instance, well, STALE) is Answer.UNKNOWN
