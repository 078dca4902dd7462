"""Carries effects out: one node in one pair of hands, several nodes at a time.

Invariants:
- The effects of a decision happen in its order, and what follows a write that was not
  done does not happen.
- A write rests on the facts of its decision. If they changed meanwhile by more than a
  heartbeat, it is not sent and the node is decided about again.
- A write that was never answered is neither repeated nor given up: the node is read
  first, and its place in the budget stays taken until then.
- Dry-run's writes go to the overlay and nowhere else; its work is not done.
- Work that a decision does not want is stopped at once; new work begins behind its patch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

import structlog

from remediator.act.outbox import Report
from remediator.act.overlay import Overlay
from remediator.act.side import Side
from remediator.act.writes import NodeReader, NodeWriter, Verdict, WriteObserver, Written, write
from remediator.decide.decision import (
    Decision,
    Effect,
    Outcome,
    PatchNode,
    SendMessage,
    Work,
    WriteEvent,
)
from remediator.decide.facts import NodeFacts
from remediator.decide.look import unusable_session
from remediator.kube.errors import ApiError
from remediator.kube.objects import Node
from remediator.kube.workqueue import WorkQueue


_log = structlog.get_logger(__name__)

OUTCOMES_PER_NODE: Final = 256
PAUSED_RETRY: Final = 10.0


class Outbox(Protocol):
    """Sends messages without making us wait."""

    def submit(self, message: SendMessage, *, dry_run: bool) -> bool:
        """Take a message; False if its key was taken before."""


class Nodes(Protocol):
    """The latest view of every node; see :class:`remediator.signals.fleet.Fleet`."""

    def get(self, name: str) -> NodeFacts | None:
        """Return what is known of a node now."""

    def node(self, name: str) -> Node | None:
        """Return the version that the facts rest on."""

    def wrote(self, node: Node) -> None:
        """Take in a version that we made or read ourselves."""


class Observer(WriteObserver, Protocol):
    """Told of everything that happens: audit log, Events, metrics. Never waits, never fails."""

    def decided(self, before: Decision | None, now: Decision, *, dry_run: bool) -> None:
        """One node was decided about."""

    def asked(self, effect: WriteEvent) -> None:
        """A policy wants a Kubernetes Event."""

    def defect(self, where: str) -> None:
        """An exception was survived: a bug. ``where``: ``decision`` or ``job``."""


class Works(Protocol):
    """Follows what takes time; see :class:`remediator.act.work.Works`."""

    def keep(self, node: str, works: Sequence[Work], *, take_back: bool = True) -> None:
        """Stop all work on a node but this; begin none."""

    def want(self, node: str, works: Sequence[Work]) -> None:
        """Have exactly this work done on a node."""


class Asks(Protocol):
    """Asks the server what dry-run would get; see :mod:`remediator.act.server_dry_run`."""

    def take(self, effect: Effect, facts: NodeFacts) -> None:
        """Ask about an effect, or pass it on behind what is asked before it."""

    def forget(self, uid: str) -> None:
        """Drop all about a node that is gone."""


class _Job(NamedTuple):
    """What a worker does for one node: effects, or (None) a look past the watch."""

    facts: NodeFacts
    effects: tuple[Effect, ...] | None


class Executor:
    """Carries out decisions. A node given to it is taken from the queue, and is given back.

    Args:
        fleet: told of what was written.
        queue: told when a node is done with, or has to be tried again.
        real, virtual: the two worlds.
        works: follows what takes time.
        writer, reader: the way to the nodes; the writer asks the fence before each write.
        workers: nodes that are written at the same time.
        asks: the API server about what dry-run decides; None where nothing is to be sent.
    """

    def __init__(
        self,
        *,
        fleet: Nodes,
        queue: WorkQueue,
        real: Side,
        virtual: Side,
        writer: NodeWriter,
        reader: NodeReader,
        outbox: Outbox,
        observer: Observer,
        works: Works,
        workers: int,
        asks: Asks | None = None,
    ) -> None:
        self.overlay = Overlay()
        self.outdated: set[str] = set()
        """Nodes whose facts changed since they were last decided about."""
        self.doubtful: set[str] = set()
        """Nodes with a write of unknown fate: to be read before they are decided about."""
        self.refused: dict[str, str] = {}
        """Nodes whose last write was refused, and why: only people can help."""
        self._fleet = fleet
        self._queue = queue
        self._real = real
        self._virtual = virtual
        self._writer = writer
        self._reader = reader
        self._outbox = outbox
        self._observer = observer
        self._works = works
        self._workers = workers
        self._asks = asks
        self._todo: asyncio.Queue[_Job | None] = asyncio.Queue(maxsize=2 * workers)
        self._told: dict[str, list[tuple[bool, str]]] = {}
        self._stopping = False

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to work, in tasks of this group."""
        for _ in range(self._workers):
            tasks.create_task(self._work())

    def stop(self) -> None:
        """Begin nothing new; what is under way is finished."""
        self._stopping = True

    async def finish(self) -> None:
        """After `stop`: let the workers end."""
        for _ in range(self._workers):
            await self._todo.put(None)

    def forget(self, facts: NodeFacts) -> None:
        """Drop everything about a node that is gone."""
        self.overlay.forget(facts.uid)
        self.outdated.discard(facts.name)
        self.doubtful.discard(facts.name)
        self.refused.pop(facts.name, None)
        self._works.want(facts.name, ())
        if self._asks is not None:
            self._asks.forget(facts.uid)
        for dry_run, key in self._told.pop(facts.name, ()):
            self._side(dry_run=dry_run).outcomes.pop(key, None)

    # -- what is asked for ------------------------------------------------------------------

    async def carry_out(self, facts: NodeFacts, effects: tuple[Effect, ...]) -> None:
        """Carry out what was decided; waits only while all hands are full."""
        works = _works(effects)
        self._works.keep(facts.name, works, take_back=not unusable_session(facts))
        if any(isinstance(effect, PatchNode) for effect in effects):
            await self._todo.put(_Job(facts, effects))
            return
        if not self._real.ledger.refusals.known(facts.uid):
            self.refused.pop(facts.name, None)  # there is nothing to write any more
        for effect in effects:
            self._tell(effect, self._real, facts.name)
        self._works.want(facts.name, works)
        self.release(facts.name)

    async def find_out(self, facts: NodeFacts) -> None:
        """Read a doubtful node, and have it decided about after that."""
        await self._todo.put(_Job(facts, None))

    def pretend(self, facts: NodeFacts, effects: tuple[Effect, ...], now: float) -> None:
        """Carry out what dry-run decided: in memory. ``facts`` are the real ones."""
        for effect in effects:
            if isinstance(effect, PatchNode):
                self._pretend_patch(effect, facts, now)
            elif self._asks is not None:
                self._asks.take(effect, facts)
            else:
                self.told(effect, facts.name)

    def told(self, effect: Effect, name: str) -> None:
        """Pass a message or Event of dry-run on."""
        self._tell(effect, self._virtual, name)

    def release(self, name: str) -> None:
        """Give a node back to the queue: all is done."""
        self._queue.forget(name)
        self._queue.done(name)

    def send(self, message: SendMessage) -> None:
        """Send a message that no decision asked for."""
        self._outbox.submit(message, dry_run=False)

    def reported(self, report: Report) -> None:
        """A message came to its end: the next decision takes that in."""
        message = report.message
        if not message.node or self._fleet.get(message.node) is None:
            return
        self._came_to(self._side(dry_run=report.dry_run), message.node, report.outcome)
        if message.step is not None:
            self._queue.add(message.node)

    def work_ended(self, work: Work, outcome: Outcome) -> None:
        """A piece of work came to its end: the next decision takes that in."""
        if self._fleet.get(work.node) is not None:
            self._came_to(self._real, work.node, outcome)
            self._queue.add(work.node)

    def work_stands(self, work: Work, line: str) -> None:
        """Keep how a piece of work stands, for when its time is up: no reason for a decision."""
        if self._fleet.get(work.node) is not None:
            said = Outcome(key=work.key, delivered=False, pending=True, note=line)
            self._came_to(self._real, work.node, said)

    def _pretend_patch(self, patch: PatchNode, facts: NodeFacts, now: float) -> None:
        before = self.overlay.view(facts)
        if not self.overlay.apply(patch, facts, now=now):
            return
        if self._asks is not None:
            self._asks.take(patch, before)
        else:
            self._observer.written(patch, facts=before, verdict=Verdict.DONE, dry_run=True)
        self._virtual.ledger.observe(self.overlay.view(facts), now)
        self._queue.add(facts.name)

    # -- the workers ------------------------------------------------------------------------

    async def _work(self) -> None:
        while (job := await self._todo.get()) is not None:
            if self._stopping:
                continue
            name = job.facts.name
            try:
                if job.effects is None:
                    await self._read(job.facts)
                elif await self._do(job.facts, job.effects):
                    self._queue.forget(name)
            except Exception as error:  # noqa: BLE001 - a bug with one node must not stop the others
                self._observer.defect("job")
                self._real.ledger.refund(job.facts.uid)
                wait = self._queue.retry(name, at_least=1.0)
                _log.error("job_failed", node=name, again_in=wait, exc_info=error)
            finally:
                self._queue.done(name)

    async def _do(self, facts: NodeFacts, effects: Sequence[Effect]) -> bool:
        for effect in effects:
            if not isinstance(effect, PatchNode):
                self._tell(effect, self._real, facts.name)
            elif not await self._patch(effect, facts):
                return False
        if self._fleet.get(facts.name) is not None:
            self._works.want(facts.name, _works(effects))
        return True

    async def _patch(self, effect: PatchNode, facts: NodeFacts) -> bool:
        """Write, and take in the answer; tell whether it is done."""
        base = self._fleet.node(effect.name)
        if base is None or base.uid != effect.uid or not self._still_holds(effect):
            self._real.ledger.refund(effect.uid)
            return False
        current = effect
        if base.resource_version != effect.resource_version and not effect.annotations:
            # Heartbeats since the decision. (What others annotated meanwhile is no news, but
            # the old values that were decided on must still be there.)
            current = replace(effect, resource_version=base.resource_version)
        written = await write(current, base=base, writer=self._writer)
        self._observer.written(
            current, facts=facts, verdict=written.verdict, dry_run=False, reason=written.error
        )
        refusals = self._real.ledger.refusals
        if written.verdict is Verdict.REFUSED:
            self.refused[effect.name] = written.error
            refusals.refused(current, written.error)
        else:
            self.refused.pop(effect.name, None)
        if written.node is not None:
            refusals.accepted(current)
            self._fleet.wrote(written.node)
            return True
        self._not_written(current, written)
        return False

    def _still_holds(self, effect: PatchNode) -> bool:
        """Look once more, right before the write."""
        pause = self._real.ledger.pause
        if pause is not None and (pause.all or effect.disruptive):
            self._queue.retry(effect.name, at_least=PAUSED_RETRY)
            return False
        return effect.name not in self.outdated  # then it is in the queue again already

    def _not_written(self, effect: PatchNode, written: Written) -> None:
        verdict = written.verdict
        if verdict is Verdict.DOUBTFUL:  # the reservation stays until we know
            self.doubtful.add(effect.name)
        else:
            self._real.ledger.refund(effect.uid)
        if verdict is Verdict.GONE:
            return
        blamed = verdict is Verdict.REFUSED and bool(effect.changes)  # the rest need not wait
        self._queue.retry(effect.name, at_least=0.0 if blamed else written.retry_after)

    async def _read(self, facts: NodeFacts) -> None:
        """Learn what became of a write that was never answered."""
        try:
            node = await self._reader.read_node(facts.name)
        except ApiError as error:
            wait = self._queue.retry(facts.name)
            _log.info("node_not_read", node=facts.name, error=str(error), again_in=round(wait, 1))
            return
        if node is not None:
            self._fleet.wrote(node)
        known = self._fleet.get(facts.name)
        if known is None or known.session is None:
            self._real.ledger.refund(facts.uid)
        self.doubtful.discard(facts.name)
        self._queue.add(facts.name)

    # -- messages ---------------------------------------------------------------------------

    def _tell(self, effect: Effect, side: Side, name: str) -> None:
        """Send a message, write an Event; both once per key, and neither waits."""
        if isinstance(effect, SendMessage):
            self._outbox.submit(effect, dry_run=side.dry_run)
        elif isinstance(effect, WriteEvent) and effect.key not in side.outcomes:
            if not side.dry_run:  # an Event about a node reads as something that happened
                self._observer.asked(effect)
            self._came_to(side, name, Outcome(key=effect.key, delivered=True))
            self._queue.add(name)

    def _came_to(self, side: Side, name: str, outcome: Outcome) -> None:
        """Keep an outcome for the next decisions, as long as the node is there; bounded."""
        known = outcome.key in side.outcomes
        side.outcomes[outcome.key] = outcome
        if known:
            return
        told = self._told.setdefault(name, [])
        told.append((side.dry_run, outcome.key))
        if len(told) > OUTCOMES_PER_NODE:
            dry_run, key = told.pop(0)
            self._side(dry_run=dry_run).outcomes.pop(key, None)

    def _side(self, *, dry_run: bool) -> Side:
        return self._virtual if dry_run else self._real


def _works(effects: Sequence[Effect]) -> tuple[Work, ...]:
    return tuple(effect for effect in effects if isinstance(effect, Work))
