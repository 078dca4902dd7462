"""The composition root: everything is made and joined here, and ends here.

    settings --> cluster, policies --> API server --> mirrors synced --> lease --> Term

A follower keeps its mirrors warm and follows the policies as a leader does, so that taking over
costs nothing but the settling time. When the lease is ours they are read once more: to lead by
yesterday's policies is to undo what the leader before began by today's.

The process ends with 0 after SIGTERM or SIGINT (writes under way finished, the lease released),
and with 1, and one sentence, when it cannot or may not go on.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from remediator.clock import BootClock
from remediator.decide.facts import MAX_ANNOTATION
from remediator.kube.client import (
    ApiClient,
    configmap_reflector,
    connect,
    custom_reflector,
    load_config,
    node_reflector,
)
from remediator.kube.config import ApiConfig
from remediator.kube.custom import CustomObject
from remediator.kube.endpoint import point_to
from remediator.kube.errors import ApiError, ConfigError, Denied
from remediator.kube.lease import Elector, LeaseLost, LeaseTimings
from remediator.kube.objects import ConfigMap, Node
from remediator.kube.podplace import PodFinder
from remediator.kube.reflector import Reflector
from remediator.kube.store import Store
from remediator.log import configure_logging
from remediator.policy.cluster import ClusterSpec
from remediator.policy.load import load_config as load_cluster
from remediator.policy.problems import PolicyError
from remediator.policy.reload import PolicyWatcher
from remediator.policy.sources import rooted
from remediator.record.control import CONTROL_CONFIGMAP
from remediator.record.crds import POLICIES
from remediator.record.metrics import CONTENT_TYPE, Metrics
from remediator.record.policysource import PolicyObjects
from remediator.settings import PoliciesFrom, Settings, parse_listen
from remediator.signals.board import Board
from remediator.signals.feeds import Feeds
from remediator.signals.fleet import Fleet
from remediator.signals.resolve import NodeIndex
from remediator.term.lead import Term
from remediator.term.resources import Resources
from remediator.web.intake import webhook
from remediator.web.server import ListenError, Server, make_app
from remediator.web.tls import TlsError


_log = structlog.get_logger(__name__)

Connect = Callable[..., AbstractAsyncContextManager[ApiClient]]

WATCHES: Final = 8
"""Connections beside those of the workers: watches, status, state, Events."""
POLICIES_SECONDS: Final = 10.0
"""For policies that are objects, before we lead without them: a cluster may not know the kind."""
DRAIN_CONNECTIONS: Final = 48
"""For evictions and the watches of nodes that are drained: writes to nodes do not wait for them."""


def run(settings: Settings) -> int:
    """Run the controller until it is told to stop; return the exit code."""
    configure_logging(log_format=settings.log_format, level=settings.log_level)
    failures: list[Exception] = []
    try:
        asyncio.run(_run(settings))
    except* (ConfigError, PolicyError, ApiError, ListenError, TlsError, LeaseLost) as group:
        failures = _leaves(group)
    for error in failures:
        _log.error("stopped", reason=str(error))
    return 1 if failures else 0


async def _run(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    cluster = load_cluster(Path(settings.config)) if settings.config else ClusterSpec()
    config = await load_config(
        kubeconfig=settings.kubeconfig or None, context=settings.context or None
    )
    _log.info(
        "starting",
        version=version("gpu-remediator"),
        server=config.server,
        access=config.source,
        mode=cluster.mode.value,
    )
    await Controller(settings=settings, cluster=cluster, config=config).run(stop)


class Controller:
    """One replica, from its start to its end.

    Args:
        settings: of the process.
        cluster: what holds for the whole cluster.
        config: the API server and the way in.
        connect: opens a pool of connections to it.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        cluster: ClusterSpec,
        config: ApiConfig,
        connect: Connect = connect,
    ) -> None:
        self._connect = connect
        self._settings = settings
        self._cluster = cluster
        self._config = config
        self._clock = BootClock()
        self._metrics = Metrics(registry=CollectorRegistry())
        self._watcher = PolicyWatcher(
            paths=[] if settings.policies_from is PoliciesFrom.CRDS else [Path(settings.policies)],
            cluster=cluster,
            clock=self._clock.now,
            others=lambda: None if self._objects is None else self._objects.contents(),
        )
        self._objects: PolicyObjects | None = None
        self._term: Term | None = None
        self._feeds: Feeds | None = None
        self.port = 0
        """Where ``/healthz`` and ``/metrics`` are, once it runs."""
        self.webhook_port = 0
        """Where ``/alertmanager`` is, if there is a webhook."""

    async def run(self, stop: asyncio.Event) -> None:
        """Follow, lead when the lease is ours, and end when ``stop`` is set.

        Raises:
            PolicyError: there is no such file or folder of policies.
            Denied: RBAC lacks something; the text says what.
            LeaseLost: another replica leads now.
        """
        found = self._watcher.load()
        if found.general and not found.policies:
            raise PolicyError(list(found.general))
        async with self._resources() as (has, mirrors), asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(mirror.run()) for mirror in mirrors]
            if has.policy_objects is not None:
                background.append(tasks.create_task(has.policy_objects.mirror.run()))
            background.append(tasks.create_task(self._feed(has, mirrors)))
            background.append(tasks.create_task(self._follow_policies(has, mirrors)))
            async with self._web(has, mirrors) as web, self._webhook(has, mirrors) as port:
                self.port, self.webhook_port = web.port, port
                leading = tasks.create_task(self._lead(has, mirrors))
                stopped = tasks.create_task(stop.wait())
                await asyncio.wait({leading, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if self._term is not None:
                    self._term.stop()
                else:
                    leading.cancel()
                await asyncio.wait({leading})
                for task in (stopped, *background):
                    task.cancel()

    async def _feed(self, has: Resources, mirrors: list[Reflector]) -> None:  # type: ignore[type-arg]
        """Ask the other sources, once it is known which nodes there are."""
        await mirrors[0].synced.wait()
        has.board.use(one.policy for one in self._watcher.current.policies.values())
        if self._feeds is not None:
            await self._feeds.run()

    async def _follow_policies(self, has: Resources, mirrors: list[Reflector]) -> None:  # type: ignore[type-arg]
        """Take in changes of the policies, whoever leads."""
        await mirrors[0].synced.wait()
        async for found in self._watcher.changes():
            has.board.use(one.policy for one in found.policies.values())
            if self._term is not None:
                self._term.use(found)

    async def _lead(self, has: Resources, mirrors: list[Reflector]) -> None:  # type: ignore[type-arg]
        for mirror in mirrors:
            await _synced(mirror)
        if has.policy_objects is not None:
            await has.policy_objects.wait(POLICIES_SECONDS)
            await self._watcher.refresh()
        _spare_collector()
        _log.info("synced", nodes=len(has.fleet), gpu_nodes=sum(f.gpu for f in has.fleet.all()))
        async with has.elector.lead():
            await self._watcher.refresh()
            self._term = Term(has)
            await self._term.run()

    @asynccontextmanager
    async def _resources(self) -> AsyncIterator[tuple[Resources, list[Reflector]]]:  # type: ignore[type-arg]
        settings, timings = self._settings, _timings(self._settings)
        limit = min(5.0, timings.renew_deadline / 2)
        async with (
            self._connect(
                self._config, timeout=limit, max_connections=settings.workers + WATCHES
            ) as api,
            self._connect(self._config, timeout=timings.call_timeout, max_connections=2) as own,
            self._connect(self._config, timeout=limit, max_connections=DRAIN_CONNECTIONS) as drains,
        ):
            fleet = Fleet(cluster=self._cluster, clock=self._clock)
            metrics = self._metrics
            nodes: Store[Node] = Store(failed=partial(metrics.defect, "handler"))
            index = NodeIndex()
            nodes.on_event(index.on_event)
            nodes.on_event(fleet.on_event)
            control: Store[ConfigMap] = Store(failed=partial(metrics.defect, "handler"))
            elector = Elector(
                api=own,
                namespace=settings.namespace,
                name=settings.lease_name,
                identity=settings.identity or f"{socket.gethostname()}_{secrets.token_hex(4)}",
                timings=timings,
            )
            folder = Path(settings.config).parent
            sources = sources_of(self._cluster, folder)
            board = Board(
                cluster=sources, fleet=fleet, index=index, clock=self._clock, observer=self._metrics
            )
            mirror = node_reflector(
                api,
                nodes,
                other_annotations=MAX_ANNOTATION + 1,
                on_gap=fleet.blind,
                failed=partial(metrics.watch_failed, "nodes"),
            )
            self._feeds = Feeds(
                cluster=sources,
                board=board,
                clock=self._clock,
                finder=PodFinder(api=api),
                watch_staleness=lambda: mirror.staleness,
            )
            self._objects = self._policy_objects(api)
            has = Resources(
                api=api,
                drains=drains,
                fleet=fleet,
                control=control,
                watcher=self._watcher,
                metrics=self._metrics,
                clock=self._clock,
                cluster=self._cluster,
                elector=elector,
                folder=folder,
                namespace=settings.namespace,
                workers=settings.workers,
                board=board,
                nodes=mirror,
                policy_objects=self._objects,
                announce=self._announcement(api, elector),
            )
            yield (
                has,
                [
                    mirror,
                    configmap_reflector(
                        api,
                        control,
                        namespace=settings.namespace,
                        name=CONTROL_CONFIGMAP,
                        failed=partial(metrics.watch_failed, "control"),
                    ),
                ],
            )

    def _policy_objects(self, api: ApiClient) -> PolicyObjects | None:
        """Return the mirror of policies that are objects; None where only files count."""
        if self._settings.policies_from is PoliciesFrom.FILES:
            return None
        store: Store[CustomObject] = Store()
        mirror = custom_reflector(
            api,
            store,
            namespace=self._settings.namespace,
            plural=POLICIES.plural,
            failed=partial(self._metrics.watch_failed, "policies"),
        )
        return PolicyObjects(store=store, mirror=mirror)

    def _web(self, has: Resources, mirrors: list[Reflector]) -> Server:  # type: ignore[type-arg]
        nodes, elector, address = mirrors[0], has.elector, self._settings.address
        self._metrics.bind(
            leader=lambda: elector.leading,
            watch_staleness=lambda: nodes.staleness,
            outbox_pending=lambda: 0 if self._term is None else self._term.messages_pending,
        )
        app = make_app(
            alive={
                "lease": lambda: (
                    "it is held but not renewed"
                    if elector.leading and not elector.is_fresh()
                    else ""
                )
            },
            ready={"nodes": lambda: "" if nodes.synced.is_set() else "not synced yet"},
            metrics=self._metrics.render,
            metrics_type=CONTENT_TYPE,
        )
        return Server(app, host=address.host, port=address.port)

    def _webhook(
        self,
        has: Resources,
        mirrors: list[Reflector],  # type: ignore[type-arg]
    ) -> AbstractAsyncContextManager[int]:
        assert self._feeds is not None  # noqa: S101 - made with the resources
        address = parse_listen(self._settings.webhook_listen)
        return webhook(
            sources_of(self._cluster, has.folder),
            host=address.host,
            port=address.port,
            feeds=self._feeds,
            ready={
                "nodes": lambda: "" if mirrors[0].synced.is_set() else "not synced yet",
                "leader": lambda: (
                    "" if self._term is not None and self._term.accepting else "not the leader"
                ),
            },
            observer=self._metrics,
        )

    def _announcement(
        self, api: ApiClient, elector: Elector
    ) -> Callable[[], Awaitable[None]] | None:
        """Return what lets the webhook's Service lead here; None where it is not asked for."""
        ip, namespace = self._settings.pod_ip, self._settings.namespace
        if not ip or self._cluster.webhook is None:
            return None
        return lambda: point_to(
            api, namespace=namespace, ip=ip, port=self.webhook_port, check=elector.check
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


def _spare_collector() -> None:
    """Take what is there for good (modules, the fleet) out of the garbage collector's walks.

    A full walk of them takes a tenth of a second, in the middle of whatever is urgent. What is
    replaced is freed by its reference count all the same.
    """
    gc.collect()
    gc.freeze()


async def _synced(mirror: Reflector) -> None:  # type: ignore[type-arg]
    """Wait until the mirror is complete. Raises Denied: waiting would not help."""
    while not mirror.synced.is_set():
        if isinstance(mirror.last_error, Denied):
            raise mirror.last_error
        await asyncio.sleep(0.05)


def _timings(settings: Settings) -> LeaseTimings:
    return LeaseTimings(
        duration=settings.lease_duration,
        renew_deadline=settings.renew_deadline,
        retry_period=settings.retry_period,
        call_timeout=min(4.0, settings.renew_deadline / 2),
    )


def _leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    found: list[Exception] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
