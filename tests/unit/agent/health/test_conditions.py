"""What stands on the Node for a state: who is blamed, and when nothing may be said."""

import pytest

from node_agent.contract import ConditionStatus, ConditionType, Severity, decode_report
from node_agent.health.conditions import View, ViewState, condition_of, desired
from node_agent.health.faults import Seen
from node_agent.health.fold import observe
from node_agent.health.rules import RULES, Clear
from node_agent.health.state import NodeHealth
from node_agent.sources.pci_sysfs import DeviceClass
from tests.unit.agent.health.builders import GPU, OTHER_GPU, RESET_WANTED, sxid, xid


UP = dict.fromkeys(View, ViewState(up=True))
DOWN = ViewState(up=False, reason="no permission")


def health_of(*lines: Seen) -> NodeHealth:
    health = NodeHealth(boot_id="boot-1", expected={GPU: DeviceClass.GPU})
    return observe(health, lines, boot_id="boot-1")


def states(
    health: NodeHealth,
    views: dict[View, ViewState] | None = None,
    written: frozenset[ConditionType] = frozenset(),
) -> dict[str, tuple[str, str]]:
    wanted = desired(health, views or UP, written=written, indexes={})
    return {c.type.value: (c.status.value, c.reason) for c in wanted.conditions}


@pytest.mark.parametrize(
    ("line", "raised"),
    [
        (xid(79, 1.0), {"GPUXidError": "Xid79", "GPULost": "FallenOffBus"}),
        (xid(63, 1.0), {"GPUXidError": "Xid63", "GPUMemoryDegraded": "RowRemapPending"}),
        (xid(64, 1.0), {"GPUXidError": "Xid64", "GPUMemoryDegraded": "RowRemapFailure"}),
        (xid(48, 1.0), {"GPUXidError": "Xid48", "GPUMemoryDegraded": "UncorrectableECC"}),
        (xid(74, 1.0), {"GPUXidError": "Xid74", "GPUInterconnectDegraded": "NVLinkDown"}),
        (
            xid(154, 1.0, RESET_WANTED),
            {"GPUXidError": "Xid154", "GPURecoveryActionRequired": "GPUReset"},
        ),
        (
            sxid(20034, 1.0),
            {"GPUXidError": "SXid20034", "GPUInterconnectDegraded": "FabricUnhealthy"},
        ),
        (xid(119, 1.0), {"GPUXidError": "Xid119"}),
        (xid(9999, 1.0), {"GPUXidError": "Xid9999"}),
        (xid(31, 1.0), {}),
    ],
)
def test_each_fault_raises_its_conditions_and_no_other(line: Seen, raised: dict[str, str]) -> None:
    found = states(health_of(line))
    assert {kind: reason for kind, (status, reason) in found.items() if status == "True"} == raised
    assert {status for kind, (status, _) in found.items() if kind not in raised} == {"False"}


ABSENT = ViewState(up=False, reason="no library", absent=True)


def test_only_types_with_a_source_are_written() -> None:
    assert set(states(health_of(), {**UP, View.NVML: ABSENT})) == {
        "GPUXidError",
        "GPURecoveryActionRequired",
        "GPULost",
        "GPUMemoryDegraded",
        "GPUInterconnectDegraded",
    }


def test_with_nvml_every_type_has_a_source() -> None:
    assert states(health_of()) == dict.fromkeys(ConditionType, ("False", "NoFault"))


def test_a_type_that_lost_its_source_becomes_unknown_if_it_was_written() -> None:
    written = frozenset((ConditionType.OVERHEATING,))
    found = states(health_of(), {**UP, View.NVML: ABSENT}, written)
    assert found["GPUOverheating"] == ("Unknown", "NotChecked")


def test_what_nvml_may_know_better_is_unknown_while_it_is_away() -> None:
    found = states(health_of(), {**UP, View.NVML: DOWN}, frozenset(ConditionType))
    assert {kind for kind, (status, _) in found.items() if status == "Unknown"} == {
        "GPURecoveryActionRequired",
        "GPUMemoryDegraded",
        "GPUOverheating",
        "GPUInterconnectDegraded",
        "GPUDriverUnresponsive",
    }
    assert "True" not in {status for status, _ in found.values()}


def test_without_any_source_of_xids_their_types_are_not_written() -> None:
    away = {View.KERNEL_LOG: DOWN, View.NVML: ABSENT, View.TRACEPOINT: ABSENT}
    assert states(health_of(), {**UP, **away}) == {"GPULost": ("False", "NoFault")}


def test_without_the_kernel_log_nobody_can_say_that_there_was_no_xid() -> None:
    found = states(health_of(), {**UP, View.KERNEL_LOG: DOWN})
    assert found["GPUXidError"] == ("Unknown", "NotChecked")
    assert found["GPURecoveryActionRequired"] == ("False", "NoFault")  # the level is read


def test_without_the_kernel_log_a_written_type_is_unknown_and_an_open_fault_stays_true() -> None:
    found = states(
        health_of(xid(79, 1.0)), {**UP, View.KERNEL_LOG: DOWN}, written=frozenset(ConditionType)
    )
    assert found["GPUXidError"] == ("True", "Xid79")
    assert found["GPUMemoryDegraded"] == ("Unknown", "NotChecked")


def test_lost_is_never_false_when_pci_cannot_be_checked() -> None:
    assert states(health_of(), {**UP, View.PCI: DOWN})["GPULost"] == ("Unknown", "NotChecked")


def test_lost_is_unknown_where_no_gpu_was_ever_seen() -> None:
    assert states(NodeHealth())["GPULost"] == ("Unknown", "NotChecked")


def test_after_a_lost_state_file_nothing_is_called_fine() -> None:
    found = states(NodeHealth(forgotten=True, expected={GPU: DeviceClass.GPU}))
    assert {status for status, _ in found.values()} == {"Unknown"}


def test_the_reason_is_the_root_and_the_message_names_the_rest() -> None:
    health = health_of(xid(154, 3.0, RESET_WANTED), xid(95, 1.0), xid(119, 2.0, pci=OTHER_GPU))
    found = condition_of(ConditionType.XID_ERROR, health, UP, written=False)
    assert found is not None
    assert (found.status, found.reason) == (ConditionStatus.TRUE, "Xid95")
    assert "advised: RESET_GPU" in found.message
    assert f"Xid 119 on {OTHER_GPU}" in found.message


def test_counts_alone_are_not_urgent() -> None:
    once = health_of(xid(119, 1.0))
    often = observe(once, [xid(119, 2.0, lines=100_000, new=False)], boot_id="boot-1")
    first, second = (desired(h, UP, written=(), indexes={}) for h in (once, often))
    assert first.urgent == second.urgent
    assert first.conditions == second.conditions
    assert first.annotation != second.annotation


def test_whose_fault_it_is_is_urgent() -> None:
    unnamed = health_of(xid(13, 1.0, "Graphics Exception: ESR"))
    named = observe(unnamed, [xid(13, 1.0, "pid=7, name=train, G", new=False)], boot_id="boot-1")
    first, second = (desired(h, UP, written=(), indexes={}) for h in (unnamed, named))
    assert first.urgent != second.urgent


def test_the_annotation_carries_what_the_state_knows() -> None:
    report = decode_report(desired(health_of(xid(79, 1.0)), UP, written=(), indexes={}).annotation)
    (fault,) = report.faults
    assert (report.boot_id, fault.code, fault.pci, fault.severity) == (
        "boot-1",
        79,
        GPU,
        Severity.FATAL,
    )


def test_every_rule_can_be_ended_by_an_operator() -> None:
    assert all(Clear.OPERATOR in rule.cleared_by for rule in RULES)


def test_age_clears_information_only() -> None:
    assert [rule.name for rule in RULES if Clear.AGE in rule.cleared_by] == ["informational"]
    assert all(not rule.raises for rule in RULES if Clear.AGE in rule.cleared_by)
