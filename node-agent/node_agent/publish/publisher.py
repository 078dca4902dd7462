"""When to write to the Node: at once when it matters, seldom when it does not.

- A changed state (who, what, how bad) is written at once; what changes within the next
  100 ms goes with the next write.
- Mere counts (a storm of one code) wait for the counts interval.
- Nothing new: a heartbeat, each 5 minutes with 10 % jitter, so that the agents of a large
  cluster do not write together.
- The API server is away: back-off with jitter, and then the latest state. Nothing queues
  up, since only the latest state matters; the faults themselves are in the state file.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from node_agent.publish.node_api import ApiError
from node_agent.publish.standing import OnNode, on_node, status_patch


if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from structlog.typing import FilteringBoundLogger

    from node_agent.health.conditions import Desired
    from node_agent.publish.node_api import NodeApi, NodeView

_BACKOFF_FIRST: Final = 0.5
_BACKOFF_MOST: Final = 30.0
_JITTER: Final = 0.1


class Publisher:
    """Writes the latest state. One task runs :meth:`run`; others call :meth:`submit`.

    Args:
        api: the Node's client.
        heartbeat: seconds between writes of an unchanged state.
        coalesce: seconds after a written change in which further ones are collected.
        counts_interval: seconds between writes of which nothing but counts is new.
        clock: seconds that only grow (the loop's time).
        wall: seconds since the epoch, for the times that leave this node.
        random: for jitter.
        log: the agent's own log.
        read: told of the Node each time it was seen; returns nothing.
        wrote: told what was written, after it was.
        failed: told of each request that failed.
    """

    def __init__(
        self,
        *,
        api: NodeApi,
        heartbeat: float,
        coalesce: float,
        counts_interval: float,
        clock: Callable[[], float],
        wall: Callable[[], float],
        random: Random,
        log: FilteringBoundLogger,
        read: Callable[[NodeView], None],
        wrote: Callable[[Desired, NodeView], None],
        failed: Callable[[], None],
    ) -> None:
        self._api = api
        self._heartbeat = heartbeat
        self._coalesce = coalesce
        self._counts_interval = counts_interval
        self._clock = clock
        self._wall = wall
        self._random = random
        self._log = log
        self._read = read
        self._wrote = wrote
        self._count_failure = failed
        self._wake = asyncio.Event()
        self._wanted: Desired | None = None
        self._there: OnNode | None = None
        self._urgent_there: tuple[object, ...] | None = None
        self._last_write = float("-inf")
        self._quiet_until = float("-inf")
        self._heartbeat_at = float("-inf")
        self._retry_at = float("-inf")
        self._failures = 0
        self._last_error = ""

    def submit(self, wanted: Desired) -> None:
        """Let this stand on the Node, instead of what was submitted before."""
        self._wanted = wanted
        self._wake.set()

    def look(self, view: NodeView) -> None:
        """Compare with a Node that was read; what others changed or removed is written again."""
        there, known = on_node(view), self._there
        wanted = self._wanted
        if wanted is None or known is None or self._urgent_there != wanted.urgent:
            return  # a write is due anyway
        if not there.stands_as(known):
            self._there = there
            self._urgent_there = None
            self._wake.set()

    @property
    def there(self) -> OnNode | None:
        """What stood on the Node when it was last seen; None before that."""
        return self._there

    async def run(self) -> None:
        """Write for ever. Ends by cancellation only."""
        await self._meet()
        while True:
            await self._until_due()
            await self._write()

    async def flush(self) -> None:
        """Try once more to write what is not written yet, as at the end of the process."""
        if self._there is not None and self._is_new():
            await self._write()

    async def _meet(self) -> None:
        """Read the Node once: transition times and earlier types come from there."""
        while self._there is None:
            try:
                view = await self._api.read()
            except ApiError as error:
                await asyncio.sleep(self._failed(error))
                continue
            self._recovered()
            self._there = on_node(view)
            self._read(view)

    async def _until_due(self) -> None:
        while True:
            self._wake.clear()
            wait = self._due() - self._clock()
            if wait <= 0:
                return
            try:
                async with asyncio.timeout(None if wait == float("inf") else wait):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _due(self) -> float:
        """When to write next, or to look again whether to, on the clock."""
        if self._wanted is None or self._there is None:
            return float("inf")
        counts_at = min(self._last_write + self._counts_interval, self._heartbeat_at)
        if self._wanted.urgent != self._urgent_there:
            due = self._quiet_until
        elif self._clock() < counts_at:
            due = counts_at  # whether anything is new is looked at then, not for each line
        elif not self._there.shows(self._wanted):
            due = counts_at
        else:
            due = self._heartbeat_at
        return max(due, self._retry_at)

    def _is_new(self) -> bool:
        wanted, there = self._wanted, self._there
        return wanted is not None and there is not None and not there.shows(wanted)

    async def _write(self) -> None:
        wanted, there = self._wanted, self._there
        if wanted is None or there is None:
            return
        if self._urgent_there is not None and wanted.urgent != self._urgent_there:
            self._quiet_until = self._clock() + self._coalesce
        self._last_write = self._clock()
        try:
            view = await self._api.patch_status(status_patch(wanted, there, now=self._wall()))
        except ApiError as error:
            self._retry_at = self._clock() + self._failed(error)
            return
        self._recovered()
        self._there = on_node(view)
        self._urgent_there = wanted.urgent
        spread = self._random.uniform(1 - _JITTER, 1 + _JITTER)
        self._heartbeat_at = self._clock() + self._heartbeat * spread
        self._wrote(wanted, view)
        self._read(view)

    def _failed(self, error: ApiError) -> float:
        """Count it, say it once, and return how many seconds to wait."""
        self._count_failure()
        text = str(error)
        if text != self._last_error:
            self._log.error("cannot publish, will try again", error=text)
            self._last_error = text
        most = min(_BACKOFF_MOST, _BACKOFF_FIRST * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        return max(error.retry_after, most * self._random.uniform(0.5, 1.0))

    def _recovered(self) -> None:
        if self._last_error:
            self._log.info("publishing again", failures=self._failures)
        self._failures = 0
        self._last_error = ""
        self._retry_at = float("-inf")
