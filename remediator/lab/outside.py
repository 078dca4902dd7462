"""What the entries of a timeline do to a node: agents, kubelets and people, as pure changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from node_agent.contract import Fault, FaultKind
from remediator.decide.requests import (
    APPROVAL_ANNOTATION,
    REQUEST_ANNOTATION,
    Approval,
    Request,
    encode_approvals,
)
from remediator.decide.session import SESSION_ANNOTATION, decode_session, encode
from remediator.kube.objects import Node
from remediator.lab import nodes as on
from remediator.lab.given import (
    ApproveGiven,
    ClearGiven,
    CodeGiven,
    ConditionGiven,
    Empty,
    NodeGiven,
    RequestGiven,
    TaintGiven,
)
from remediator.policy.cluster import ClusterSpec


POOL_LABEL: Final = "gpu-remediator.io/pool"
_FIRST_BUS: Final = 0x9B
_BUSES: Final = 0x100
_STATUS_OF: Final = {"Ready": "True", "NotReady": "False", "Unknown": "Unknown"}


def pci_of(gpu: int) -> str:
    """Return the PCI address of a virtual node's device."""
    return f"0000:{(_FIRST_BUS + gpu) % _BUSES:02x}:00.0"


def labels_of(given: NodeGiven, cluster: ClusterSpec) -> dict[str, str]:
    """Return the labels of a virtual node: a GPU node by the cluster's own selector."""
    labels = dict(cluster.gpu_nodes.match_labels) if given.gpu else {}
    if given.pool:
        labels[cluster.pools.labels[0] if cluster.pools.labels else POOL_LABEL] = given.pool
    if given.zone:
        labels[cluster.zones.label] = given.zone
    return labels | given.labels


def _code(kind: FaultKind) -> Callable[[Node, CodeGiven, float], Node]:
    def change(node: Node, given: CodeGiven, now: float) -> Node:
        new = on.fault(
            kind,
            given.code,
            severity=given.severity,
            pci=pci_of(given.gpu),
            boot_id=node.boot_id,
            now=now,
        )
        return on.with_fault(node, new, now=now)

    return change


def _condition(node: Node, given: ConditionGiven, now: float) -> Node:
    return on.with_condition(node, given.type, given.status, given.reason, given.message, now=now)


def _clear(node: Node, given: ClearGiven, now: float) -> Node:
    if not given.xid and not given.sxid:
        return on.cleared(node, now=now)
    codes = {FaultKind.XID: given.xid, FaultKind.SXID: given.sxid}

    def gone(fault: Fault) -> bool:
        return fault.code in codes.get(fault.kind, ())

    return on.without_faults(node, gone, now=now)


def _kubelet(node: Node, given: str, now: float) -> Node:
    return on.with_condition(node, on.READY, _STATUS_OF[given], f"Kubelet{given}", now=now)


def _request(node: Node, given: RequestGiven, now: float) -> Node:
    asked = Request(verb=given.verb, by=given.by, at=on.stamp(now), reason=given.reason)
    return on.with_texts(node, annotations={REQUEST_ANNOTATION: encode(asked)})


def _approve(node: Node, given: ApproveGiven, now: float) -> Node:
    """Approve every step that waits now; without one nothing is written."""
    text = node.annotations.get(SESSION_ANNOTATION)
    if text is None:
        return node
    session = decode_session(text, node_uid=node.uid)
    found = tuple(
        Approval(
            session=session.id,
            policy=hold.policy,
            step=hold.step,
            by=given.by,
            at=on.stamp(now),
            expires=on.stamp(now + given.expires),
        )
        for hold in session.holds
        if given.policy in {"", hold.policy}
    )
    return on.with_texts(node, annotations={APPROVAL_ANNOTATION: encode_approvals(found)})


def _cordon(node: Node, _given: Empty, _now: float) -> Node:
    return on.cordoned(node, unschedulable=True)


def _uncordon(node: Node, _given: Empty, _now: float) -> Node:
    return on.cordoned(node, unschedulable=False)


def _taint(node: Node, given: TaintGiven, _now: float) -> Node:
    return on.with_taint(node, given.key, given.effect, given.value)


def _untaint(node: Node, given: str, _now: float) -> Node:
    return on.without_taint(node, given)


def _labels(node: Node, given: Mapping[str, str], _now: float) -> Node:
    return on.with_texts(node, labels={key: text or None for key, text in given.items()})


def _annotations(node: Node, given: Mapping[str, str], _now: float) -> Node:
    return on.with_texts(node, annotations={key: text or None for key, text in given.items()})


CHANGES: Final[Mapping[str, Callable[[Node, Any, float], Node]]] = {
    "xid": _code(FaultKind.XID),
    "sxid": _code(FaultKind.SXID),
    "condition": _condition,
    "clear": _clear,
    "kubelet": _kubelet,
    "request": _request,
    "approve": _approve,
    "cordon": _cordon,
    "uncordon": _uncordon,
    "taint": _taint,
    "untaint": _untaint,
    "labels": _labels,
    "annotations": _annotations,
}
"""By the key of a timeline's entry: the node, what is given, the time; the next version."""
