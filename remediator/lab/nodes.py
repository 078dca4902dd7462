"""Virtual nodes, and what agents, kubelets and people do to them.

Every function takes a version of a node and returns the next one, as an API server would
keep it. The agent's side writes what ``docs/contract.md`` promises and nothing more: a test
that wants another condition says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from node_agent.contract import (
    FAULTS_ANNOTATION,
    MAX_TIMES,
    PAST_SECONDS,
    VERSION,
    ConditionStatus,
    ConditionType,
    ContractError,
    Fault,
    FaultKind,
    FaultReport,
    Past,
    Reason,
    Severity,
    decode_report,
    encode_report,
    worst_first,
    xid_reason,
)
from remediator.kube.objects import Condition, Node, Taint


READY: Final = "Ready"
_REMAP = (ConditionType.MEMORY_DEGRADED, Reason.ROW_REMAP_PENDING)
_ECC = (ConditionType.MEMORY_DEGRADED, Reason.UNCORRECTABLE_ECC)
_LINK = (ConditionType.INTERCONNECT_DEGRADED, Reason.NVLINK_DOWN)
ALSO_RAISES: Final[Mapping[int, tuple[ConditionType, str]]] = {
    **dict.fromkeys((48, 95, 140), _ECC),
    63: _REMAP,
    64: (ConditionType.MEMORY_DEGRADED, Reason.ROW_REMAP_FAILURE),
    79: (ConditionType.LOST, Reason.FALLEN_OFF_BUS),
    154: (ConditionType.RECOVERY_ACTION_REQUIRED, "Xid154"),
    **dict.fromkeys((74, *range(144, 151)), _LINK),
}
"""What an Xid raises beside GPUXidError. A test compares it with the agent's own rules."""
_SWITCH: Final = (ConditionType.INTERCONNECT_DEGRADED, Reason.FABRIC_UNHEALTHY)
"""What every SXid raises."""
_OWN: Final = frozenset(ConditionType)


def stamp(now: float) -> str:
    """Return a time as the API server writes it, with the fraction that the lab needs."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")


def well_node(
    name: str,
    *,
    now: float,
    labels: Mapping[str, str],
    age: float = 30 * 86400.0,
    agent: bool = True,
) -> Node:
    """Return a node that is ready and, with an agent, checked and found well."""
    node = Node(
        name=name,
        uid=f"uid-{name}",
        resource_version="1",
        labels=dict(labels),
        annotations={},
        dropped_annotations=0,
        created=stamp(now - age),
        deleted=None,
        unschedulable=False,
        taints=(),
        conditions=(Condition(READY, "True", "KubeletReady", "", stamp(now), stamp(now)),),
        addresses=(),
        boot_id=f"{name}-boot-1",
    )
    if not agent:
        return node
    for kind in ConditionType:
        node = with_condition(node, kind, ConditionStatus.FALSE, Reason.NO_FAULT, now=now)
    return _with_faults(node, ())


def with_condition(
    node: Node, kind: str, status: str, reason: str = "", message: str = "", *, now: float
) -> Node:
    """Return the node with one condition written anew."""
    was = node.condition(kind)
    since = was.last_transition_time if was is not None and was.status == status else stamp(now)
    new = Condition(kind, status, reason, message, stamp(now), since)
    if was is None:
        conditions = (*node.conditions, new)
    else:
        conditions = tuple(new if one.type == kind else one for one in node.conditions)
    return msgspec.structs.replace(node, conditions=conditions)


def without_condition(node: Node, kind: str) -> Node:
    """Return the node without a condition."""
    kept = tuple(one for one in node.conditions if one.type != kind)
    return msgspec.structs.replace(node, conditions=kept)


def beaten(node: Node, kinds: Iterable[str] | None = None, *, now: float) -> Node:
    """Return the node after a heartbeat of these conditions; None: of all that our agent writes."""
    due = _OWN if kinds is None else frozenset(kinds)
    conditions = tuple(
        msgspec.structs.replace(one, last_heartbeat_time=stamp(now)) if one.type in due else one
        for one in node.conditions
    )
    return msgspec.structs.replace(node, conditions=conditions)


def faults_of(node: Node) -> tuple[Fault, ...]:
    """Return the faults that stand on the node; none, where somebody wrote another text there."""
    return _report(node).faults


def _report(node: Node) -> FaultReport:
    text = node.annotations.get(FAULTS_ANNOTATION)
    try:
        return FaultReport(version=VERSION) if text is None else decode_report(text)
    except ContractError:
        return FaultReport(version=VERSION)


def with_fault(node: Node, fault: Fault, *, now: float) -> Node:
    """Return the node after the agent reported a fault, or one more episode of it."""
    others = []
    for one in faults_of(node):
        if (one.kind, one.code, one.pci) == (fault.kind, fault.code, fault.pci):
            fault = msgspec.structs.replace(
                fault,
                first_seen=one.first_seen,
                count=one.count + 1,
                lines=one.lines + 1,
                times=(*one.times, *fault.times)[-MAX_TIMES:],
            )
        else:
            others.append(one)
    return _restated(_with_faults(node, (*others, fault)), node, now=now)


def without_faults(node: Node, gone: Callable[[Fault], bool], *, now: float) -> Node:
    """Return the node after the agent saw that some faults are gone; counts keep their times."""
    kept = tuple(one for one in faults_of(node) if not gone(one))
    past = _past(node, (one for one in faults_of(node) if gone(one)), now=now)
    return beaten(_restated(_with_faults(node, kept, past), node, now=now), now=now)


def cleared(node: Node, *, now: float) -> Node:
    """Return the node after the agent found everything well."""
    node = without_faults(node, lambda _fault: True, now=now)
    for one in node.conditions:
        if one.type in _OWN and one.status != ConditionStatus.FALSE:
            node = with_condition(node, one.type, "False", Reason.NO_FAULT, now=now)
    return node


def booted(node: Node, *, now: float) -> Node:
    """Return the node with the next boot: the kubelet is back, and says so."""
    name, _, number = node.boot_id.rpartition("-")
    boot = f"{name}-{int(number) + 1}" if number.isdecimal() else f"{node.boot_id}-2"
    node = msgspec.structs.replace(node, boot_id=boot)
    node = _with_faults(node, faults_of(node)) if FAULTS_ANNOTATION in node.annotations else node
    return with_condition(node, READY, "True", "KubeletReady", now=now)


def with_texts(
    node: Node,
    *,
    labels: Mapping[str, str | None] | None = None,
    annotations: Mapping[str, str | None] | None = None,
) -> Node:
    """Return the node after people set labels and annotations; None removes one."""
    return msgspec.structs.replace(
        node,
        labels=_merged(node.labels, labels or {}),
        annotations=_merged(node.annotations, annotations or {}),
    )


def with_taint(node: Node, key: str, effect: str, value: str = "") -> Node:
    """Return the node after people added a taint, in place of one of the same key and effect."""
    kept = tuple(one for one in node.taints if (one.key, one.effect) != (key, effect))
    new = Taint(key=key, value=value, effect=effect)
    return msgspec.structs.replace(node, taints=(*kept, new))


def without_taint(node: Node, key: str) -> Node:
    """Return the node after people took away the taints of a key."""
    kept = tuple(one for one in node.taints if one.key != key)
    return msgspec.structs.replace(node, taints=kept)


def cordoned(node: Node, *, unschedulable: bool) -> Node:
    """Return the node after people cordoned or uncordoned it."""
    return msgspec.structs.replace(node, unschedulable=unschedulable)


def fault(
    kind: FaultKind, code: int, *, severity: Severity, pci: str, boot_id: str, now: float
) -> Fault:
    """Return one episode of a fault, seen now."""
    seen = datetime.fromtimestamp(now, UTC)
    return Fault(
        kind=kind,
        code=code,
        severity=severity,
        first_seen=seen,
        last_seen=seen,
        times=(seen,),
        pci=pci,
        boot_id=boot_id,
    )


def _with_faults(
    node: Node, faults: tuple[Fault, ...], past: tuple[Past, ...] | None = None
) -> Node:
    known = _report(node).past if past is None else past
    text = encode_report(faults, boot_id=node.boot_id, past=known)
    return with_texts(node, annotations={FAULTS_ANNOTATION: text})


def _past(node: Node, gone: Iterable[Fault], *, now: float) -> tuple[Past, ...]:
    """Return the times of faults that are over, with those of these, of the last day."""
    limit = datetime.fromtimestamp(now - PAST_SECONDS, UTC)
    times: dict[tuple[FaultKind, int, str], list[datetime]] = defaultdict(list)
    for past in _report(node).past:
        times[past.kind, past.code, past.pci].extend(past.times)
    for one in gone:
        if one.code is not None:
            times[one.kind, one.code, one.pci].extend(one.times)
    recent = {key: sorted(at for at in found if at >= limit) for key, found in times.items()}
    return tuple(
        Past(kind=kind, code=code, pci=pci, times=tuple(found[-MAX_TIMES:]))
        for (kind, code, pci), found in recent.items()
        if found
    )


def _restated(node: Node, before: Node, *, now: float) -> Node:
    """Let conditions say what the faults say: an informational fault raises nothing.

    A condition ends with the faults that raised it; one that was given by itself stays.
    """
    was, raised = _raised(before), _raised(node)
    for kind in [kind for kind in was if kind not in raised]:
        node = with_condition(node, kind, ConditionStatus.FALSE, Reason.NO_FAULT, now=now)
    for kind, reason in raised.items():
        node = with_condition(node, kind, ConditionStatus.TRUE, reason, now=now)
    known = node.condition(ConditionType.XID_ERROR)
    if known is None:
        reason = Reason.NO_FAULT
        node = with_condition(node, ConditionType.XID_ERROR, "False", reason, now=now)
    return node


def _raised(node: Node) -> dict[str, str]:
    """Return the conditions that a node's faults raise, each with the worst one's reason."""
    found: dict[str, str] = {}
    faults = [one for one in faults_of(node) if one.severity is not Severity.INFO]
    for one in sorted(faults, key=worst_first):
        if one.kind in {FaultKind.XID, FaultKind.SXID} and one.code is not None:
            found.setdefault(ConditionType.XID_ERROR, xid_reason(one.kind, one.code))
            also = _SWITCH if one.kind is FaultKind.SXID else ALSO_RAISES.get(one.code)
            if also is not None:
                found.setdefault(also[0], str(also[1]))
    return found


def _merged(known: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged = {key: text for key, text in known.items() if changes.get(key, "") is not None}
    return merged | {key: text for key, text in changes.items() if text is not None}
