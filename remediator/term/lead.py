"""The order of a term.

remembered state --> ledgers --> policies, control --> engine runs --> drain, flush
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import structlog

from remediator.act.channels import open_session
from remediator.act.drain.compose import make_drains
from remediator.act.renewal import renew
from remediator.act.side import Side
from remediator.decide.closings import Standing
from remediator.decide.core import ActivePolicy, Policies, World
from remediator.decide.ledger import Ledger
from remediator.decide.topics import Topics
from remediator.kube.configmap import ConfigMaps
from remediator.kube.errors import ApiError
from remediator.kube.events import EventRecorder, Home
from remediator.kube.lease import NotLeading
from remediator.policy.reload import PolicySet
from remediator.record.audited import AuditedConditions, AuditedPods, audited
from remediator.record.events import Events, Reason
from remediator.record.messages import MessageMemory
from remediator.record.publish import StatusPublisher
from remediator.record.state import LedgerMemory, restore
from remediator.record.status import STATUS_CONFIGMAP
from remediator.signals.refused import News
from remediator.term.closing import Closing, standing_of
from remediator.term.control import Control
from remediator.term.correspondence import correspond
from remediator.term.leftovers import sweep_jobs
from remediator.term.parts import Parts, make_parts
from remediator.term.records import make_chronicle, make_policy_statuses
from remediator.term.refused import (
    RefusalEvents,
    names_no_node,
    refused_key,
    refused_message,
)
from remediator.term.resources import Resources
from remediator.term.view import View
from remediator.witness import Witness


_log = structlog.get_logger(__name__)

DRAIN_SECONDS: Final = 0.7
"""For messages, at an orderly end: nobody leads meanwhile. What is left, the successor sends."""
VIEW_SECONDS: Final = 0.2
"""For Events and records, at an orderly end: of a storm's there may be many, and people alone read
them. The successor begins the records that are missing."""
TICK_SECONDS: Final = 1.0
ANNOUNCE_RETRY_SECONDS: Final = 5.0


class Term:
    """What a leader does. Make one when the lease is ours; `run` it once."""

    def __init__(self, has: Resources) -> None:
        self._has = has
        check, started = has.elector.check, has.clock.now()
        self._real = Side(world=World.REAL, ledger=Ledger(cluster=has.cluster, started=started))
        self._virtual = Side(
            world=World.VIRTUAL, ledger=Ledger(cluster=has.cluster, started=started)
        )
        configmaps = ConfigMaps(api=has.api, namespace=has.namespace, check=check)
        self._memory = LedgerMemory(configmaps=configmaps)
        self._topics = Topics()
        self._messages = MessageMemory(configmaps=configmaps)
        self._recorder = EventRecorder(
            api=has.api,
            check=check,
            home=Home(has.namespace, STATUS_CONFIGMAP),
            count=has.metrics.event_ended,
            instance=has.elector.identity,
        )
        self._events = Events(recorder=self._recorder)
        self._refusals = RefusalEvents(
            named=lambda: has.board.refused.named,
            uid=lambda name: None if (facts := has.fleet.get(name)) is None else facts.uid,
            has_room=lambda: self._recorder.has_room(Reason.SIGNAL_REFUSED),
            events=self._events,
        )
        self._chronicle = make_chronicle(has)
        self._view = View(has, real=self._real, virtual=self._virtual, unwritten=self._unwritten)
        self._publisher = StatusPublisher(configmaps=configmaps, build=self._view.status)
        for name, document in self._documents().items():
            has.metrics.keeps(name, partial(getattr, document, "problem"))
        self._policy_statuses = make_policy_statuses(has, lambda: self._view.document)
        self._control = Control(
            store=has.control,
            configmaps=configmaps,
            real=self._real,
            virtual=self._virtual,
            changed=self._control_changed,
        )
        self._drains, self._marks = make_drains(
            api=has.drains,
            pods=AuditedPods(api=has.drains, check=check),
            conditions=AuditedConditions(api=has.drains, check=check),
            fleet=has.fleet,
            evictions=has.cluster.evictions,
            now=has.clock.now,
            may_mark=self._control.may_write,
            observer=has.metrics,
        )
        self._parts: Parts | None = None
        self._stopping = False

    @property
    def messages_pending(self) -> int:
        """Messages that are neither delivered nor given up."""
        return 0 if self._parts is None else self._parts.outbox.pending

    @property
    def accepting(self) -> bool:
        """Whether alerts that come now are decided upon in this term."""
        return self._parts is not None and not self._stopping

    def stop(self) -> None:
        """End in order: `run` finishes what is being written and returns."""
        self._stopping = True
        if self._parts is not None:
            self._parts.engine.stop()

    async def run(self) -> None:
        """Lead until `stop`; cancelled when the lease is lost."""
        await self._remember()
        has = self._has
        async with open_session() as session:
            parts = make_parts(
                has,
                real=self._real,
                virtual=self._virtual,
                session=session,
                drains=self._drains,
                topics=self._topics,
                observer=Witness(
                    events=self._events,
                    metrics=has.metrics,
                    chronicle=self._chronicle,
                    clock=has.clock,
                    news=self._publisher.touch,
                ),
                messages_changed=self._messages.touch,
                news=self._publisher.touch,
                silent=self._control.silent,
            )
            self._parts = parts
            self._view.of(parts)
            try:
                await self._work(parts)
            finally:
                await parts.works.close()

    async def _remember(self) -> None:
        """Give the guards their memory back."""
        has, loaded = self._has, await self._memory.load()
        restore(self._real.ledger, loaded, dry_run=self._virtual.ledger, now=has.clock.now())
        self._memory.keep(self._real.ledger, self._virtual.ledger)
        has.metrics.state_unreadable.set(bool(loaded.problem))
        if loaded.problem:
            said = f"the saved state of the guards could not be read: {loaded.problem}"
            self._view.notes = (f"{said}; every rate counts as used up for one window",)

    async def _work(self, parts: Parts) -> None:
        has, engine, outbox = self._has, parts.engine, parts.outbox
        async with asyncio.TaskGroup() as tasks:
            beside = [
                tasks.create_task(work)
                for work in (
                    correspond(outbox, topics=self._topics, memory=self._messages, clock=has.clock),
                    self._recorder.run(),
                    self._memory.run(),
                    self._publisher.run(),
                    self._marks.sweep(),
                    self._control.answer_resets(),
                    sweep_jobs(has, control=self._control),
                    self._tick(),
                    self._announce(),
                    self._closing(parts).run(),
                    renew(parts.channels),
                    *(
                        one.run()
                        for one in (self._chronicle, self._policy_statuses, parts.server)
                        if one is not None
                    ),
                )
            ]
            self._control.follow()
            self.use(has.watcher.current)
            has.board.on_refused = self._tell_refused
            for news in has.board.refused.all():
                self._tell_refused(news)
            engine.start()
            if self._stopping:
                engine.stop()
            await engine.run()
            await outbox.drain(DRAIN_SECONDS)
            for task in beside:
                task.cancel()
        await self._flush()

    async def _flush(self) -> None:
        """Write what was not, all of it at a time: the next leader waits for the lease."""
        await asyncio.gather(
            self._memory.flush(),
            self._messages.flush(),
            self._publisher.flush(),
            self._recorder.flush(VIEW_SECONDS),
            *(() if self._chronicle is None else (self._chronicle.flush(VIEW_SECONDS),)),
        )

    # -- what changes meanwhile -------------------------------------------------------------

    def use(self, found: PolicySet) -> None:
        """Put these policies in force; before there is an engine, `run` takes what is current."""
        if self._parts is None:
            return
        for file, text in found.problem_texts():
            _log.error("policy_problem", file=file, problem=text)
        active = {
            name: ActivePolicy(one.policy, one.loaded_at) for name, one in found.policies.items()
        }
        _log.info("policies_in_force", policies={n: a.policy.version for n, a in active.items()})
        self._has.board.use(one.policy for one in found.policies.values())
        self._parts.engine.set_policies(Policies(active))
        self._publisher.touch()

    def _control_changed(self) -> None:
        if self._parts is not None:
            self._parts.engine.look_at_all()
        self._publisher.touch()

    def _tell_refused(self, news: News) -> None:
        """Tell people of what a policy asks for, and nothing is done about: once."""
        one = news.refused
        self._refusals.add(news)
        self._refusals.tell()
        if self._parts is not None and names_no_node(one):
            self._parts.executor.send(refused_message(one, to=self._has.cluster.alerts_to))

    def _closing(self, parts: Parts) -> Closing:
        has, overlay = self._has, parts.executor.overlay

        def standing(dry_run: bool) -> Standing:  # noqa: FBT001 - of two worlds
            side = self._virtual if dry_run else self._real
            nodes = [overlay.view(one) if dry_run else one for one in has.fleet.all()]
            refused = has.board.refused.named.values()
            alerts = {refused_key(one) for one in refused if names_no_node(one)}
            return standing_of(side, nodes, now=has.clock.now(), alerts=alerts)

        return Closing(topics=self._topics, outbox=parts.outbox, standing=standing)

    def _documents(self) -> dict[str, LedgerMemory | MessageMemory | StatusPublisher]:
        return {"state": self._memory, "messages": self._messages, "status": self._publisher}

    def _unwritten(self) -> dict[str, str]:
        """Return why documents of ours cannot be written now, by their names."""
        return {name: one.problem for name, one in self._documents().items() if one.problem}

    async def _tick(self) -> None:
        """Keep memory, status and Events at most this far behind what guards and sources say."""
        shown: object = None
        while True:
            self._memory.touch()
            self._refusals.tell()
            nodes = self._has.nodes
            seen = None if nodes is None else (nodes.sees, len(nodes.unreadable))
            now = (self._has.board.revision, self._has.config_problem(), seen, self._unwritten())
            if now != shown:
                shown = now
                self._publisher.touch()
            await asyncio.sleep(TICK_SECONDS)

    async def _announce(self) -> None:
        """Let the webhook's Service lead here."""
        while self._has.announce is not None:
            try:
                leads = {"leads": self._has.elector.identity}  # whoever led before
                with audited("announce", object="EndpointSlice", before=None, after=leads):
                    await self._has.announce()
            except (ApiError, NotLeading) as error:
                _log.warning("webhook_not_announced", reason=str(error))
                await asyncio.sleep(ANNOUNCE_RETRY_SECONDS)
            else:
                return
