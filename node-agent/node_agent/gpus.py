"""The GPU side of the agent: NVML, the driver's tracepoints, and the pods that use GPUs.

Builds the three and joins them with the monitor: each new view of NVML is judged, lends its
devices to the attribution of pods, and reaches the metrics page; each report of a fault is told
which pods it hit. Whatever is missing is a view that is off, and nothing else.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from node_agent.attribution.model import Lookup
from node_agent.attribution.service import Attribution
from node_agent.health.conditions import View
from node_agent.monitor import NOT_YET
from node_agent.nvml.conversation import Deadlines
from node_agent.nvml.process import start_child
from node_agent.nvml.supervisor import Cadence, Supervisor
from node_agent.parts import attribution_config
from node_agent.sources.kernel_log import SystemClock
from node_agent.sources.tracepoint import INSTANCE, Tracepoints


if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from structlog.typing import FilteringBoundLogger

    from node_agent.attribution.cluster import Get
    from node_agent.attribution.model import PodMap
    from node_agent.monitor import Monitor
    from node_agent.nvml.model import NvmlView
    from node_agent.settings import Settings
    from node_agent.xid.catalogue import Catalogue
    from node_agent.xid.parse import XidReport

FIRST_ANSWER_SECONDS: Final = 15.0
"""How long the first publication waits for NVML: without persistence mode it takes seconds."""
_SWITCHED_OFF: Final = "switched off by the setting `{}`"
_FIRST_WORDS: Final = " yet"
"""How a lookup's reason ends before anyone was asked."""
_LOOKUPS: Final = {
    Lookup.POD_RESOURCES: View.POD_RESOURCES,
    Lookup.PROCESSES: View.PROCESSES,
    Lookup.PODS: View.PODS,
    Lookup.RESOURCE_SLICES: View.RESOURCE_SLICES,
}


class Gpus:
    """NVML, tracepoints and pods of one node.

    Args:
        settings: all of them.
        catalogue: what codes mean.
        monitor: gets the evidence. Its ``pods_of`` should be :meth:`pods_of`.
        get: asks the API server about pods; None where it may not be asked.
        on_view: told of each view of NVML, after the monitor.
        on_pods: told of each new map of pods.
        on_new_gpu: the driver has a GPU that this container has no device node for.
        tracing: name of our own instance of tracefs.
        log: the agent's own log.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        catalogue: Catalogue,
        monitor: Monitor,
        get: Get | None,
        on_view: Callable[[NvmlView], None],
        on_pods: Callable[[], None],
        on_new_gpu: Callable[[], None],
        log: FilteringBoundLogger,
        tracing: str = INSTANCE,
    ) -> None:
        self._monitor = monitor
        self._on_view = on_view
        self._on_pods = on_pods
        self._on_new_gpu = on_new_gpu
        self._log = log
        self._unreachable = 0
        self._resume: asyncio.TimerHandle | None = None
        self._supervisor = _supervisor(settings, self, monitor) if settings.nvml else None
        if self._supervisor is None:
            monitor.set_view(View.NVML, _SWITCHED_OFF.format("nvml"), absent=True)
        self._tracepoints = (
            Tracepoints(
                root=Path(settings.tracefs),
                instance=tracing,
                catalogue=catalogue,
                clock=SystemClock(),
                on_state=self.take_trace_state,
            )
            if settings.tracefs
            else None
        )
        if self._tracepoints is None:
            monitor.set_view(View.TRACEPOINT, _SWITCHED_OFF.format("tracefs"), absent=True)
        self._attribution = Attribution(
            config=attribution_config(settings),
            get=get,
            on_change=self.take_pods,
            clock=time.monotonic,
            wall=time.time,
            random=random.Random(),  # noqa: S311 - spreads questions over time
            log=log,
        )
        self.take_pods(self._attribution.current)

    @property
    def pods(self) -> PodMap:
        """Who uses what, as far as is known now."""
        return self._attribution.current

    def jobs(self) -> tuple[Coroutine[None, None, None], ...]:
        """What has to run. Cancelled, they close every handle."""
        jobs = [self._attribution.run()]
        if self._supervisor is not None:
            jobs += [self._supervisor.run(), self._lose_patience()]
        if self._tracepoints is not None:
            jobs.append(self._tracepoints.run(self._monitor.take_trace))
        return tuple(jobs)

    def pods_of(self, report: XidReport) -> tuple[str, ...]:
        """The pods that a fault of this moment has hit; the owner's alone if it names a process."""
        uuid = report.gpu_uuid or self._monitor.health.uuids.get(report.pci, "")
        owner = self._attribution.owner_of(report.pid) if report.pid is not None else None
        pods = self.pods.hit_by(uuid, gi=report.gi, owner=owner.pod if owner else None)
        if not pods:
            self._attribution.look()
        return pods

    async def release(self, seconds: float) -> str:
        """Let go of the GPUs for so long, so that they can be reset; 0: take them again.

        Returns:
            Empty when no process of ours holds the driver; else who does, and why.
        """
        if self._resume is not None:
            self._resume.cancel()
        self._pause_tracing(paused=seconds > 0)
        if seconds > 0:
            loop = asyncio.get_running_loop()
            self._resume = loop.call_later(seconds, lambda: self._pause_tracing(paused=False))
        self._log.info("GPUs released" if seconds else "GPUs taken again", seconds=seconds)
        return await self._supervisor.release(seconds) if self._supervisor is not None else ""

    # -- what comes in ---------------------------------------------------------------------

    def take_view(self, view: NvmlView) -> None:
        """NVML has something new."""
        self._monitor.take_nvml(view)
        self._attribution.take_view(view)
        self._show_lookups(self.pods)
        self._on_view(view)
        missing = max(0, (view.bound or 0) - len(view.devices) - len(view.unanswered))
        if missing > self._unreachable:
            self._log.warning(
                "the driver has GPUs that have no device node here; a container gets them when "
                "it starts",
                gpus=missing,
            )
            self._on_new_gpu()
        self._unreachable = missing

    def take_pods(self, pods: PodMap) -> None:
        """The map of pods has changed."""
        self._show_lookups(pods)
        self._on_pods()

    def take_trace_state(self, reason: str, *, absent: bool = False) -> None:
        """The tracepoints began or ceased to work."""
        self._monitor.set_view(View.TRACEPOINT, reason, absent=absent)
        self._monitor.look()

    # -- inside ----------------------------------------------------------------------------

    def _show_lookups(self, pods: PodMap) -> None:
        for lookup, view in _LOOKUPS.items():
            reason = pods.off.get(lookup, "")
            absent = reason.startswith(_SWITCHED_OFF.partition("{")[0])
            if reason.endswith(_FIRST_WORDS):
                reason = NOT_YET
                if lookup is Lookup.PROCESSES and self._monitor.views[View.NVML].absent:
                    reason, absent = "NVML lists the processes, and there is none", True
            self._monitor.set_view(view, reason, absent=absent)

    def _pause_tracing(self, *, paused: bool) -> None:
        if self._tracepoints is not None:
            self._tracepoints.pause(paused=paused)

    async def _lose_patience(self) -> None:
        """A driver that is slow to answer does not hold up what the kernel log says."""
        await asyncio.sleep(FIRST_ANSWER_SECONDS)
        if self._monitor.views[View.NVML].reason == NOT_YET:
            self._monitor.set_view(View.NVML, "NVML has not answered since the agent started")
            self._monitor.look()


def _supervisor(settings: Settings, gpus: Gpus, monitor: Monitor) -> Supervisor:
    fast, slow = settings.nvml_interval, settings.nvml_slow_interval
    return Supervisor(
        start=lambda: start_child(proc=Path(settings.proc_root), devices=Path(settings.dev_root)),
        on_view=gpus.take_view,
        on_event=monitor.take_nvml_event,
        cadence=Cadence(fast=fast, slow=slow, gpm=max(fast, min(slow, Cadence().gpm))),
        deadlines=Deadlines(call=settings.nvml_timeout),
    )
