"""One replica under one RemediatorConfig: mirrors and sources, the webhook, the terms.

    API server --> mirrors synced --> lease --> Term

A follower keeps its mirrors warm and follows the policies as a leader does, so that taking over
costs nothing but the settling time. When the lease is ours, policies and configuration are read
once more: to lead by yesterday's is to undo what the leader before began by today's.

Which nodes there are for us, their pools, the sources and the guards all rest on the
configuration. So another one is another replica, made anew in the same process
(:mod:`remediator.app`): everything is derived again from the nodes, as after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from remediator.clock import Clock
from remediator.decide.facts import MAX_ANNOTATION
from remediator.kube.client import (
    ApiClient,
    configmap_reflector,
    custom_reflector,
    node_reflector,
)
from remediator.kube.custom import CustomObject
from remediator.kube.endpoint import point_to
from remediator.kube.errors import Denied
from remediator.kube.lease import Elector
from remediator.kube.objects import ConfigMap, Node
from remediator.kube.podplace import PodFinder
from remediator.kube.reflector import Reflector
from remediator.kube.store import Store
from remediator.policy.cluster import ClusterSpec
from remediator.policy.configfile import ConfigFile
from remediator.policy.reload import PolicySet, PolicyWatcher
from remediator.policy.sources import rooted
from remediator.record.control import CONTROL_CONFIGMAP
from remediator.record.crds import POLICIES
from remediator.record.metrics import Metrics
from remediator.record.policysource import PolicyObjects
from remediator.settings import PoliciesFrom, Settings, parse_listen
from remediator.signals.board import Board
from remediator.signals.feeds import Feeds
from remediator.signals.fleet import Fleet
from remediator.signals.resolve import NodeIndex
from remediator.term.lead import Term
from remediator.term.resources import Resources
from remediator.web.intake import webhook


_log = structlog.get_logger(__name__)

POLICIES_SECONDS: Final = 10.0
"""For policies that are objects, before we lead without them: a cluster may not know the kind."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """What outlives a configuration: the process's own."""

    settings: Settings
    api: ApiClient
    drains: ApiClient
    """For what drains send, and for the watches of their pods."""
    elector: Elector
    clock: Clock
    metrics: Metrics
    watcher: PolicyWatcher
    config: ConfigFile
    folder: Path
    """Where relative names of files in RemediatorConfig begin."""
    taken_over: Callable[[], None] = lambda: None
    """Told each time that the fleet is known."""


class Replica:
    """What the process is while one configuration is in force. `run` it once.

    Args:
        process: what it is given.
        cluster: the configuration.
    """

    def __init__(self, process: Process, cluster: ClusterSpec) -> None:
        self._process = process
        self._sources = sources_of(cluster, process.folder)
        self._term: Term | None = None
        self.webhook_port = 0
        """Where ``/alertmanager`` is, if there is a webhook."""
        self.fleet = Fleet(cluster=cluster, clock=process.clock)
        metrics = process.metrics
        nodes: Store[Node] = Store(failed=partial(metrics.defect, "handler"))
        index = NodeIndex()
        nodes.on_event(index.on_event)
        nodes.on_event(self.fleet.on_event)
        control: Store[ConfigMap] = Store(failed=partial(metrics.defect, "handler"))
        self._board = Board(
            cluster=self._sources,
            fleet=self.fleet,
            index=index,
            clock=process.clock,
            observer=metrics.signals,
        )
        api, namespace = process.api, process.settings.namespace
        self._nodes = node_reflector(
            api,
            nodes,
            other_annotations=MAX_ANNOTATION + 1,
            on_gap=self.fleet.blind,
            failed=partial(metrics.watch_failed, "nodes"),
        )
        self._control = configmap_reflector(
            api,
            control,
            namespace=namespace,
            name=CONTROL_CONFIGMAP,
            failed=partial(metrics.watch_failed, "control"),
        )
        self._feeds = Feeds(
            cluster=self._sources,
            board=self._board,
            clock=process.clock,
            finder=PodFinder(api=api),
            watch_staleness=lambda: self.staleness,
        )
        self.objects = _policy_objects(process)
        self._has = Resources(
            api=api,
            drains=process.drains,
            fleet=self.fleet,
            control=control,
            watcher=process.watcher,
            metrics=process.metrics,
            clock=process.clock,
            cluster=cluster,
            elector=process.elector,
            folder=process.folder,
            namespace=namespace,
            workers=process.settings.workers,
            board=self._board,
            nodes=self._nodes,
            policy_objects=self.objects,
            config_problem=lambda: process.config.problem,
            announce=self._announcement(cluster),
        )

    # -- what others ask --------------------------------------------------------------------

    @property
    def synced(self) -> bool:
        """Whether it has seen the nodes."""
        return self._nodes.synced.is_set()

    @property
    def staleness(self) -> float:
        """Seconds since the watch of nodes said anything."""
        return self._nodes.staleness

    @property
    def messages_pending(self) -> int:
        """Messages that are neither delivered nor given up."""
        return 0 if self._term is None else self._term.messages_pending

    def use(self, found: PolicySet) -> None:
        """Put other policies in force, whoever leads."""
        if not self.synced:
            return  # then what is current is taken
        self._board.use(one.policy for one in found.policies.values())
        if self._term is not None:
            self._term.use(found)

    # -- its life ---------------------------------------------------------------------------

    async def run(self, end: asyncio.Event, *, keep: Callable[[], bool]) -> None:
        """Follow, lead when the lease is ours, and end in order when ``end`` is set.

        Args:
            end: when to.
            keep: asked in the end: whether the lease is kept for the replica that comes next.

        Raises:
            ListenError: the webhook cannot be served at its address.
            TlsError: nor with its certificate.
            ExceptionGroup: of Denied (RBAC lacks something; the text says what), or LeaseLost.
        """
        async with self._webhook(), asyncio.TaskGroup() as tasks:
            mirrors = (self._nodes, self._control)
            background = [tasks.create_task(mirror.run()) for mirror in mirrors]
            if self.objects is not None:
                background.append(tasks.create_task(self.objects.mirror.run()))
            background.append(tasks.create_task(self._feed()))
            leading = tasks.create_task(self._lead(keep))
            ended = tasks.create_task(end.wait())
            await asyncio.wait({leading, ended}, return_when=asyncio.FIRST_COMPLETED)
            if self._term is not None:
                self._term.stop()
            else:
                leading.cancel()
            await asyncio.wait({leading})
            for task in (ended, *background):
                task.cancel()

    async def _feed(self) -> None:
        """Ask the other sources, once it is known which nodes there are."""
        await self._nodes.synced.wait()
        self._board.use(one.policy for one in self._has.watcher.current.policies.values())
        await self._feeds.run()

    async def _lead(self, keep: Callable[[], bool]) -> None:
        process, watcher = self._process, self._process.watcher
        await _synced(self._nodes)
        await _synced(self._control)
        if self.objects is not None:
            await self.objects.wait(POLICIES_SECONDS)
            await watcher.refresh()
        process.taken_over()
        gpu_nodes = sum(facts.gpu for facts in self.fleet.all())
        _log.info("synced", nodes=len(self.fleet), gpu_nodes=gpu_nodes)
        async with process.elector.lead(keep=keep):
            await watcher.refresh()
            await process.config.refresh()
            if process.config.changed.is_set():
                return  # not by yesterday's
            self._term = Term(self._has)
            await self._term.run()

    @asynccontextmanager
    async def _webhook(self) -> AsyncIterator[None]:
        address = parse_listen(self._process.settings.webhook_listen)
        async with webhook(
            self._sources,
            host=address.host,
            port=address.port,
            feeds=self._feeds,
            ready={
                "nodes": lambda: "" if self.synced else "not synced yet",
                "leader": lambda: (
                    "" if self._term is not None and self._term.accepting else "not the leader"
                ),
            },
            observer=self._process.metrics.signals,
        ) as self.webhook_port:
            yield

    def _announcement(self, cluster: ClusterSpec) -> Callable[[], Awaitable[None]] | None:
        """Return what lets the webhook's Service lead here; None where it is not asked for."""
        process = self._process
        ip, namespace = process.settings.pod_ip, process.settings.namespace
        if not ip or cluster.webhook is None:
            return None
        return lambda: point_to(
            process.api,
            namespace=namespace,
            ip=ip,
            port=self.webhook_port,
            check=process.elector.check,
        )


def sources_of(cluster: ClusterSpec, folder: Path) -> ClusterSpec:
    """Return the settings with the names of the sources' files as the process sees them."""
    hook = cluster.webhook
    return cluster.model_copy(
        update={
            "alertmanagers": tuple(rooted(one, str(folder)) for one in cluster.alertmanagers),
            "prometheus": tuple(rooted(one, str(folder)) for one in cluster.prometheus),
            "webhook": None if hook is None else rooted(hook, str(folder)),
        }
    )


def _policy_objects(process: Process) -> PolicyObjects | None:
    """Return the mirror of policies that are objects; None where only files count."""
    if process.settings.policies_from is PoliciesFrom.FILES:
        return None
    store: Store[CustomObject] = Store()
    mirror = custom_reflector(
        process.api,
        store,
        namespace=process.settings.namespace,
        plural=POLICIES.plural,
        failed=partial(process.metrics.watch_failed, "policies"),
    )
    return PolicyObjects(store=store, mirror=mirror)


async def _synced(mirror: Reflector) -> None:  # type: ignore[type-arg]
    """Wait until the mirror is complete. Raises Denied: waiting would not help."""
    while not mirror.synced.is_set():
        if isinstance(mirror.last_error, Denied):
            raise mirror.last_error
        await asyncio.sleep(0.05)
