"""``node-agent faults``: this node's conditions and faults as the cluster sees them."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from node_agent.contract import ConditionType, Fault, FaultKind, FaultReport
from node_agent.publish.access import AccessError, find_access
from node_agent.publish.node_api import ApiError, NodeApi, SeenCondition
from node_agent.publish.standing import on_node
from node_agent.terminal import say


if TYPE_CHECKING:
    from node_agent.publish.node_api import NodeView
    from node_agent.settings import Settings


class Shown(msgspec.Struct, frozen=True, rename="camel"):
    """What ``-o json`` prints. ``report`` is the annotation, null if it is absent or unreadable."""

    node: str
    conditions: tuple[SeenCondition, ...]
    report: FaultReport | None


def show_faults(settings: Settings, *, as_json: bool) -> int:
    """Print them; the exit status, 0 also when there are faults."""
    try:
        view = asyncio.run(read_node(settings))
    except (AccessError, ApiError) as error:
        say(f"node-agent: {error}", err=True)
        return 1
    shown = shown_of(settings.node, view)
    if as_json:
        print(json.dumps(msgspec.to_builtins(shown), indent=2))
    else:
        say(*lines_of(shown))
    return 0


async def read_node(settings: Settings) -> NodeView:
    """The Node, with the agent's own identity.

    Raises:
        AccessError: there is no way to the API server.
        ApiError: it did not answer with the Node.
    """
    access = find_access(
        kubeconfig=settings.kubeconfig,
        context=settings.context,
        service_account=Path(settings.service_account),
        environ=os.environ,
    )
    async with NodeApi(
        access=access, node=settings.node, timeout=settings.request_timeout, clock=time.monotonic
    ) as api:
        return await api.read()


def shown_of(node: str, view: NodeView) -> Shown:
    """What is ours on this Node."""
    own = tuple(view.conditions[kind] for kind in ConditionType if kind in view.conditions)
    return Shown(node, own, on_node(view).report())


def lines_of(shown: Shown) -> list[str]:
    """As a person reads it."""
    if not shown.conditions and shown.report is None:
        return [f"no agent has written anything on node {shown.node}"]
    rows = [
        (c.type, c.status, c.reason, c.last_transition_time or "", c.message)
        for c in shown.conditions
    ]
    lines = table(("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"), rows)
    if shown.report is None:
        return [*lines, "", "no readable fault annotation"]
    if not shown.report.faults:
        return [*lines, "", "no faults"]
    faults = table(
        ("FAULT", "SEVERITY", "DEVICE", "COUNT", "LAST SEEN", "ADVISED", "PODS", "MESSAGE"),
        [_row(fault) for fault in shown.report.faults],
    )
    truncated = shown.report.truncated
    more = (truncated.info + truncated.warning) if truncated is not None else 0
    return [*lines, "", *faults, *([f"and {more} more that had no room"] if more else [])]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell; the last one as it is."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _row(fault: Fault) -> tuple[str, ...]:
    words = {FaultKind.XID: "Xid", FaultKind.SXID: "SXid"}
    name = words.get(fault.kind, fault.kind.value)
    instance = f" gi {fault.mig.gi}" if fault.mig is not None else ""
    return (
        f"{name} {fault.code if fault.code is not None else fault.subcode}".rstrip(),
        fault.severity.value,
        f"{fault.pci or 'node'}{instance}",
        str(fault.count),
        fault.last_seen.isoformat(timespec="seconds").replace("+00:00", "Z"),
        fault.action,
        ",".join(fault.pods),
        fault.message,
    )
