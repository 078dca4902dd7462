"""Which keys to look at next: level-triggered, each key once, at the exact time.

A key is in one of these states:

    absent --add--> ready --get--> taken --done--> absent
                      ^              |  add while taken: dirty
                      +-- done, if dirty

so a key is never handed to two workers at once, however often it is added while it
waits it is handed out once, and a change that comes while it is being worked on
is never lost. Beside that, each key can have one alarm (`add_at`), the earliest
asked for; handing the key out clears it, since whoever looks at a key finds out
anew when it has to be looked at again.

Time is the event loop's. One timer serves all alarms.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable


_FEW = 64
"""So many more entries than twice the alarms may the heap have, of alarms that are off or moved."""


class ShutDown(Exception):  # noqa: N818 - an end, not an error
    """The queue is shut down and empty."""


class WorkQueue:
    """Keys that wait to be looked at. For use within one event loop.

    Args:
        retry_base: wait after the first failure of a key, in seconds; doubles each time.
        retry_cap: longest wait after a failure, in seconds.
    """

    def __init__(self, *, retry_base: float = 0.1, retry_cap: float = 60.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._retry_base = retry_base
        self._retry_cap = retry_cap
        self._ready: dict[str, None] = {}
        self._taken: set[str] = set()
        self._dirty: set[str] = set()
        self._failures: dict[str, int] = {}
        self._alarms: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._shut_down = False

    # -- adding ------------------------------------------------------------------------

    def add(self, key: str) -> None:
        """Look at `key` as soon as possible."""
        if self._shut_down or key in self._ready:
            return
        if key in self._taken:
            self._dirty.add(key)
            return
        self._ready[key] = None
        self._wake()

    def add_all(self, keys: Iterable[str]) -> None:
        """Look at all `keys` as soon as possible."""
        for key in keys:
            self.add(key)

    def add_at(self, key: str, when: float) -> None:
        """Look at `key` at `when` (loop time) at the latest; an earlier alarm stays."""
        if self._shut_down:
            return
        if when <= self._loop.time():
            self.add(key)
            return
        known = self._alarms.get(key)
        if known is not None and known <= when:
            return
        self._alarms[key] = when
        heapq.heappush(self._heap, (when, key))
        if len(self._heap) > 2 * len(self._alarms) + _FEW:
            self._heap = [(at, one) for one, at in self._alarms.items()]
            heapq.heapify(self._heap)
        self._arm()

    def add_after(self, key: str, delay: float) -> None:
        """Look at `key` in `delay` seconds at the latest."""
        self.add_at(key, self._loop.time() + delay)

    def retry(self, key: str, *, at_least: float = 0.0) -> float:
        """`key` failed: look again after its back-off, which is returned (seconds).

        Call it instead of, or before, `done`; `at_least` is a server's Retry-After.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # 2**64 would already be longer than any cap; float overflow comes at 2**1024.
        delay = max(at_least, min(self._retry_cap, self._retry_base * 2.0 ** min(failures, 64)))
        self.add_after(key, delay)
        return delay

    def forget(self, key: str) -> None:
        """`key` succeeded: its next failure starts with the shortest wait."""
        self._failures.pop(key, None)

    # -- taking ------------------------------------------------------------------------

    async def get(self) -> str:
        """Wait for a key and take it; end with `done`.

        Raises:
            ShutDown: nothing will come any more.
        """
        return (await self.get_batch(1))[0]

    async def get_batch(self, limit: int | None = None) -> list[str]:
        """Wait until a key is ready, then take all that are, oldest first, at most `limit`.

        Raises:
            ShutDown: nothing will come any more.
        """
        while not self._ready:
            if self._shut_down:
                raise ShutDown
            await self._wait()
        keys = list(self._ready)[:limit]
        for key in keys:
            del self._ready[key]
            self._taken.add(key)
            self._alarms.pop(key, None)
        return keys

    def done(self, key: str) -> None:
        """`key` has been looked at; it becomes ready again if it was added meanwhile."""
        self._taken.discard(key)
        if key in self._dirty:
            self._dirty.remove(key)
            self._ready[key] = None
            self._wake()

    def drop(self, key: str) -> None:
        """The object behind `key` is gone: forget its alarm and failures. A ready key stays."""
        self._alarms.pop(key, None)
        self._failures.pop(key, None)

    def shut_down(self) -> None:
        """Take no more keys and no more alarms; what is ready is still handed out."""
        self._shut_down = True
        self._alarms.clear()
        self._heap.clear()
        self._dirty.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake(everyone=True)

    # -- looking -----------------------------------------------------------------------

    def __len__(self) -> int:
        """How many keys are ready."""
        return len(self._ready)

    @property
    def taken(self) -> int:
        """How many keys are being worked on."""
        return len(self._taken)

    def alarm(self, key: str) -> float | None:
        """When `key` will be looked at again (loop time), None if no time is set."""
        return self._alarms.get(key)

    # -- inside ------------------------------------------------------------------------

    async def _wait(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            # Woken but cancelled before it could take the key: pass the call on.
            elif waiter.done() and self._ready:
                self._wake()

    def _wake(self, *, everyone: bool = False) -> None:
        while self._waiters:
            waiter = self._waiters.pop(0)
            if not waiter.done():
                waiter.set_result(None)
                if not everyone:
                    return

    def _arm(self) -> None:
        """Set the timer to the next alarm that still counts."""
        while self._heap and self._alarms.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if not self._heap:
            return
        when = self._heap[0][0]
        if self._timer is not None and not self._timer.cancelled():
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        # The loop may call up to its clock's resolution early.
        now = self._loop.time() + 1e-6
        while self._heap and self._heap[0][0] <= now:
            when, key = heapq.heappop(self._heap)
            if self._alarms.get(key) == when:
                del self._alarms[key]
                self.add(key)
        self._arm()
