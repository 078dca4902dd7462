"""One term as the leader: take over what is there, decide and act, hand over in order.

    remembered state --> ledgers --> policies, control --> engine runs --> drain, flush

What a term builds is thrown away with it: a process that lost its lease ends, and the
next leader begins from the nodes and the remembered state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from remediator.act.channels import make_channels, open_session
from remediator.act.drain.compose import make_drains
from remediator.act.executor import Executor
from remediator.act.made import Templates
from remediator.act.outbox import Outbox
from remediator.act.side import Side
from remediator.act.sweep import EVERY as SWEEP_SECONDS
from remediator.act.sweep import sweep
from remediator.act.work import Works
from remediator.act.workers import make_workers
from remediator.clock import Clock
from remediator.decide.core import ActivePolicy, Policies, World
from remediator.decide.decision import SendMessage, Urgency
from remediator.decide.facts import MAX_ANNOTATION
from remediator.decide.ledger import Ledger
from remediator.decide.topics import Topics
from remediator.decide.work import claimed
from remediator.engine import Engine
from remediator.kube.client import ApiClient
from remediator.kube.configmap import ConfigMaps
from remediator.kube.custom import CustomObjects
from remediator.kube.dynamic import ObjectApi
from remediator.kube.errors import ApiError
from remediator.kube.events import EventRecorder
from remediator.kube.lease import Elector, NotLeading
from remediator.kube.objects import ConfigMap
from remediator.kube.patch import ApiNodeWriter
from remediator.kube.read import ApiNodeReader
from remediator.kube.store import Store
from remediator.kube.workqueue import WorkQueue
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import Mode
from remediator.policy.reload import PolicySet, PolicyWatcher
from remediator.record.chronicle import Chronicle
from remediator.record.control import (
    CONTROL_CONFIGMAP,
    RESET_PREFIX,
    BreakerReset,
    read_control,
)
from remediator.record.crds import POLICIES, REMEDIATIONS
from remediator.record.events import Events
from remediator.record.messages import MessageMemory, Source
from remediator.record.metrics import Metrics
from remediator.record.policysource import PolicyObjects
from remediator.record.policywriter import PolicyStatuses
from remediator.record.publish import StatusPublisher
from remediator.record.report import Surroundings, WorldView, build_status, session_counts
from remediator.record.state import LedgerMemory, restore
from remediator.record.status import OutboxStatus, PolicyProblem, PolicyStatus, Status
from remediator.signals.board import Board
from remediator.signals.fleet import Fleet
from remediator.signals.placing import Refusal
from remediator.witness import Witness


_log = structlog.get_logger(__name__)

DRAIN_SECONDS: Final = 3.0
"""For messages, at an orderly end; what is left, the successor sends."""
TICK_SECONDS: Final = 1.0
MESSAGES_RETRY_SECONDS: Final = 5.0
RESET_RETRY_SECONDS: Final = 2.0
ANNOUNCE_RETRY_SECONDS: Final = 5.0
MAX_NAMED: Final = 3
"""Nodes named in a note of the status: the reason is mostly the same."""
_STRICTNESS: Final = (Mode.DISABLED, Mode.DRY_RUN, Mode.ENFORCE)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What lives longer than a term: the process's own."""

    api: ApiClient
    drains: ApiClient
    """For what drains send, and for the watches of their pods."""
    fleet: Fleet
    control: Store[ConfigMap]
    watcher: PolicyWatcher
    metrics: Metrics
    clock: Clock
    cluster: ClusterSpec
    elector: Elector
    folder: Path
    """Where relative names of files in RemediatorConfig begin."""
    namespace: str
    workers: int
    board: Board
    policy_objects: PolicyObjects | None = None
    """Policies that are objects; None where only files count."""
    announce: Callable[[], Awaitable[None]] | None = None
    """Makes this replica the one that the webhook's Service leads to. Raises ApiError."""


class Term:
    """What a leader does. Make one when the lease is ours; `run` it once."""

    def __init__(self, resources: Resources) -> None:
        self._has = resources
        check = resources.elector.check
        self._configmaps = ConfigMaps(api=resources.api, namespace=resources.namespace, check=check)
        self._memory = LedgerMemory(configmaps=self._configmaps)
        self._topics = Topics()
        self._messages = MessageMemory(configmaps=self._configmaps)
        self._recorder = EventRecorder(api=resources.api, instance=resources.elector.identity)
        self._publisher = StatusPublisher(configmaps=self._configmaps, build=self._status)
        self._chronicle = make_chronicle(resources)
        self._document: Status | None = None
        self._policy_statuses = make_policy_statuses(resources, lambda: self._document)
        self._notes: tuple[str, ...] = ()
        self._answered: set[tuple[str, str]] = set()
        self._resets: dict[str, BreakerReset] = {}
        self._resets_asked = asyncio.Event()
        started = resources.clock.now()
        self._real = Side(
            world=World.REAL, ledger=Ledger(cluster=resources.cluster, started=started)
        )
        self._virtual = Side(
            world=World.VIRTUAL, ledger=Ledger(cluster=resources.cluster, started=started)
        )
        self._engine: Engine | None = None
        self._executor: Executor | None = None
        self._outbox: Outbox | None = None
        self._works: Works | None = None
        self._drains, self._marks = make_drains(
            api=resources.drains,
            check=check,
            fleet=resources.fleet,
            evictions=resources.cluster.evictions,
            now=resources.clock.now,
            may_mark=self._may_mark,
            observer=resources.metrics,
        )
        self._stopping = False

    @property
    def messages_pending(self) -> int:
        """Messages that are neither delivered nor given up."""
        return 0 if self._outbox is None else self._outbox.pending

    @property
    def accepting(self) -> bool:
        """Whether alerts that come now are decided upon in this term."""
        return self._engine is not None and not self._stopping

    def stop(self) -> None:
        """End in order: `run` finishes what is being written and returns."""
        self._stopping = True
        if self._engine is not None:
            self._engine.stop()

    async def run(self) -> None:
        """Lead until `stop`; cancelled when the lease is lost."""
        await self._remember()
        async with open_session() as session:
            has = self._has
            queue = WorkQueue()
            self._outbox = Outbox(
                channels=make_channels(
                    has.cluster.channels,
                    session=session,
                    folder=has.folder,
                    topics=self._topics,
                    template_failed=has.metrics.template_failed,
                ),
                report=lambda report: executor.reported(report),  # noqa: PLW0108 - made below
                observer=has.metrics,
                changed=self._messages.touch,
                now=has.clock.now,
            )
            witness = Witness(
                events=Events(recorder=self._recorder),
                metrics=has.metrics,
                chronicle=self._chronicle,
                clock=has.clock,
                news=self._publisher.touch,
            )
            self._works = works = Works(
                workers={"drain": self._drains}
                | make_workers(
                    cluster=has.cluster,
                    folder=has.folder,
                    namespace=has.namespace,
                    objects=ObjectApi(api=has.api, check=has.elector.check),
                    session=session,
                    clock=has.clock,
                ),
                ended=lambda work, outcome: executor.work_ended(work, outcome),  # noqa: PLW0108 - as above
                news=self._publisher.touch,
            )
            self._executor = executor = Executor(
                fleet=has.fleet,
                queue=queue,
                real=self._real,
                virtual=self._virtual,
                writer=ApiNodeWriter(api=has.api, check=has.elector.check),
                reader=ApiNodeReader(api=has.api, other_annotations=MAX_ANNOTATION + 1),
                outbox=self._outbox,
                observer=witness,
                works=works,
                workers=has.workers,
            )
            self._engine = Engine(
                fleet=has.fleet,
                queue=queue,
                real=self._real,
                virtual=self._virtual,
                executor=executor,
                observer=witness,
                clock=has.clock,
                alerts_to=has.cluster.alerts_to,
            )
            try:
                await self._work(self._engine, self._outbox)
            finally:
                await works.close()

    async def _correspond(self, outbox: Outbox) -> None:
        """Send messages, and before others what the leader before us could not."""
        taken_over = await self._take_over_messages(outbox)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(outbox.run())
            while not taken_over:  # nobody's messages wait for that
                await asyncio.sleep(MESSAGES_RETRY_SECONDS)
                taken_over = await self._take_over_messages(outbox)
            await self._messages.run()

    async def _take_over_messages(self, outbox: Outbox) -> bool:
        """Go on in the threads that the leader before us began; tell whether that was possible."""
        left = await self._messages.load(now=self._has.clock.now())
        if left is None:
            return False
        self._topics.restore(left.topics)
        self._messages.keep(Source(unsent=outbox.unsent, topics=self._topics.state))
        for one in left.unsent:
            outbox.submit(one.message, dry_run=False, created=one.created)
        self._messages.touch()
        return True

    async def _remember(self) -> None:
        """Give the guards their memory back."""
        has, loaded = self._has, await self._memory.load()
        restore(
            self._real.ledger,
            loaded,
            pools={facts.pool for facts in has.fleet.all()},
            rates=[
                ("", has.cluster.rates),
                *(
                    (name, one.policy.spec.limits.rate)
                    for name, one in has.watcher.current.policies.items()
                ),
            ],
            now=has.clock.now(),
        )
        self._memory.keep(self._real.ledger)
        has.metrics.state_unreadable.set(bool(loaded.problem))
        if loaded.problem:
            self._notes = (f"the saved state of the guards could not be read: {loaded.problem}",)

    async def _work(self, engine: Engine, outbox: Outbox) -> None:
        async with asyncio.TaskGroup() as tasks:
            beside = [
                tasks.create_task(work)
                for work in (
                    self._correspond(outbox),
                    self._recorder.run(),
                    self._memory.run(),
                    self._publisher.run(),
                    self._marks.sweep(),
                    self._follow_policies(engine),
                    self._answer_resets(engine),
                    self._sweep_jobs(),
                    self._tick(),
                    self._announce(),
                    *(
                        view.run()
                        for view in (self._chronicle, self._policy_statuses)
                        if view is not None
                    ),
                )
            ]
            self._control_changed(None, self._has.control.get(CONTROL_CONFIGMAP))
            self._has.control.on_event(self._control_changed)
            self._use(engine, self._has.watcher.current)
            self._has.board.on_refused = self._tell_refused
            for source, refusal in self._has.board.named_refusals():
                self._tell_refused(source, refusal)
            engine.start()
            if self._stopping:
                engine.stop()
            await engine.run()
            await outbox.drain(DRAIN_SECONDS)
            for task in beside:
                task.cancel()
        await self._memory.flush()
        await self._messages.flush()
        await self._publisher.flush()
        await self._recorder.flush(1.0)
        if self._chronicle is not None:
            await self._chronicle.flush(1.0)

    def _tell_refused(self, source: str, refusal: Refusal) -> None:
        """Tell people of an alert that a policy asks for, and that is about no node: once."""
        name = refusal.alert.name
        if self._executor is not None:
            self._executor.send(
                SendMessage(
                    key=f"refused/{source}/{name}/{refusal.reason.value}",
                    to=self._has.cluster.alerts_to,
                    title=f"alert {name} is about no node",
                    text=f"{source} has it firing, and a policy asks for it, but {refusal.why}. "
                    "Nothing is done. `remediator status` names all such alerts.",
                    urgency=Urgency.WARNING,
                )
            )

    async def _announce(self) -> None:
        """Let the webhook's Service lead here."""
        while self._has.announce is not None:
            try:
                await self._has.announce()
            except (ApiError, NotLeading) as error:
                _log.warning("webhook_not_announced", reason=str(error))
                await asyncio.sleep(ANNOUNCE_RETRY_SECONDS)
            else:
                return

    # -- policies ---------------------------------------------------------------------------

    async def _follow_policies(self, engine: Engine) -> None:
        async for changed in self._has.watcher.changes():
            self._use(engine, changed)

    def _use(self, engine: Engine, found: PolicySet) -> None:
        """Put these policies in force."""
        for file, text in found.problem_texts():
            _log.error("policy_problem", file=file, problem=text)
        active = {
            name: ActivePolicy(one.policy, one.loaded_at) for name, one in found.policies.items()
        }
        _log.info("policies_in_force", policies={n: a.policy.version for n, a in active.items()})
        self._has.board.use(one.policy for one in found.policies.values())
        engine.set_policies(Policies(active))
        self._publisher.touch()

    # -- control ----------------------------------------------------------------------------

    def _control_changed(self, _old: ConfigMap | None, new: ConfigMap | None) -> None:
        """Take in what people told the controller as a whole."""
        control = read_control(new.data if new is not None else {})
        for problem in control.problems:
            _log.error("control_unreadable", problem=problem)
        if control.pause != self._real.ledger.pause:
            _log.warning("pause", pause=str(control.pause) if control.pause else "none")
            for side in (self._real, self._virtual):
                side.ledger.pause = control.pause
            self._look_at_all()
            self._publisher.touch()
        self._resets = dict(control.resets)
        if self._resets:
            self._resets_asked.set()

    async def _answer_resets(self, engine: Engine) -> None:
        """Reset breakers that people asked for, once each, and remove the request."""
        while True:
            await self._resets_asked.wait()
            self._resets_asked.clear()
            for source, reset in self._resets.items():
                if (source, reset.at) in self._answered:
                    continue
                self._answered.add((source, reset.at))
                _log.warning("breaker_reset", source=source, by=reset.by, keep=reset.keep)
                for side in (self._real, self._virtual):
                    side.ledger.reset_breaker(source, keep=reset.keep)
                engine.look_at_all()
                self._publisher.touch()
            if not await self._remove_resets({RESET_PREFIX + one: None for one in self._resets}):
                await asyncio.sleep(RESET_RETRY_SECONDS)
                self._resets_asked.set()

    async def _remove_resets(self, keys: Mapping[str, None]) -> bool:
        """Remove answered requests: one that stayed would close a later breaker, too."""
        known = self._has.control.get(CONTROL_CONFIGMAP)
        try:
            if keys and known is not None:
                await self._configmaps.write(CONTROL_CONFIGMAP, keys, known=known)
        except (ApiError, NotLeading) as error:
            _log.warning("reset_not_removed", reason=str(error))
            return False
        return True

    def _may_mark(self) -> bool:
        """Tell whether conditions of drains may be written at all."""
        pause = self._real.ledger.pause
        return self._has.cluster.mode is Mode.ENFORCE and not (pause is not None and pause.all)

    # -- Jobs that nobody wants -------------------------------------------------------------

    async def _sweep_jobs(self) -> None:
        """Delete Jobs that an earlier leader could not delete any more, now and then."""
        has = self._has
        while has.cluster.templates:
            await asyncio.sleep(has.cluster.settling)
            if self._claimed("") is not None:
                await sweep(
                    objects=ObjectApi(api=has.api, check=has.elector.check),
                    templates=Templates(has.cluster.templates, folder=has.folder),
                    namespace=has.namespace,
                    wanted=self._claimed,
                )
            await asyncio.sleep(SWEEP_SECONDS)

    def _claimed(self, node: str) -> frozenset[str] | None:
        """Return the work that a node's session wants; None: nothing of it may be touched now."""
        pause = self._real.ledger.pause
        if self._has.cluster.mode is not Mode.ENFORCE or (pause is not None and pause.all):
            return None
        if not node:
            return frozenset()
        facts = self._has.fleet.get(node)
        return None if facts is None else claimed(facts)

    def _look_at_all(self) -> None:
        if self._engine is not None:
            self._engine.look_at_all()

    # -- what people see --------------------------------------------------------------------

    async def _tick(self) -> None:
        """Keep memory and status at most this far behind what guards and sources say."""
        shown = -1
        while True:
            self._memory.touch()
            if self._has.board.revision != shown:
                shown = self._has.board.revision
                self._publisher.touch()
            await asyncio.sleep(TICK_SECONDS)

    def _status(self) -> Status:
        """Build the status document, and set the metrics that restate it."""
        has, found = self._has, self._has.watcher.current
        facts = {one.uid: one for one in has.fleet.all()}
        modes = {
            name: min(one.policy.spec.mode, has.cluster.mode, key=_STRICTNESS.index)
            for name, one in found.policies.items()
        }
        virtual = self._view(self._virtual, found, modes, Mode.DRY_RUN)
        status = build_status(
            real=self._view(self._real, found, modes, Mode.ENFORCE),
            virtual=virtual if virtual.policies or virtual.decisions else None,
            facts=facts,
            around=self._surroundings(found, modes),
            now=has.clock.now(),
        )
        has.metrics.update(status, session_counts(facts.values()))
        self._document = status
        return status

    def _view(
        self, side: Side, found: PolicySet, modes: Mapping[str, Mode], mode: Mode
    ) -> WorldView:
        return WorldView(
            dry_run=side.dry_run,
            ledger=side.ledger,
            policies={
                name: ActivePolicy(one.policy, one.loaded_at)
                for name, one in found.policies.items()
                if modes[name] is mode
            },
            decisions=side.decisions,
            progress=self._works.progress if self._works is not None and not side.dry_run else {},
        )

    def _refusals(self) -> tuple[str, ...]:
        """Say which writes the API server refuses, the first few by name."""
        refused = {} if self._executor is None else self._executor.refused
        return _first_few(refused, "and writes to {} more nodes are refused")

    def _surroundings(self, found: PolicySet, modes: Mapping[str, Mode]) -> Surroundings:
        outbox = self._outbox
        return Surroundings(
            leader=self._has.elector.identity,
            sources={name: one.file for name, one in found.policies.items()},
            idle=tuple(
                PolicyStatus(
                    name=name,
                    version=one.policy.version,
                    mode=one.policy.spec.mode.value,
                    effective_mode=modes[name].value,
                    loaded_at=one.loaded_at,
                    source=one.file,
                )
                for name, one in found.policies.items()
                if modes[name] is Mode.DISABLED
            ),
            problems=tuple(
                PolicyProblem(source=file, message=text) for file, text in found.problem_texts()
            ),
            outbox=None
            if outbox is None
            else OutboxStatus(
                pending=outbox.pending, failed=outbox.failed, last_failure=outbox.last_failure
            ),
            notes=(
                *self._notes,
                *self._refusals(),
                *self._has.board.notes(),
                *(() if self._has.policy_objects is None else self._has.policy_objects.notes()),
                *_first_few(self._has.fleet.problems(), "and {} more nodes have such annotations"),
            ),
            nodes_total=len(self._has.fleet),
        )


def make_chronicle(has: Resources) -> Chronicle | None:
    """Return what records sessions; None where that is not wanted."""
    kept = has.cluster.remediations
    if not kept.keep:
        return None
    objects = CustomObjects(
        api=has.api,
        namespace=has.namespace,
        plural=REMEDIATIONS.plural,
        check=has.elector.check,
    )
    return Chronicle(objects=objects, kept=kept, nodes=has.fleet.all, now=has.clock.now)


def make_policy_statuses(
    has: Resources, status: Callable[[], Status | None]
) -> PolicyStatuses | None:
    """Return what tells of policies in their own objects; None where only files count."""
    if has.policy_objects is None:
        return None
    return PolicyStatuses(
        objects=CustomObjects(
            api=has.api,
            namespace=has.namespace,
            plural=POLICIES.plural,
            check=has.elector.check,
        ),
        there=lambda store=has.policy_objects.store: store,  # type: ignore[misc]
        loaded=lambda: has.watcher.current,
        status=status,
        now=has.clock.now,
    )


def _first_few(problems: Mapping[str, str], rest: str) -> tuple[str, ...]:
    """Say by node what is amiss; of many, how many more there are."""
    more = len(problems) - MAX_NAMED
    return (
        *(f"{name}: {why}" for name, why in list(problems.items())[:MAX_NAMED]),
        *((rest.format(more),) if more > 0 else ()),
    )
