"""Messages to people, off the reconcile path: `Outbox.submit` never waits.

    submit --> [group window] --> one task an envelope: attempts until delivered or given up
       |                                        |
       `-- known key: nothing happens           `--> one report per message

Invariants:
- One key is sent once in a process, and is reported once: delivered on all its
  channels, or failed. Of a message that is under way when the process ends nothing is
  reported, and the successor sends it again with the same key (at least once): the session
  still lists that of a step as undelivered, for as long as there is a session; `unsent` gives
  what is to be kept elsewhere.
- The first message of a kind goes at once, or after its channel's wait. What is alike and follows
  within `window` seconds becomes one envelope, so that a storm of 150 nodes is two messages,
  or one, and not 150.
- Messages about one node go to a channel in their order: "recovered" is not tried
  before "cordoned" is through, given up, or has failed for a minute; and what still waits in a
  window goes before a later message about that node.
- Memory is bounded: a message beyond `capacity` is reported failed at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

import structlog

from remediator.act.delivery import Delivery
from remediator.act.envelope import Channel, Envelope, pack
from remediator.act.told import Told
from remediator.act.waiting import Group, Pending, take_earlier, take_later
from remediator.decide.decision import Outcome, SendMessage
from remediator.decide.topics import conversation


LOG_CHANNEL: Final = "log"
"""The channel that always exists."""

MAX_MERGED: Final = 200
"""Messages of one envelope; more of them make several."""

_KNOWN_KEYS: Final = 50_000
_ORDER_PATIENCE: Final = 60.0
"""Seconds for which a message waits for an earlier one about the same node."""

_log = structlog.get_logger(__name__)


class Report(NamedTuple):
    """The end of one message."""

    message: SendMessage
    outcome: Outcome
    dry_run: bool


class OutboxObserver(Protocol):
    """What metrics want to know."""

    def message_ended(self, channel: str, result: str) -> None:
        """One envelope for a channel was ``delivered`` or ``failed``."""


class Outbox:
    """Sends messages by channels. Run `run` as one task; `submit` from the same loop.

    Args:
        channels: by name; add ``log`` (see `remediator.act.channels.make_channels`).
        report: told the end of each message, from within the loop; must not block.
        changed: told when `unsent` may say something else.
        observer: told of each envelope's end; None where nobody counts.
        window: seconds for which alike messages are collected after the first.
        waits: by channel, seconds for which the first of them waits for others; absent: 0.
        capacity: messages under way at once.
        attempts_at_once: per channel, so that one that hangs does not stop the others.
        now: epoch seconds, for the time that a message shows.
        clock, sleep: seconds that only grow, and waiting by them; default the loop's.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        channels: Mapping[str, Channel],
        report: Callable[[Report], None],
        observer: OutboxObserver | None = None,
        changed: Callable[[], None] = lambda: None,
        window: float = 5.0,
        waits: Mapping[str, float] = MappingProxyType({}),
        capacity: int = 10_000,
        attempts_at_once: int = 8,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Random | None = None,
    ) -> None:
        self.failed = 0
        """Messages given up or refused since the start."""
        self.last_failure = ""
        self._delivery = Delivery(
            channels=channels,
            at_once=attempts_at_once,
            clock=clock,
            sleep=sleep,
            rng=rng or Random(),  # noqa: S311 - jitter, not a secret
        )
        self._report = report
        self._observer = observer
        self._changed = changed
        self._window = window
        self._waits = waits
        self._capacity = capacity
        self._now = now
        self._sleep = sleep
        self._known: OrderedDict[tuple[bool, str], None] = OrderedDict()
        self._told = Told()
        self._submitted = 0
        self._pending: dict[tuple[bool, str], Pending] = {}
        self._incoming: deque[Pending] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()
        self._windows: dict[Group, list[Pending]] = {}
        self._last: dict[tuple[str, str], asyncio.Task[None]] = {}

    @property
    def pending(self) -> int:
        """Messages that are neither delivered nor given up."""
        return len(self._pending)

    @property
    def trouble(self) -> tuple[str, ...]:
        """Which channels do not take what is pending, and why."""
        waited_for = {name for one in self._pending.values() for name in one.waiting}
        said = self._delivery.trouble
        return tuple(f"{name}: {said[name]}" for name in sorted(waited_for & said.keys()))

    def unsent(self) -> list[tuple[SendMessage, float]]:
        """Return the messages that are under way, in the order of their submission, and their age.

        A dry run begins anew with its process. `to` names the channels that a message has not
        reached yet; the number is when it was made, in epoch seconds.
        """
        return [
            (replace(one.message, to=tuple(sorted(one.waiting))), one.created)
            for one in self._pending.values()
            if not one.dry_run
        ]

    def conversations(self) -> set[str]:
        """Return those that messages are under way about."""
        return {conversation(one.message) for one in self._pending.values()}

    def told(self) -> dict[str, float]:
        """Return which messages of no step arrived lately, and when, by key."""
        return self._told.lately(self._now())

    def take_over(self, told: Mapping[str, float]) -> None:
        """Count as delivered, and do not send again, what an earlier leader knew to have arrived.

        Call it before `run`, so that nothing of it is under way.
        """
        self._told.take_over(told)
        for pending in [one for one in self._incoming if self._is_told(one)]:
            self._incoming.remove(pending)
            self._end(pending)

    def submit(self, message: SendMessage, *, dry_run: bool, created: float | None = None) -> bool:
        """Take a message. Returns at once; False if its key was taken before.

        ``created``: epoch seconds, of a message that an earlier leader could not deliver.
        """
        identity = (dry_run, message.key)
        if identity in self._known:
            self._known.move_to_end(identity)
            return False
        self._remember(identity)
        waiting = set(message.to) or {LOG_CHANNEL}
        at, self._submitted = self._now() if created is None else created, self._submitted + 1
        pending = Pending(self._submitted, message, dry_run, at, waiting)
        if self._is_told(pending):
            self._end(pending)
            return False
        if len(self._pending) >= self._capacity:
            self._count_failed(waiting)
            self._fail(pending, f"the outbox is full ({self._capacity} messages under way)")
            return True
        self._pending[identity] = pending
        self._changed()
        self._idle.clear()
        self._incoming.append(pending)
        self._wake.set()
        return True

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._incoming:
                    self._dispatch(self._incoming.popleft(), tasks)

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - see the docstring
        """Before an orderly end: send what waits in windows, and wait up to `timeout` seconds.

        Returns whether everything was delivered or given up. Call it while `run` runs.
        """
        self._hurry.set()
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("messages_left", pending=self.pending)
            return False
        return True

    def _remember(self, identity: tuple[bool, str]) -> None:
        self._known[identity] = None
        while len(self._known) > _KNOWN_KEYS:
            oldest = next((key for key in self._known if key not in self._pending), None)
            if oldest is None:  # all under way: `capacity` bounds those
                return
            del self._known[oldest]

    def _dispatch(self, pending: Pending, tasks: asyncio.TaskGroup) -> None:
        message = pending.message
        for name in sorted(pending.waiting):
            group = Group(
                channel=name,
                dry_run=pending.dry_run,
                policy=message.policy,
                step=message.step,
                kind=message.kind,
                resolves=message.resolves,
            )
            if not message.node:  # not one of many nodes
                self._send([pending], name, tasks)
            elif group in self._windows:
                self._windows[group].append(pending)
            elif wait := self._waits.get(name, 0.0):
                self._windows[group] = [pending]
                tasks.create_task(self._collect(group, tasks, wait))
            else:
                self._windows[group] = []
                self._send([pending], name, tasks)
                tasks.create_task(self._collect(group, tasks, self._window))

    async def _collect(self, group: Group, tasks: asyncio.TaskGroup, first: float) -> None:
        """Keep the window open while it fills; send what it holds at each end of it."""
        pause = first
        while True:
            await self._pause(pause)
            pause = self._window
            collected = self._windows[group]
            if not collected:
                del self._windows[group]
                return
            self._windows[group] = []
            for start in range(0, len(collected), MAX_MERGED):
                self._send(collected[start : start + MAX_MERGED], group.channel, tasks)

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer once `drain` was called."""
        if self._hurry.is_set():
            await asyncio.sleep(0)
            return
        waiters = [
            asyncio.ensure_future(self._sleep(seconds)),
            asyncio.ensure_future(self._hurry.wait()),
        ]
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()

    def _send(self, batch: list[Pending], name: str, tasks: asyncio.TaskGroup) -> None:
        if rest := take_later(batch, self._windows, name):
            self._send(batch, name, tasks)
            self._send(rest, name, tasks)
            return
        for earlier in take_earlier(batch, self._windows, name):
            self._send(earlier, name, tasks)
        first = batch[0]
        envelope = pack(
            [pending.message for pending in batch],
            channel=name,
            dry_run=first.dry_run,
            created=first.created,
        )
        places = [(name, node) for node in envelope.nodes]
        before = {self._last[place] for place in places if place in self._last}
        task = tasks.create_task(self._deliver(envelope, batch, before))
        for place in places:
            self._last[place] = task
        task.add_done_callback(lambda done: self._forget(places, done))

    def _forget(self, places: Iterable[tuple[str, str]], task: asyncio.Task[None]) -> None:
        for place in places:
            if self._last.get(place) is task:
                del self._last[place]

    async def _deliver(
        self, envelope: Envelope, batch: list[Pending], before: set[asyncio.Task[None]]
    ) -> None:
        if before:
            await asyncio.wait(before, timeout=_ORDER_PATIENCE)
        failure = await self._delivery.deliver(envelope)
        self._observed(envelope, failure)
        for pending in batch:
            self._ended(pending, envelope.channel, failure)

    def _observed(self, envelope: Envelope, failure: str) -> None:
        if self._observer is not None:
            self._observer.message_ended(envelope.channel, "failed" if failure else "delivered")
        if failure:
            _log.error(
                "message_given_up",
                channel=envelope.channel,
                key=envelope.key,
                title=envelope.title,
                messages=len(envelope.messages),
                reason=failure,
            )

    def _ended(self, pending: Pending, channel: str, failure: str) -> None:
        pending.waiting.discard(channel)
        self._changed()
        if failure:
            pending.failures.append(f"{channel}: {failure}")
        if pending.waiting:
            return
        if not (pending.failures or pending.dry_run or pending.message.step is not None):
            self._told.add(pending.message.key, self._now())
        self._end(pending)

    def _count_failed(self, channels: Iterable[str]) -> None:
        for name in channels:
            if self._observer is not None:
                self._observer.message_ended(name, "failed")

    def _is_told(self, pending: Pending) -> bool:
        return not pending.dry_run and pending.message.key in self._told

    def _end(self, pending: Pending) -> None:
        self._pending.pop((pending.dry_run, pending.message.key), None)
        if not self._pending:
            self._idle.set()
        if pending.failures:
            self._fail(pending, "; ".join(pending.failures))
        else:
            self._tell(pending, delivered=True)

    def _fail(self, pending: Pending, note: str) -> None:
        self.failed += 1
        self.last_failure = note
        _log.warning("message_failed", key=pending.message.key, reason=note)
        self._tell(pending, delivered=False, note=note)

    def _tell(self, pending: Pending, *, delivered: bool, note: str = "") -> None:
        outcome = Outcome(key=pending.message.key, delivered=delivered, note=note)
        self._report(Report(pending.message, outcome, pending.dry_run))
