"""The composition root: everything is made and joined here, and ends here.

    settings --> process: connections, lease, endpoints --> a Replica for each RemediatorConfig

When the file of RemediatorConfig changes, the replica ends in order, as at SIGTERM, and one of the
new configuration goes on from the nodes, as after a restart; the lease is kept meanwhile. If
the new one cannot be served, the one before comes back.

The process ends with 0 after SIGTERM or SIGINT (writes under way finished, the lease released),
and with 1, and one sentence, when it cannot or may not go on.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry

from remediator.clock import BootClock
from remediator.kube.client import (
    ApiClient,
    connect,
    load_config,
)
from remediator.kube.config import ApiConfig
from remediator.kube.errors import ApiError, ConfigError
from remediator.kube.lease import Elector, LeaseLost, LeaseTimings
from remediator.log import configure_logging
from remediator.policy.cluster import ClusterSpec
from remediator.policy.configfile import ConfigFile
from remediator.policy.load import load_config as load_cluster
from remediator.policy.problems import PolicyError
from remediator.policy.reload import Contents, PolicyWatcher
from remediator.record.metrics import CONTENT_TYPE, Metrics
from remediator.replica import Process, Replica
from remediator.settings import PoliciesFrom, Settings
from remediator.web.server import ListenError, Server, make_app
from remediator.web.tls import TlsError


_log = structlog.get_logger(__name__)

Connect = Callable[..., AbstractAsyncContextManager[ApiClient]]

_COLLECT: Final = (20_000, 20, 20)
"""When the garbage collector looks: rarely. Little of ours is in circles, and in a storm, or while
a large fleet is read, its walks by default (700, 10, 10) are a twentieth of all work."""
WATCHES: Final = 8
"""Connections beside those of the workers: watches, status, state, Events."""
DRAIN_CONNECTIONS: Final = 48
"""For evictions and the watches of nodes that are drained: writes to nodes do not wait for them."""


def run(settings: Settings) -> int:
    """Run the controller until it is told to stop; return the exit code."""
    configure_logging(log_format=settings.log_format, level=settings.log_level)
    gc.set_threshold(*_COLLECT)
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
    await Controller(
        settings=settings, cluster=cluster, config=config, taken_over=_spare_collector
    ).run(stop)


def _spare_collector() -> None:
    """Take what is there for good (modules, the fleet) out of the garbage collector's walks.

    A full walk of them takes a tenth of a second, in the middle of whatever is urgent. What is
    replaced is freed by its reference count all the same; what an earlier replica left behind,
    here.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Controller:
    """The process's work, from its start to its end.

    Args:
        settings: of the process.
        cluster: what RemediatorConfig says now; its file is followed from here on.
        config: the API server and the way in.
        connect: opens a pool of connections to it.
        taken_over: told each time that the fleet is known.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        cluster: ClusterSpec,
        config: ApiConfig,
        connect: Connect = connect,
        taken_over: Callable[[], None] = lambda: None,
    ) -> None:
        self._connect = connect
        self._taken_over = taken_over
        self._settings = settings
        self._api_config = config
        self._clock = BootClock()
        self._metrics = Metrics(registry=CollectorRegistry())
        self._config = ConfigFile(
            Path(settings.config) if settings.config else None, in_force=cluster
        )
        self._watcher = PolicyWatcher(
            paths=[] if settings.policies_from is PoliciesFrom.CRDS else [Path(settings.policies)],
            cluster=cluster,
            clock=self._clock.now,
            others=self._policy_objects,
        )
        self._replica: Replica | None = None
        self.port = 0
        """Where ``/healthz`` and ``/metrics`` are, once it runs."""

    @property
    def webhook_port(self) -> int:
        """Where ``/alertmanager`` is, if there is a webhook."""
        return 0 if self._replica is None else self._replica.webhook_port

    async def run(self, stop: asyncio.Event) -> None:
        """Follow, lead when the lease is ours, and end when ``stop`` is set.

        Raises:
            PolicyError: there is no such file or folder of policies.
            ListenError: an address cannot be listened on.
            ExceptionGroup: of ListenError, TlsError (the webhook cannot be served), Denied (RBAC
                lacks something; the text says what), or LeaseLost (another replica leads now).
        """
        found = self._watcher.load()
        if found.general and not found.policies:
            raise PolicyError(list(found.general))
        async with self._process() as process, self._web(process.elector) as web:
            self.port = web.port
            async with asyncio.TaskGroup() as tasks:
                following = [
                    tasks.create_task(work)
                    for work in (self._config.follow(), self._follow_policies())
                ]
                await self._live(process, stop)
                for task in following:
                    task.cancel()
            await process.elector.release()  # if it was kept for a replica that did not come

    async def _live(self, process: Process, stop: asyncio.Event) -> None:
        """Be one replica after the other: a new one for each configuration."""
        config, before = self._config, None
        while not stop.is_set():
            self._replica = Replica(process, config.in_force)
            _log.info("config_in_force", mode=config.in_force.mode.value)
            try:
                await self._be(self._replica, stop)
            except (ListenError, TlsError) as error:
                if before is None:
                    raise
                await self._watcher.use(config.go_back(before, str(error)))
                before = None
                continue
            before = config.in_force
            if config.changed.is_set():
                await self._watcher.use(config.take())

    async def _be(self, replica: Replica, stop: asyncio.Event) -> None:
        """Be this replica until the process is to end, or another configuration is there."""
        end, changed = asyncio.Event(), self._config.changed
        life = asyncio.create_task(
            replica.run(end, keep=lambda: changed.is_set() and not stop.is_set())
        )
        reasons = [asyncio.create_task(one.wait()) for one in (stop, changed)]
        try:
            await asyncio.wait({life, *reasons}, return_when=asyncio.FIRST_COMPLETED)
            end.set()
            await life
        finally:
            await _end(life, *reasons)

    async def _follow_policies(self) -> None:
        async for found in self._watcher.changes():
            if self._replica is not None:
                self._replica.use(found)

    def _policy_objects(self) -> Contents | None:
        objects = None if self._replica is None else self._replica.objects
        return None if objects is None else objects.contents()

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[Process]:
        settings, timings = self._settings, _timings(self._settings)
        limit, config = min(5.0, timings.renew_deadline / 2), self._api_config
        many = settings.workers + WATCHES
        async with (
            self._connect(config, timeout=limit, max_connections=many) as api,
            self._connect(config, timeout=timings.call_timeout, max_connections=2) as own,
            self._connect(config, timeout=limit, max_connections=DRAIN_CONNECTIONS) as drains,
        ):
            elector = Elector(
                api=own,
                namespace=settings.namespace,
                name=settings.lease_name,
                identity=settings.identity or f"{socket.gethostname()}_{secrets.token_hex(4)}",
                timings=timings,
            )
            yield Process(
                settings=settings,
                api=api,
                drains=drains,
                elector=elector,
                clock=self._clock,
                metrics=self._metrics,
                watcher=self._watcher,
                config=self._config,
                folder=Path(settings.config).parent,
                taken_over=self._taken_over,
            )

    def _web(self, elector: Elector) -> Server:
        def of(ask: Callable[[Replica], float]) -> float:
            return 0.0 if self._replica is None else ask(self._replica)

        self._metrics.bind(
            leader=lambda: elector.leading,
            watch_staleness=lambda: of(lambda one: one.staleness),
            outbox_pending=lambda: int(of(lambda one: one.messages_pending)),
            config_problem=lambda: self._config.problem,
        )
        app = make_app(
            alive={
                "lease": lambda: (
                    "it is held but not renewed"
                    if elector.leading and not elector.is_fresh()
                    else ""
                )
            },
            ready={"nodes": lambda: "" if of(lambda one: one.synced) else "not synced yet"},
            metrics=self._metrics.render,
            metrics_type=CONTENT_TYPE,
        )
        address = self._settings.address
        return Server(app, host=address.host, port=address.port)


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what still runs, and wait for its end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
