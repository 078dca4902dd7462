"""Composition root: builds the parts, joins them, and runs them until SIGTERM.

Data flows: kernel log and PCI sysfs -> :class:`Monitor` -> (:class:`Publisher`, state file,
metrics). The way from a line to the patch has no queue and no timer in it: the log's reader
calls the monitor, the monitor's listener hands the publisher the latest state, and that is
awake in the same turn of the loop.

One task that dies ends the process: the kubelet starts it again, and the state file knows
where to go on. What a missing permission takes away is a view, never a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from node_agent.check import checks
from node_agent.gpus import Gpus
from node_agent.health.conditions import View, desired
from node_agent.health.saver import Saver
from node_agent.health.store import load
from node_agent.monitor import Monitor
from node_agent.parts import dcgm_metrics, log_paths
from node_agent.publish.access import find_access
from node_agent.publish.cluster_get import cluster_get
from node_agent.publish.events import EventRecorder
from node_agent.publish.metrics import SelfMetrics, source_blocks
from node_agent.publish.node_api import ApiError, NodeApi, NodeView
from node_agent.publish.page import MetricsPage, Snapshot
from node_agent.publish.publisher import Publisher
from node_agent.publish.web import ListenError, LocalServer, PublicServer
from node_agent.sources.kernel_log import KernelLog, SourceState
from node_agent.sources.pci_sysfs import PciSysfs, PciUnavailableError
from node_agent.xid.catalogue import load_catalogue


if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping

    from structlog.typing import FilteringBoundLogger

    from node_agent.check import Check
    from node_agent.contract import Condition
    from node_agent.health.conditions import Desired
    from node_agent.health.operator import SetHealthy
    from node_agent.health.state import NodeHealth
    from node_agent.publish.exposition import Block
    from node_agent.settings import Settings
    from node_agent.xid.parse import XidReport

_LAG_SECONDS: Final = 5.0
_FLUSH_SECONDS: Final = 3.0


class App:
    """One agent.

    Args:
        settings: all of them.
        environ: the environment, for the pod's API server address.
        log: the agent's own log.
    """

    def __init__(
        self, *, settings: Settings, environ: Mapping[str, str], log: FilteringBoundLogger
    ) -> None:
        self._settings = settings
        self._log = log
        loaded = load(Path(settings.state_file))
        if loaded.note:
            log.error("state lost", reason=loaded.note)
        catalogue = load_catalogue()
        self._kernel_log = KernelLog(
            catalogue=catalogue,
            mode=settings.kernel_log,
            paths=log_paths(settings),
            resume=loaded.health.position,
            on_state=self._take_log_state,
            on_loss=lambda why: log.warning("lines of the kernel log may be missing", reason=why),
        )
        self._pci = PciSysfs(root=Path(settings.sysfs_root))
        clock = time.monotonic
        self._api = NodeApi(
            access=find_access(
                kubeconfig=settings.kubeconfig,
                context=settings.context,
                service_account=Path(settings.service_account),
                environ=environ,
            ),
            node=settings.node,
            timeout=settings.request_timeout,
            clock=clock,
        )
        self._self_metrics = SelfMetrics(node=settings.node)
        self._page = MetricsPage(
            read=self._snapshot,
            dcgm=dcgm_metrics(settings, catalogue=catalogue, log=log),
            extra=self._more_blocks,
            interval=settings.metrics_interval,
            wall=time.time,
            clock=clock,
        )
        self._events = EventRecorder(
            api=self._api,
            clock=clock,
            wall=time.time,
            log=log,
            count=lambda result: self._self_metrics.events.labels(result).inc(),
        )
        self._publisher = Publisher(
            api=self._api,
            heartbeat=settings.heartbeat,
            coalesce=settings.coalesce,
            counts_interval=settings.counts_interval,
            clock=clock,
            wall=time.time,
            random=random.Random(),  # noqa: S311 - spreads writes over time
            log=log,
            read=self._read_node,
            wrote=self._wrote,
            failed=lambda: self._self_metrics.publishes.labels("error").inc(),
        )
        self._saver = Saver(
            Path(settings.state_file),
            latest=lambda: self.monitor.health if self.monitor.checked else None,
            wrote=self._state_written,
        )
        self._look_at = asyncio.Event()
        self._node_wanted = asyncio.Event()
        self._desired: Desired | None = None
        self._published = False
        self._stop = asyncio.Event()
        self.port = 0
        self.monitor = Monitor(
            loaded=loaded,
            boot_id=self._kernel_log.boot_id,
            expected_gpus=settings.expected_gpus,
            info_age=settings.info_age,
            catalogue=catalogue,
            pods_of=self._pods_of,
            wall=time.time,
            changed=self._changed,
            say=self._events.say,
            log=log,
        )
        self._events.assume(self.monitor.health.faults)
        self._public = PublicServer(page=self._page.serve, ready=self._not_ready)
        self._gpus = Gpus(
            settings=settings,
            catalogue=catalogue,
            monitor=self.monitor,
            get=cluster_get(self._api),
            on_view=self._page.take_nvml,
            on_pods=self._page.touch,
            on_new_gpu=self._end_for_new_gpu,
            log=log,
        )
        self._local = LocalServer(
            set_healthy=self._set_healthy,
            release=self._gpus.release,
            check=self._check,
            wall=time.time,
        )

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT; then write what is not written yet.

        Raises:
            ListenError: the metrics address is taken.
        """
        stop = self._stop
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with self._api:
            self.port = await self._public.start(*self._settings.listen_address)
            self._log.info(
                "node-agent runs", node=self._settings.node, port=self.port, pid=os.getpid()
            )
            await self._open_socket()
            try:
                await self._run_tasks(stop)
            finally:
                await self._local.stop()
                await self._public.stop()
                await self._finish()

    async def _run_tasks(self, stop: asyncio.Event) -> None:
        jobs: tuple[Coroutine[None, None, None], ...] = (
            self._kernel_log.run(self.monitor.take_batch),
            self._watch_pci(),
            self._watch_node(),
            self._publisher.run(),
            self._events.run(),
            self._saver.run(),
            self._age(),
            self._measure_lag(),
            self._page.run(),
            *self._gpus.jobs(),
        )
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
            await stop.wait()
            self._log.info("stopping")
            for task in tasks:
                task.cancel()

    async def _open_socket(self) -> None:
        if not self._settings.socket:
            self.monitor.set_view(View.LOCAL_SOCKET, "switched off by the setting `socket`")
            return
        try:
            await self._local.start(Path(self._settings.socket))
            self.monitor.set_view(View.LOCAL_SOCKET, "")
        except ListenError as error:
            self.monitor.set_view(View.LOCAL_SOCKET, str(error))

    async def _finish(self) -> None:
        """The last words: what the Node does not show yet, and the state file."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self._publisher.flush()
        await self._saver.once()

    # -- the state changed -----------------------------------------------------------------

    def _changed(self) -> None:
        health = self.monitor.health
        if self.monitor.checked:
            there = self._publisher.there
            written = there.written if there is not None else frozenset()
            self._desired = desired(
                health, self.monitor.views, written=written, indexes=self.monitor.indexes
            )
            self._publisher.submit(self._desired)
        self._saver.changed(health)
        self._look_at.set()
        if self.monitor.wants_node:
            self._node_wanted.set()
        else:
            self._node_wanted.clear()

    def _take_log_state(self, state: SourceState) -> None:
        if state.working:
            self._log.info("reading the kernel log", source=state.source)
        self.monitor.take_log_state(state)

    def _read_node(self, view: NodeView) -> None:
        self.monitor.take_node(view)

    def _wrote(self, wanted: Desired, view: NodeView) -> None:
        if not self._published:
            self._log.info("first full check is published", conditions=_summary(wanted.conditions))
            self._published = True
        self._self_metrics.publishes.labels("ok").inc()
        self._self_metrics.published.set_to_current_time()
        self._events.published(wanted.faults, uid=view.uid)

    def _pods_of(self, report: XidReport) -> tuple[str, ...]:
        return self._gpus.pods_of(report)

    def _end_for_new_gpu(self) -> None:
        if self._settings.restart_for_new_gpu:
            self._log.warning("ending, to be started anew with the new GPU's device node")
            self._stop.set()

    def _check(self) -> tuple[Check, ...]:
        return checks(
            self.monitor.views,
            nvml=self.monitor.nvml,
            log_source=self._kernel_log.state.source,
            devices=len(self.monitor.devices),
        )

    async def _set_healthy(self, before: float) -> SetHealthy:
        answer = self.monitor.set_healthy(before)
        await self._saver.once()  # an operator who was told "cleared" must not see it again
        return answer

    # -- tasks -----------------------------------------------------------------------------

    async def _watch_pci(self) -> None:
        """A look at PCI each interval. It may block on a dying bus, so it has a thread."""
        while True:
            try:
                devices = await asyncio.to_thread(self._pci.scan)
                if _trouble(self.monitor.would_be(devices)) - _trouble(self.monitor.health):
                    # A device in the middle of a reset may be away for a moment.
                    await asyncio.sleep(self._settings.pci_confirm)
                    devices = await asyncio.to_thread(self._pci.scan)
                self.monitor.take_scan(devices)
            except PciUnavailableError as error:
                self.monitor.take_scan_failure(str(error))
            await asyncio.sleep(self._settings.pci_interval)

    async def _watch_node(self) -> None:
        """While a fault is open, look for an operator's word and the kubelet's boot id.

        A well node costs no such request: what the heartbeat's answer says is enough. A
        node with a fault costs one GET from the API server's cache each 30 s.
        """
        while True:
            await self._node_wanted.wait()
            await asyncio.sleep(self._settings.node_interval * random.uniform(0.9, 1.1))  # noqa: S311
            try:
                view = await self._api.read()
            except ApiError as error:
                self._log.debug("cannot read the node", error=str(error))
                continue
            self.monitor.take_node(view)
            self._publisher.look(view)

    async def _age(self) -> None:
        """Look again when mere age clears something."""
        while True:
            self._look_at.clear()
            at = self.monitor.next_look
            wait = None if at is None else max(0.0, at - time.time()) + 0.001
            try:
                async with asyncio.timeout(wait):
                    await self._look_at.wait()
            except TimeoutError:
                self.monitor.look()
            if at is not None:
                # A storm changes the state all the time; ages are in hours.
                await asyncio.sleep(1.0)

    def _state_written(self, failure: str) -> None:
        self._self_metrics.state_writes.labels("error" if failure else "ok").inc()
        self.monitor.set_view(View.STATE_FILE, failure)

    async def _measure_lag(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(_LAG_SECONDS)
            self._self_metrics.loop_lag.set(max(0.0, time.monotonic() - before - _LAG_SECONDS))

    # -- endpoints -------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            health=self.monitor.health,
            devices=self.monitor.devices,
            conditions=self._desired.conditions if self._desired else (),
            views=self.monitor.views,
            counters=self._kernel_log.counters,
            source=self._kernel_log.state,
            nvml=self.monitor.nvml,
            pods=self._gpus.pods,
        )

    def _more_blocks(self) -> Iterable[Block]:
        yield from source_blocks(self.monitor.merger)
        yield from self._self_metrics.blocks()

    def _not_ready(self) -> str:
        if not self.monitor.checked:
            return "the first full check is not over"
        return "" if self._published else "nothing is published yet"


def _trouble(health: NodeHealth) -> set[str]:
    return {key for key, fault in health.faults.items() if fault.kind == "lost"}


def _summary(conditions: tuple[Condition, ...]) -> dict[str, str]:
    return {c.type.value: c.status.value for c in conditions}
