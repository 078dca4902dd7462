"""Keeps one NVML child at work, and the view of what it reads.

The child does one request at a time; events come in between. A call that does not return within
its deadline ends the child's life: it is killed, and another one is started after a pause that
doubles. A process that the kernel holds in state D does not die by that; it is *abandoned*, and
with two of those alive nothing more is started until one of them is gone.

Invariants:

- Nobody waits for NVML but this task: the view is a value, replaced as messages come.
- HUNG stays until a new child has read every group once: a start that succeeds says little,
  when it was the slow group that hung.
- Each attempt to open NVML is a fresh process, so a library or driver that was installed since
  is met.
- After :meth:`Supervisor.release`, until its time is over, no process of ours holds the driver;
  where one hangs and cannot be ended, the caller is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, NamedTuple

from node_agent.nvml import view as fold
from node_agent.nvml.conversation import Conversation, Deadlines, HungError
from node_agent.nvml.model import NvmlEvent, NvmlState, NvmlView
from node_agent.nvml.process import ChildGoneError, NvmlChild
from node_agent.nvml.protocol import (
    Answer,
    Done,
    Enumerate,
    Enumerated,
    Event,
    EventsFailed,
    Failed,
    Group,
    Poll,
    Processes,
    Values,
)


MAX_ABANDONED: Final = 2
LEAST_SECONDS: Final = 1.0
"""Between two reads of a group, however many events come."""
_LOOK_AT_ABANDONED_SECONDS: Final = 1.0
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_LONGEST_PAUSE_WITHOUT_LIBRARY: Final = 300.0
_WELL_AFTER_SECONDS: Final = 60.0
"""A child that worked for this long was well: the next pause starts small again."""
_LOST_ENUMERATION_SECONDS: Final = 300.0
"""How often devices are enumerated again while one is lost; it may have come back."""
_DYING_SECONDS: Final = (0.01, 0.05, 0.2, 0.5)
"""Pauses between looks at a process that is about to end."""


class Cadence(NamedTuple):
    """Seconds between two reads of a group. Nothing gains from less than one second.

    ``enumerations``: the least time between two that nobody asked for.
    """

    fast: float = 10.0
    slow: float = 60.0
    rare: float = 1800.0
    gpm: float = 30.0
    processes: float = 30.0
    enumerations: float = 30.0

    def of(self, group: Group) -> float:
        """Of this group."""
        seconds: float = getattr(self, group.value)
        return seconds


class FailedError(Exception):
    """The child says that NVML cannot be used."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.why)
        self.state = failed.state


class Supervisor:
    """Runs NVML children and holds the view.

    Args:
        start: starts a child, as :func:`node_agent.nvml.process.start_child`.
        on_view: told of each new view; must not block.
        on_event: told of each event of the driver; must not block.
        cadence: how often groups are read.
        deadlines: how long calls may take.
        clock: CLOCK_MONOTONIC, with which the child stamps its calls.
        wall: unix seconds.
    """

    def __init__(
        self,
        *,
        start: Callable[[], Awaitable[NvmlChild]],
        on_view: Callable[[NvmlView], None],
        on_event: Callable[[NvmlEvent], None],
        cadence: Cadence | None = None,
        deadlines: Deadlines | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._start = start
        self._on_view = on_view
        self._on_event = on_event
        self._cadence = cadence or Cadence()
        self._deadlines = deadlines or Deadlines()
        self._clock = clock
        self._wall = wall
        self._parts = fold.in_state(fold.Parts(), NvmlState.STARTING, "", now=wall())
        self._abandoned: list[NvmlChild] = []
        self._suspects: set[str] = set()
        self._hung_call = ""
        self._pause = _FIRST_PAUSE
        self._released_until = 0.0
        self._wake = asyncio.Event()
        self._childless = asyncio.Event()
        self._childless.set()
        self._number = 0
        self._renumber = False
        self._hurry = False

    @property
    def view(self) -> NvmlView:
        """Everything known now."""
        return self._parts.view

    async def run(self) -> None:
        """Keep a child at work until cancelled; then its handles are closed."""
        try:
            while True:
                await self._until_a_child_may_start()
                await self._sleep(await self._live())
        finally:
            self._childless.set()

    async def release(self, seconds: float) -> str:
        """Close every handle and open none for so long; 0: go on at once.

        Returns:
            Empty when no process of ours holds the driver; else who does, and why.
        """
        self._released_until = self._clock() + seconds if seconds > 0 else 0.0
        self._wake.set()
        if seconds <= 0:
            return ""
        await self._childless.wait()
        self._forget_the_dead()
        if self._abandoned:
            return (
                f"{len(self._abandoned)} of our processes hang in the driver and cannot be ended:"
                f" {self._hung_call}"
            )
        return ""

    def renumber(self) -> None:
        """Devices may have come or gone: enumerate them at once."""
        self._renumber = True
        self._wake.set()

    # -- between two children --

    async def _until_a_child_may_start(self) -> None:
        while True:
            self._forget_the_dead()
            wait = self._released_until - self._clock()
            if wait > 0:
                self._show(NvmlState.RELEASED, "handles are closed on request")
            elif len(self._abandoned) >= MAX_ABANDONED:
                self._show(
                    NvmlState.HUNG,
                    f"{self._hung_call} hangs; {MAX_ABANDONED} processes that hang in the"
                    " driver cannot be ended, and no other is started before one of them is gone",
                )
                wait = _LOOK_AT_ABANDONED_SECONDS
            else:
                self._childless.clear()
                return
            self._childless.set()
            await self._sleep(wait)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, or less when something was asked for."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        self._wake.clear()

    def _forget_the_dead(self) -> None:
        alive = [child for child in self._abandoned if not child.ended()]
        if len(alive) != len(self._abandoned):
            self._abandoned = alive
            self._replaced(unplanned=False)

    # -- one child's life --

    async def _live(self) -> float:
        """One child, from start to end. Returns the pause after it, in seconds."""
        began = self._clock()
        try:
            child = await self._start()
        except ChildGoneError as error:
            return self._down(NvmlState.RESTARTING, str(error), began)
        talk = Conversation(
            child=child, take=self._take, deadlines=self._deadlines, clock=self._clock
        )
        graceful = True
        try:
            await self._serve(talk)
        except HungError as error:
            graceful = False
            self._suspect(error.call)
            return self._down(NvmlState.HUNG, str(error), began)
        except FailedError as error:
            return self._down(error.state, str(error), began)
        except ChildGoneError as error:
            graceful = False
            return self._down(NvmlState.RESTARTING, str(error), began)
        finally:  # also when cancelled: a child that dies with open handles has frozen GPUs
            await _to_the_end(self._end(child, talk, graceful=graceful))
        return 0.0

    async def _end(self, child: NvmlChild, talk: Conversation, *, graceful: bool) -> None:
        """Let the child close its handles, or kill it; one that stays is abandoned."""
        if graceful:
            await talk.stop(self._next())
        else:
            child.kill()
        await talk.close()
        for pause in _DYING_SECONDS:
            if child.ended():
                break
            await asyncio.sleep(pause)
        else:
            child.kill()
            self._abandoned.append(child)
        self._replaced(unplanned=not graceful)

    async def _serve(self, talk: Conversation) -> None:
        """Enumerate, then poll, until released."""
        due: dict[Group, float] = {}
        enumerated = fast_at = 0.0
        done: Done | None = None
        while self._released_until <= self._clock():
            if self._hurry and done is not None:
                self._hurry = False
                due[Group.FAST] = min(due[Group.FAST], fast_at + LEAST_SECONDS)
            if done is None or self._must_enumerate(done, self._clock() - enumerated):
                await self._enumerate(talk)
                enumerated = self._clock()
                due = dict.fromkeys(Group, enumerated)
                # The cheap values first, so that something is known before the costly ones.
                groups: tuple[Group, ...] = (Group.FAST,)
            else:
                groups = tuple(group for group in Group if due[group] <= self._clock())
            if groups:
                done = await self._poll(talk, groups)
                fast_at = self._clock() if Group.FAST in groups else fast_at
                due.update({group: self._clock() + self._cadence.of(group) for group in groups})
                self._well(complete=all(at > enumerated for at in due.values()))
            self._wake.clear()
            if not self._hurry:  # no event came during the poll
                await talk.idle(self._wake, max(0.0, min(due.values()) - self._clock()))

    def _well(self, *, complete: bool) -> None:
        """A poll succeeded. ``complete``: every group has been read by this child."""
        if complete or self.view.state is not NvmlState.HUNG:
            self._show(NvmlState.OK, "")

    def _must_enumerate(self, done: Done, seconds_since: float) -> bool:
        if self._renumber:
            return True
        if done.changed and seconds_since >= self._cadence.enumerations:
            return True
        waiting = bool(self.view.lost or self.view.unanswered)
        return waiting and seconds_since >= _LOST_ENUMERATION_SECONDS

    async def _enumerate(self, talk: Conversation) -> None:
        self._renumber = False
        answer = await talk.ask(Enumerate(self._next()))
        if isinstance(answer, Failed):
            raise FailedError(answer)

    async def _poll(self, talk: Conversation, groups: tuple[Group, ...]) -> Done:
        answer = await talk.ask(Poll(self._next(), groups, tuple(self._suspects)))
        if not isinstance(answer, Done):
            raise ChildGoneError(f"the NVML child answered a poll with {type(answer).__name__}")
        return answer

    # -- messages --

    def _take(self, message: Answer) -> None:
        """Fold a message into the view; show it when a request is answered."""
        now = self._wall()
        match message:
            case Values():
                self._parts = fold.read(self._parts, message, now=now)
            case Processes():
                self._parts = fold.listed(self._parts, message, now=now)
            case EventsFailed():
                self._parts = fold.events_failed(self._parts, message.why)
            case Enumerated():
                self._parts = fold.enumerated(self._parts, message)
                self._on_view(self.view)
            case Done():
                self._parts = fold.counted(self._parts, message.calls)
                self._on_view(self.view)
            case Event(uuid, bits, data, gi, ci):
                self._parts = fold.happened(self._parts, bits)
                # What an event is about shows in the levels: they are read at once.
                self._hurry = True
                self._wake.set()
                self._on_event(NvmlEvent(at=now, uuid=uuid, bits=bits, data=data, gi=gi, ci=ci))
            case Failed():
                pass  # the request raises it

    # -- what is shown --

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _suspect(self, call: str) -> None:
        """Remember a call that hung; its device is read after the others."""
        self._hung_call = call
        index = call.rpartition("gpu ")[2]
        self._suspects |= {one.uuid for one in self.view.devices if str(one.index) == index}

    def _show(self, state: NvmlState, why: str) -> None:
        view = self.view
        call = self._hung_call if state is NvmlState.HUNG else ""
        if (view.state, view.why, view.hung_call) != (state, why, call):
            self._parts = fold.in_state(self._parts, state, why, now=self._wall(), call=call)
            self._on_view(self.view)

    def _replaced(self, *, unplanned: bool) -> None:
        abandoned = len(self._abandoned)
        if unplanned or abandoned != self.view.abandoned:
            self._parts = fold.replaced(self._parts, abandoned=abandoned, unplanned=unplanned)
            self._on_view(self.view)

    def _down(self, state: NvmlState, why: str, began: float) -> float:
        """Show why there is no child now. Returns how long to wait before the next."""
        if not (self.view.state is NvmlState.HUNG and state is NvmlState.RESTARTING):
            self._show(state, why)
        if self._clock() - began >= _WELL_AFTER_SECONDS:
            self._pause = _FIRST_PAUSE
            self._suspects.clear()
        pause = self._pause
        longest = (
            _LONGEST_PAUSE_WITHOUT_LIBRARY if state is NvmlState.NO_LIBRARY else _LONGEST_PAUSE
        )
        self._pause = min(2 * pause, longest)
        return pause


async def _to_the_end(work: Coroutine[None, None, None]) -> None:
    """Wait for something that takes seconds at most, also while being cancelled."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
