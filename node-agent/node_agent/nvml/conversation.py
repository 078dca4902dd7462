"""One NVML child's life as seen from the agent: requests with deadlines, and its end.

A request is over when the message comes that repeats its kind of end, when a call in the child
has not returned within its deadline, or when the child is gone. Messages that belong to no
request (events) and those in between (values) go to ``take`` as they come.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from node_agent.nvml.process import ChildGoneError, NvmlChild
from node_agent.nvml.protocol import (
    EVENT_WAIT_SECONDS,
    Answer,
    Done,
    Enumerate,
    Enumerated,
    Failed,
    InFlight,
    Poll,
    Slot,
    Stop,
)


_CLOSE_SECONDS = 3.0
"""How long a child may take to close its handles before it is killed."""
_SHORTEST_WAIT = 0.01
_LONGEST_WAIT = 1.0
"""While an answer is due, the page is looked at this often: a call may begin at any time."""


class Deadlines(NamedTuple):
    """Seconds that things may take.

    ``call``: one NVML call. ``init``: opening and closing NVML, which starts every GPU where
    persistence mode is off. ``silence``: a child that is in no call and says nothing.
    """

    call: float = 10.0
    init: float = 60.0
    silence: float = 30.0

    def of(self, call: InFlight) -> float:
        """Of this call."""
        if call.name.startswith("nvmlEventSetWait"):
            return EVENT_WAIT_SECONDS + self.call  # it waits by its nature
        return self.init if call.name.startswith(("nvmlInit", "nvmlShutdown")) else self.call


class HungError(Exception):
    """A call has not returned in time. ``call`` names it, and its device."""

    def __init__(self, call: str, seconds: float) -> None:
        super().__init__(f"{call} has not returned for {seconds:.0f} s")
        self.call = call


class Conversation:
    """Talks to one child.

    Args:
        child: just started.
        take: told of each message, in order.
        deadlines: how long things may take.
        clock: CLOCK_MONOTONIC, with which the child stamps its calls.
    """

    def __init__(
        self,
        *,
        child: NvmlChild,
        take: Callable[[Answer], None],
        deadlines: Deadlines,
        clock: Callable[[], float],
    ) -> None:
        self._child = child
        self._take = take
        self._deadlines = deadlines
        self._clock = clock
        self._answer: asyncio.Future[Answer] | None = None
        self._heard = clock()
        self._receiving = asyncio.create_task(self._receive())

    async def ask(self, request: Enumerate | Poll) -> Answer:
        """Send a request and wait for the last message of its answer.

        Raises:
            HungError: a call, or the child itself, takes too long.
            ChildGoneError: the child ended.
        """
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._heard = self._clock()
        await self._child.send(request)
        while True:
            self._look_for_hung(answered=answer.done())
            if answer.done():
                return answer.result()
            if self._receiving.done():
                self._receiving.result()  # raises why it ended
            ends: set[asyncio.Future[Any]] = {answer, self._receiving}
            await asyncio.wait(ends, timeout=self._patience(), return_when=asyncio.FIRST_COMPLETED)

    async def idle(self, wake: asyncio.Event, seconds: float) -> None:
        """Wait so long, or until woken, or until the child ended."""
        waking = asyncio.create_task(wake.wait())
        ends: set[asyncio.Future[Any]] = {waking, self._receiving}
        try:
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()

    async def stop(self, number: int) -> None:
        """Let the child close its handles and exit; it is given a few seconds."""
        if self._receiving.done():
            return
        with contextlib.suppress(ChildGoneError, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._child.send(Stop(number))
                await asyncio.wait({self._receiving})

    async def close(self) -> None:
        """Stop listening. The child meets the end of its socket."""
        self._receiving.cancel()
        # Not awaited by itself: its cancellation could not be told from our own.
        await asyncio.wait({self._receiving})
        if not self._receiving.cancelled():
            self._receiving.exception()  # known; asked for so that nobody warns of it
        self._child.close()

    async def _receive(self) -> None:
        """Take messages until the child ends, which is an exception."""
        while True:
            message = await self._child.receive()
            self._heard = self._clock()
            self._take(message)
            last = isinstance(message, Enumerated | Failed | Done)
            if last and self._answer is not None and not self._answer.done():
                self._answer.set_result(message)

    def _patience(self) -> float:
        """Seconds until something could be called hung."""
        calls = self._child.in_flight()
        ends = [call.started + self._deadlines.of(call) for call in calls]
        if not _polls(calls):
            ends.append(self._heard + self._deadlines.silence)
        return min(max(_SHORTEST_WAIT, min(ends) - self._clock()), _LONGEST_WAIT)

    def _look_for_hung(self, *, answered: bool) -> None:
        now = self._clock()
        calls = self._child.in_flight()
        for call in calls:
            if now - call.started >= self._deadlines.of(call):
                raise HungError(call.name, now - call.started)
        silent = now - self._heard
        if not answered and not _polls(calls) and silent >= self._deadlines.silence:
            raise HungError("the NVML child itself", silent)


def _polls(calls: tuple[InFlight, ...]) -> bool:
    return any(call.slot is Slot.POLL for call in calls)
