"""Rules about the words of our agent's conditions: their types, and the reasons of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from node_agent.contract import ConditionType, Reason
from remediator.policy.keys import closest, same
from remediator.policy.lint.rule import Context, Hit, Rule, Severity, entries
from remediator.policy.model import RemediationPolicy
from remediator.policy.problems import Location
from remediator.policy.steps import NodeConditionWait
from remediator.policy.when import ConditionClause


_OWN: Final = tuple(str(one) for one in ConditionType)
_OTHERS: Final = (
    *("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"),
    *("KernelDeadlock", "ReadonlyFilesystem"),
    *("AcceleratedHardwareReady", "ContainerRuntimeReady", "KernelReady"),
    *("NetworkingReady", "StorageReady"),
)
"""Types that the kubelet, node-problem-detector and EKS write, letter for letter."""
_CODE_REASON: Final = re.compile(r"S?Xid[0-9]+")
REASONS: Final[Mapping[str, tuple[str, ...]]] = {
    ConditionType.XID_ERROR: (),
    ConditionType.RECOVERY_ACTION_REQUIRED: (
        Reason.GPU_RESET,
        Reason.NODE_REBOOT,
        Reason.DRAIN_P2P,
        Reason.DRAIN_AND_RESET,
        Reason.RECOVER_IMEX_DOMAIN,
        "Xid154",
    ),
    ConditionType.LOST: (Reason.FALLEN_OFF_BUS, Reason.COUNT_MISMATCH, Reason.DEVICE_LOST),
    ConditionType.MEMORY_DEGRADED: (
        Reason.ROW_REMAP_FAILURE,
        Reason.ROW_REMAP_PENDING,
        Reason.UNCORRECTABLE_ECC,
        Reason.PAGE_RETIREMENT_PENDING,
        Reason.PAGE_RETIREMENT_LIMIT,
    ),
    ConditionType.OVERHEATING: (
        Reason.HW_THERMAL_SLOWDOWN,
        Reason.TEMPERATURE_OVER_LIMIT,
        Reason.SW_THERMAL_SLOWDOWN,
    ),
    ConditionType.INTERCONNECT_DEGRADED: (
        Reason.NVLINK_DOWN,
        Reason.FABRIC_UNHEALTHY,
        Reason.NVLINK_ERRORS,
        Reason.PCIE_LINK_DEGRADED,
    ),
    ConditionType.DRIVER_UNRESPONSIVE: (
        Reason.NVML_TIMEOUT,
        Reason.DRIVER_NOT_LOADED,
        Reason.VERSION_MISMATCH,
    ),
}
"""Of each type while it is True, as docs/contract.md has them; GPUXidError has those of codes."""
_OF_STATUS: Final = {"False": (Reason.NO_FAULT,), "Unknown": (Reason.NOT_CHECKED,)}


def _unknown_condition(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for at, clause in conditions(policy):
        if clause.type in {*_OWN, *_OTHERS}:
            continue
        meant, other = closest(clause.type, _OWN), same(clause.type, _OTHERS)
        if other or meant:
            yield Hit(
                (*at, "type"),
                f"nobody writes a condition {clause.type}, but {other}"
                if other
                else f"{clause.type} is no condition of our agent, and close to one",
                f"did you mean {other or meant}?",
            )


def _unknown_reason(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for at, clause in conditions(policy):
        for index, reason in enumerate(clause.reasons if clause.type in _OWN else ()):
            known = _reasons(clause)
            by_code = clause.type == ConditionType.XID_ERROR and clause.status == "True"
            if reason in known or (by_code and _CODE_REASON.fullmatch(reason)):
                continue
            others = [kind for kind in _OWN if reason in REASONS[kind]]
            everywhere = sorted({one for each in REASONS.values() for one in each})
            meant = closest(reason, known) or (others and reason) or closest(reason, everywhere)
            yield Hit(
                (*at, "reasons", index),
                f"our agent writes no reason {reason} for {clause.type}={clause.status}",
                _fix(clause, reason, meant if meant != reason else "", others, known),
            )


def _fix(
    clause: ConditionClause | NodeConditionWait,
    reason: str,
    meant: str,
    others: list[str],
    known: tuple[str, ...],
) -> str:
    if others:
        return f"{reason} is a reason of {others[0]}: make it a clause of its own"
    if _CODE_REASON.fullmatch(reason) and clause.status == "True":
        return f"{reason} is a reason of GPUXidError: make it a clause of its own"
    if meant:
        return f"did you mean {meant}?"
    listed = ", ".join(known) or "Xid79, SXid20034 and the like"
    return f"reasons of it: {listed}; or leave them out"


def _reasons(clause: ConditionClause | NodeConditionWait) -> tuple[str, ...]:
    return _OF_STATUS.get(clause.status) or REASONS[clause.type]


def conditions(
    policy: RemediationPolicy,
) -> Iterator[tuple[Location, ConditionClause | NodeConditionWait]]:
    """Yield all conditions of the node that a policy asks for, and where they stand."""
    for at, entry in entries(policy):
        if entry.condition is not None:
            yield (*at, "condition"), entry.condition
    for index, one in enumerate(policy.spec.unless):
        if one.condition is not None:
            yield ("spec", "unless", index, "condition"), one.condition
    for index, step in enumerate(policy.spec.steps):
        if step.wait is not None and step.wait.condition is not None:
            yield ("spec", "steps", index, "wait", "condition"), step.wait.condition


RULES: Final = (
    Rule(
        "unknown-condition",
        Severity.WARNING,
        "A condition's type is nearly, and not quite, one of our agent's, or a well-known one in "
        "other letters.",
        "Any type is allowed, so a misspelt one never matches and nobody notices.",
        "Write the type as docs/contract.md, or its writer, has it.",
        _unknown_condition,
    ),
    Rule(
        "unknown-reason",
        Severity.WARNING,
        "A reason that our agent never writes for this condition, or not with this status.",
        "The entry never matches.",
        "Write the reason as docs/contract.md has it, or ask for the condition that has it.",
        _unknown_reason,
    ),
)
