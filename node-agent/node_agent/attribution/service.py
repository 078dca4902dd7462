"""Keeps one :class:`PodMap` up to date, and never makes anyone wait for it.

Data flows: (kubelet, /proc, API server, NVML's devices) -> :class:`Sources` -> the map. Each
source hands over its latest answer as a whole, and the map is built anew from all of them. A
source that fails turns off its lookup with the reason, said once; what it said last stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from node_agent.attribution.build import Identities, Sources, build_pod_map
from node_agent.attribution.cgroups import ProcReader
from node_agent.attribution.cluster import (
    DraKey,
    Get,
    decode_pods,
    decode_slices,
    pods_path,
    slices_path,
)
from node_agent.attribution.cluster_reader import ClusterReader
from node_agent.attribution.device_ids import Patterns
from node_agent.attribution.kubelet import Kubelet, Stats
from node_agent.attribution.model import CLUSTER_LOOKUPS, Lookup, PodMap, ProcessOwner
from node_agent.attribution.pod_resources import Pod
from node_agent.attribution.processes import Processes


if TYPE_CHECKING:
    from random import Random

    from structlog.typing import FilteringBoundLogger

    from node_agent.nvml.model import NvmlView


class Config(NamedTuple):
    """What to look at. ``socket`` or ``log_root`` None: not at all.

    ``watched``: folders that change when the kubelet hands out devices. ``cluster``: which of
    PODS and RESOURCE_SLICES the API server is asked for. Seconds: ``interval`` between two
    questions to the kubelet when nothing happens, ``timeout`` of one, and the two gaps, the
    least time between two questions.
    """

    node: str
    socket: Path | None
    watched: tuple[Path, ...] = ()
    proc_root: Path = Path("/proc")
    log_root: Path | None = None
    resources: Patterns = Patterns("nvidia.com/gpu,nvidia.com/gpu.shared,nvidia.com/mig-*")
    labels: Patterns = Patterns("")
    cluster: frozenset[Lookup] = frozenset()
    interval: float = 30.0
    timeout: float = 10.0
    kubelet_gap: float = 1.0
    cluster_gap: float = 10.0


class Attribution:
    """Who uses which GPU now: ``current``.

    Args:
        config: what to look at.
        get: asks the API server; None where it may not be asked.
        on_change: gets each new map that differs in more than its time.
        clock: seconds that only grow.
        wall: unix seconds.
        random: spreads questions to the API server over time.
        log: the agent's own log.
    """

    def __init__(
        self,
        *,
        config: Config,
        get: Get | None,
        on_change: Callable[[PodMap], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
        random: Random,
        log: FilteringBoundLogger,
    ) -> None:
        self._on_change = on_change
        self._wall = wall
        self._log = log
        self._off = _first_words(config, can_ask=get is not None)
        self._sources = Sources(off=_without_empty(self._off))
        self.current = build_pod_map(self._sources)
        self._processes_at = 0.0
        self._kubelet = self._make_kubelet(config, clock) if config.socket is not None else None
        self._processes = Processes(
            proc=ProcReader(root=config.proc_root),
            log_root=config.log_root,
            deliver=lambda found: self._replace(processes=found),
            name=lambda names: self._replace(names=names),
            nameless=self._nameless,
            report=lambda reason: self._switch(Lookup.PROCESSES, reason),
            clock=clock,
        )
        self._readers = {} if get is None else self._make_readers(config, get, random)

    @property
    def stats(self) -> Stats:
        """Counts about the kubelet."""
        return self._kubelet.stats if self._kubelet is not None else Stats()

    async def run(self) -> None:
        """Work until cancelled. What fails stands in ``current.off``."""
        async with asyncio.TaskGroup() as group:
            if self._kubelet is not None:
                group.create_task(self._kubelet.run())
            group.create_task(self._processes.run())
            for reader in self._readers.values():
                group.create_task(reader.run())

    def take_view(self, view: NvmlView) -> None:
        """NVML's latest: its devices are joined at once, its processes are looked up soon."""
        if view.devices != self._sources.devices:
            self._replace(devices=view.devices)
        if view.processes_at != self._processes_at:
            self._processes_at = view.processes_at
            if self._processes.take(frozenset(process.pid for process in view.processes)):
                self.look()

    def look(self) -> None:
        """Something happened (a fault): ask the kubelet soon."""
        if self._kubelet is not None:
            self._kubelet.look()

    def owner_of(self, pid: int) -> ProcessOwner | None:
        """The pod of any process of the host, for a fault that names one.

        Reads two small files of ``/proc``. A process that has died is remembered for ten
        minutes if NVML had listed it.
        """
        return Identities(self._sources).owner(self._processes.pods_of(pid))

    # -- parts -----------------------------------------------------------------------------

    def _make_kubelet(self, config: Config, clock: Callable[[], float]) -> Kubelet | None:
        if config.socket is None:
            return None
        return Kubelet(
            socket=config.socket,
            watched=config.watched,
            wanted=config.resources.match,
            interval=config.interval,
            gap=config.kubelet_gap,
            timeout=config.timeout,
            deliver=self._take_pods,
            report=lambda reason: self._switch(Lookup.POD_RESOURCES, reason),
            clock=clock,
            log=self._log,
        )

    def _make_readers(
        self, config: Config, get: Get, random: Random
    ) -> dict[Lookup, ClusterReader]:
        def take_pods(body: bytes) -> None:
            self._replace(infos=decode_pods(body, labels=config.labels))

        def take_slices(body: bytes) -> None:
            self._replace(slices=decode_slices(body))

        def reader(lookup: Lookup, path: str, resource: str, take: Any) -> ClusterReader:
            return ClusterReader(
                path=path,
                resource=resource,
                get=get,
                take=take,
                report=lambda reason: self._switch(lookup, reason),
                gap=config.cluster_gap,
                random=random,
            )

        slices = "resourceslices.resource.k8s.io"
        made = {
            Lookup.PODS: reader(Lookup.PODS, pods_path(config.node), "pods", take_pods),
            Lookup.RESOURCE_SLICES: reader(
                Lookup.RESOURCE_SLICES, slices_path(config.node), slices, take_slices
            ),
        }
        return {lookup: made[lookup] for lookup in made if lookup in config.cluster}

    # -- the map ---------------------------------------------------------------------------

    def _take_pods(self, pods: tuple[Pod, ...]) -> None:
        """The kubelet's answer, which names pods without their uid.

        What is known of a name that appears anew is perhaps of a pod before it (a StatefulSet
        gives the same names again): it is forgotten, and asked for again.
        """
        before = {(pod.namespace, pod.name) for pod in self._sources.pods}
        appeared = {(pod.namespace, pod.name) for pod in pods} - before
        infos = tuple(i for i in self._sources.infos if (i.namespace, i.name) not in appeared)
        self._replace(pods=pods, at=self._wall(), infos=infos)

    def _switch(self, lookup: Lookup, reason: str) -> None:
        """A lookup works (empty reason) or does not."""
        if self._off[lookup] == reason:
            return
        self._off[lookup] = reason
        if reason:
            self._log.debug("lookup of pods is off", lookup=lookup.value, reason=reason)
        else:
            self._log.debug("lookup of pods works", lookup=lookup.value)
        self._replace(off=_without_empty(self._off))

    def _replace(self, **changes: Any) -> None:
        """A source has a new answer."""
        self._sources = self._sources._replace(**changes)
        before = self.current
        self.current = build_pod_map(self._sources)
        for lookup, reader in self._readers.items():
            reader.missing(_unknown(lookup, self._sources, self.current))
        if msgspec.structs.replace(self.current, at=before.at) != before:
            self._on_change(self.current)

    def _nameless(self) -> frozenset[str]:
        owners = self.current.pids.values()
        return frozenset(owner.pod_uid for owner in owners if owner.pod is None)


def _first_words(config: Config, *, can_ask: bool) -> dict[Lookup, str]:
    """Why nothing is known before anyone was asked."""
    words = {
        Lookup.POD_RESOURCES: "the kubelet has not answered yet",
        Lookup.PROCESSES: "NVML has listed no processes yet",
    }
    if config.socket is None:
        words[Lookup.POD_RESOURCES] = "switched off by the setting `kubelet_folder`"
    for lookup in CLUSTER_LOOKUPS:
        words[lookup] = "the API server has not answered yet"
        if lookup not in config.cluster:
            words[lookup] = "switched off by the setting `cluster_lookups`"
        elif not can_ask:
            words[lookup] = "there is no way to the API server"
    return words


def _without_empty(words: dict[Lookup, str]) -> dict[Lookup, str]:
    return {lookup: reason for lookup, reason in words.items() if reason}


def _unknown(lookup: Lookup, sources: Sources, current: PodMap) -> frozenset[Hashable]:
    """What is in use on this node and in no answer of the API server."""
    if lookup is Lookup.RESOURCE_SLICES:
        return frozenset(
            key
            for pod in sources.pods
            for container in pod.containers
            for claim in container.claims
            for device in claim.devices
            if (key := DraKey(device.driver, device.pool, device.device)) not in sources.slices
        )
    infos = {(info.namespace, info.name) for info in sources.infos}
    uids = {uid for info in sources.infos for uid in info.uids}
    pods = {(pod.namespace, pod.name) for pod in sources.pods}
    owners = {owner.pod_uid for owner in current.pids.values()}
    return frozenset[Hashable](pods - infos) | (owners - uids)
