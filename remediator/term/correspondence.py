"""Messages, over a change of the leader: threads, and what the one before could not send."""

from __future__ import annotations

import asyncio
from typing import Final

from remediator.act.outbox import Outbox
from remediator.clock import Clock
from remediator.decide.topics import Topics
from remediator.record.messages import MessageMemory, Source


RETRY_SECONDS: Final = 5.0


async def correspond(
    outbox: Outbox, *, topics: Topics, memory: MessageMemory, clock: Clock
) -> None:
    """Send messages, and before others what the leader before us could not; never returns."""
    taken_over = await _take_over(outbox, topics=topics, memory=memory, clock=clock)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(outbox.run())
        while not taken_over:  # nobody's messages wait for that
            await asyncio.sleep(RETRY_SECONDS)
            taken_over = await _take_over(outbox, topics=topics, memory=memory, clock=clock)
        await memory.run()


async def _take_over(
    outbox: Outbox, *, topics: Topics, memory: MessageMemory, clock: Clock
) -> bool:
    """Go on in the threads that the leader before us began; tell whether that was possible."""
    left = await memory.load(now=clock.now())
    if left is None:
        return False
    topics.restore(left.topics)
    outbox.take_over(left.told)
    memory.keep(Source(unsent=outbox.unsent, topics=topics.state, told=outbox.told))
    for one in left.unsent:
        outbox.submit(one.message, dry_run=False, created=one.created)
    memory.touch()
    return True
