"""Jobs that an earlier leader could not delete any more: deleted now and then."""

from __future__ import annotations

import asyncio

from remediator.act.made import Templates
from remediator.act.sweep import EVERY, sweep
from remediator.record.audited import AuditedObjects
from remediator.term.control import Control
from remediator.term.resources import Resources


async def sweep_jobs(has: Resources, *, control: Control) -> None:
    """Delete Jobs that no session wants; ends only where there is no template for any."""
    while has.cluster.templates:
        await asyncio.sleep(has.cluster.settling)
        if control.may_write():
            await sweep(
                objects=AuditedObjects(api=has.api, check=has.elector.check),
                templates=Templates(has.cluster.templates, folder=has.folder),
                namespace=has.namespace,
                wanted=lambda node: control.wanted(has.fleet.get(node)),
            )
        await asyncio.sleep(EVERY)
