"""NVML's Xid events as reports: a number and an instance, no text and no process.

What they lack is known by :class:`~node_agent.health.merge.Merger`: the other sources add it.
Only the Xid bit opens a fault. The other bits (ECC, recovery action, unavailable) say that a
reading is worth taking soon; the reading decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from node_agent.contract import FaultKind
from node_agent.xid.parse import XidReport


if TYPE_CHECKING:
    from node_agent.nvml.model import NvmlEvent
    from node_agent.xid.catalogue import Catalogue

XID_BIT: Final = 0x8
"""``nvmlEventTypeXidCriticalError``."""


def xid_report(event: NvmlEvent, *, pci: str, catalogue: Catalogue) -> XidReport | None:
    """The report of an Xid event; None for other events. ``pci``: the device, normalized.

    There is no Xid 0: some drivers send such an event, and it says nothing.
    """
    if not event.bits & XID_BIT or event.data == 0:
        return None
    verdict = catalogue.of_xid(event.data)
    return XidReport(
        kind=FaultKind.XID,
        pci=pci,
        severity=verdict.severity,
        action=verdict.action,
        code=event.data,
        application=verdict.application,
        gi=event.gi,
        ci=event.ci,
        gpu_uuid=event.uuid,
        message=verdict.text,
    )
