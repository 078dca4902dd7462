"""Jobs that an earlier leader could not delete any more: deleted now and then."""

from __future__ import annotations

import asyncio
from typing import Final

from remediator.act.made import Templates
from remediator.act.sweep import EVERY, sweep
from remediator.record.audited import AuditedObjects
from remediator.term.control import Control
from remediator.term.resources import Resources


FIRST_SECONDS: Final = 5.0
"""Until the first look, however short the settling: a session that a person ended while nobody led
is ended by then, and wants its Job no more. Else that waits for the second look."""


async def sweep_jobs(has: Resources, *, control: Control) -> None:
    """Delete Jobs that no session wants; ends only where there is no template for any."""
    while has.cluster.templates:
        await asyncio.sleep(max(has.cluster.settling, FIRST_SECONDS))
        if control.may_write():
            await sweep(
                objects=AuditedObjects(api=has.api, check=has.elector.check),
                templates=Templates(has.cluster.templates, folder=has.folder),
                namespace=has.namespace,
                wanted=lambda node: control.wanted(has.fleet.get(node)),
            )
        await asyncio.sleep(EVERY)
