"""The state to what stands on the Node: conditions, and the annotation behind them.

Invariants:

- A condition is ``True`` exactly when an open fault raises it.
- It is ``False`` only when every view that it needs works: unknown is never well.
- A type that no working view can raise is left out, or, if we wrote it earlier, becomes
  ``Unknown``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from typing import Final, NamedTuple

from node_agent.contract import (
    Condition,
    ConditionStatus,
    ConditionType,
    Fault,
    FaultKind,
    Reason,
    encode_report,
    xid_reason,
)
from node_agent.health.faults import OpenFault
from node_agent.health.state import NodeHealth, worst_first
from node_agent.xid.parse import RECOVERY_ACTION_CHANGED


class View(StrEnum):
    """What the agent can look at. Each can be missing without harm to the others."""

    KERNEL_LOG = "kernel_log"
    NVML = "nvml"
    TRACEPOINT = "tracepoint"
    PCI = "pci"
    POD_RESOURCES = "pod_resources"
    PROCESSES = "processes"
    PODS = "pods"
    RESOURCE_SLICES = "resource_slices"
    BOOT_ID = "boot_id"
    STATE_FILE = "state_file"
    LOCAL_SOCKET = "local_socket"


class ViewState(NamedTuple):
    """Whether a view works now; if not, why, in words for people.

    ``absent``: it is off because this node has no such thing, or a setting says so; nothing
    that was ever checked rests on it.
    """

    up: bool
    reason: str = ""
    absent: bool = False


class _Sources(NamedTuple):
    """What can make a condition true, and what ``False`` rests on.

    ``raisers``: views that can raise it. ``needed``: sets of views; all of one set must work.
    ``heard``: views that must not be away on a node that has them, since they may know better.
    """

    raisers: frozenset[View]
    needed: tuple[frozenset[View], ...]
    heard: frozenset[View]
    fine: str


_LOG: Final = frozenset((View.KERNEL_LOG,))
_NVML: Final = frozenset((View.NVML,))
_NOTHING: Final[frozenset[View]] = frozenset()
_BOTH: Final = _LOG | _NVML

SOURCES: Final[Mapping[ConditionType, _Sources]] = {
    ConditionType.XID_ERROR: _Sources(
        _BOTH | {View.TRACEPOINT}, (_LOG,), _NOTHING, "no unresolved Xid or SXid"
    ),
    ConditionType.RECOVERY_ACTION_REQUIRED: _Sources(
        _BOTH, (_LOG, _NVML), _NVML, "the driver asks for no recovery action"
    ),
    ConditionType.LOST: _Sources(
        _BOTH | {View.PCI},
        (frozenset((View.PCI,)),),
        _NOTHING,
        "every expected device is on PCI and answers",
    ),
    ConditionType.MEMORY_DEGRADED: _Sources(_BOTH, (_LOG,), _NVML, "no unresolved memory fault"),
    ConditionType.OVERHEATING: _Sources(
        _NVML, (_NVML,), _NOTHING, "no thermal slowdown, no temperature at its limit"
    ),
    ConditionType.INTERCONNECT_DEGRADED: _Sources(
        _BOTH, (_LOG,), _NVML, "no unresolved NVLink, NVSwitch, fabric or PCIe link fault"
    ),
    ConditionType.DRIVER_UNRESPONSIVE: _Sources(_NVML, (_NVML,), _NOTHING, "NVML answers in time"),
}
_MAX_NAMED: Final = 3


@dataclass(frozen=True)
class Desired:
    """What the Node should show. ``urgent`` changes when people or policies must know at once.

    ``report`` makes the annotation, which is done only when it is asked for: in a storm the
    state changes hundreds of times between two writes.
    """

    conditions: tuple[Condition, ...]
    report: Callable[[], str]
    faults: Mapping[str, OpenFault]
    urgent: tuple[object, ...]

    @cached_property
    def annotation(self) -> str:
        """The annotation's text."""
        return self.report()


def desired(
    health: NodeHealth,
    views: Mapping[View, ViewState],
    *,
    written: Collection[ConditionType],
    indexes: Mapping[str, int],
) -> Desired:
    """What the Node should show for this state.

    Args:
        health: the state.
        views: which views work.
        written: types that this agent, or one before it, has written on this Node.
        indexes: NVML's numbers of the GPUs, by PCI address.
    """
    conditions = tuple(
        condition
        for kind in ConditionType
        if (condition := condition_of(kind, health, views, written=kind in written)) is not None
    )
    # What is only a count does not hurry; who, what and how bad does.
    urgent = (
        *((c.type, c.status, c.reason) for c in conditions),
        *sorted(
            (f.key, f.severity, f.action, f.boot_id, f.pid is not None, f.pods)
            for f in health.faults.values()
        ),
    )
    return Desired(conditions, partial(_report, health, indexes), health.faults, urgent)


def _report(health: NodeHealth, indexes: Mapping[str, int]) -> str:
    faults: tuple[Fault, ...] = tuple(
        fault.published(index=indexes.get(fault.pci)) for fault in health.worst_first()
    )
    past = tuple(one.published() for one in health.past.values())
    return encode_report(faults, boot_id=health.boot_id, past=past, left_out=health.truncated)


def condition_of(
    kind: ConditionType,
    health: NodeHealth,
    views: Mapping[View, ViewState],
    *,
    written: bool,
) -> Condition | None:
    """One condition; None if this node has no business to write it."""
    raisers = worst_first(f for f in health.faults.values() if _reason(f, kind) is not None)
    if raisers:
        # What the driver asks for is the consequence; the reason names the fault.
        root = next((f for f in raisers if f.code != RECOVERY_ACTION_CHANGED), raisers[0])
        reason = _reason(root, kind) or ""
        return Condition(kind, ConditionStatus.TRUE, reason, _message(root, raisers))
    sources = SOURCES[kind]
    if not any(views[view].up for view in sources.raisers) and not written:
        return None
    unknown = _why_unknown(sources, health, views)
    if unknown:
        return Condition(kind, ConditionStatus.UNKNOWN, Reason.NOT_CHECKED, unknown)
    return Condition(kind, ConditionStatus.FALSE, Reason.NO_FAULT, sources.fine)


def _why_unknown(sources: _Sources, health: NodeHealth, views: Mapping[View, ViewState]) -> str:
    """Why nobody can tell that all is well; empty if one can."""
    away = [view for view in sorted(sources.heard) if not views[view].up and not views[view].absent]
    lacking = [[v for v in sorted(needed) if not views[v].up] for needed in sources.needed]
    down = min(lacking, key=len) or away
    if down:
        return "; ".join(f"{view.value} does not work: {views[view].reason}" for view in down)
    if health.forgotten:
        return (
            "the state file was unreadable, so faults of earlier boots are not known; "
            "set-healthy says that there are none"
        )
    if any(View.PCI in needed for needed in sources.needed) and not health.expected:
        return "no GPU is on PCI and none was ever seen there"
    return ""


def _reason(fault: OpenFault, kind: ConditionType) -> str | None:
    for raised in fault.rule.raises:
        if raised.type is not kind:
            continue
        if raised.reason:
            return raised.reason
        if kind is ConditionType.RECOVERY_ACTION_REQUIRED and fault.reason:
            return fault.reason
        return xid_reason(fault.kind, fault.code or 0)
    return None


def _message(root: OpenFault, raisers: list[OpenFault]) -> str:
    """Says what, where, and what is advised. Counts stay out: they would change too often."""
    parts = [describe(root)]
    if root.action and root.action != "NONE":
        parts.append(f"advised: {root.action}")
    others = [_name(f) + (f" on {f.pci}" if f.pci else "") for f in raisers if f is not root]
    if others:
        more = len(others) - _MAX_NAMED
        named = ", ".join(others[:_MAX_NAMED])
        parts.append(f"also {named}" + (f" and {more} more" if more > 0 else ""))
    return "; ".join(parts)


def describe(fault: OpenFault) -> str:
    """One fault in one line, for people: ``Xid 79 on 0000:3b:00.0 (GPU-…): GPU has …``."""
    where = f" on {fault.pci}" if fault.pci and fault.kind is not FaultKind.LOST else ""
    gpu = f" ({fault.gpu})" if fault.gpu else ""
    return f"{_name(fault)}{where}{gpu}" + (f": {fault.message}" if fault.message else "")


def _name(fault: OpenFault) -> str:
    if fault.kind is FaultKind.SXID:
        return f"SXid {fault.code}"
    if fault.code is not None:
        return f"Xid {fault.code}"
    if fault.kind is FaultKind.LOST:
        return "GPU lost"
    return fault.subcode or fault.kind.value
