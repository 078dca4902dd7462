"""What tests of the lab share."""

from __future__ import annotations

from node_agent.contract import FaultKind, Severity
from remediator.kube.objects import Node
from remediator.lab import nodes as on


def faulty(node: Node, now: float) -> Node:
    """Return the node with an Xid 79 of its present boot."""
    fault = on.fault(
        FaultKind.XID,
        79,
        severity=Severity.FATAL,
        pci="0000:9b:00.0",
        boot_id=node.boot_id,
        now=now,
    )
    return on.with_fault(node, fault, now=now)
