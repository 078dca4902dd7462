"""Looks up the pods of the processes that NVML lists, whenever it has listed them anew.

A pid is looked up each time, since it may be another process by now. What was found is
remembered for a while: a fault is often read after its process has died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from node_agent.attribution.cgroups import CgroupPod, ProcReader
from node_agent.attribution.pod_folders import Names, read_names


REMEMBERED_SECONDS: Final = 600.0
MAX_REMEMBERED: Final = 4096

Found = Mapping[int, tuple[CgroupPod, ...]]


class Processes:
    """The processes on the GPUs of one node.

    Args:
        proc: the procfs.
        log_root: the kubelet's log folders, for names of pods; None: do not look.
        deliver: gets what was found, by pid; processes outside pods are left out.
        name: gets the names of pods and containers after they were read again.
        nameless: uids of the pods that are not known by name now.
        report: gets why it does not work, or the empty text.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        *,
        proc: ProcReader,
        log_root: Path | None,
        deliver: Callable[[Found], None],
        name: Callable[[Names], None],
        nameless: Callable[[], frozenset[str]],
        report: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._proc = proc
        self._log_root = log_root
        self._deliver = deliver
        self._name = name
        self._nameless = nameless
        self._report = report
        self._clock = clock
        self._pids: frozenset[int] = frozenset()
        self._wanted = asyncio.Event()
        self._searched: frozenset[str] = frozenset()
        self._remembered: dict[int, tuple[float, tuple[CgroupPod, ...]]] = {}

    def take(self, pids: frozenset[int]) -> bool:
        """NVML has listed these now. True if one is new."""
        is_new = bool(pids - self._pids)
        self._pids = pids
        self._wanted.set()
        return is_new

    def pods_of(self, pid: int) -> tuple[CgroupPod, ...]:
        """The pods of any process: as it is now, or as it was if it died lately."""
        if self._proc.trouble():
            return ()
        pods = self._proc.pods_of(pid)
        if pods:
            return pods
        at, pods = self._remembered.get(pid, (float("-inf"), ()))
        return pods if self._clock() - at <= REMEMBERED_SECONDS else ()

    async def run(self) -> None:
        """Look up until cancelled. /proc may block for a moment, so it has a thread."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            trouble, found = await asyncio.to_thread(_read, self._proc, self._pids)
            self._report(trouble)
            self._remember(found)
            self._deliver(found)
            await self._find_names()

    def _remember(self, found: Found) -> None:
        now = self._clock()
        for pid, pods in found.items():
            self._remembered.pop(pid, None)  # the newest stand last
            self._remembered[pid] = (now, pods)
        for pid in [*self._remembered][: max(0, len(self._remembered) - MAX_REMEMBERED)]:
            del self._remembered[pid]

    async def _find_names(self) -> None:
        """Read the folders again only for a uid that they were not searched for yet."""
        nameless = self._nameless()
        is_new = bool(nameless - self._searched)
        self._searched = nameless
        if is_new and self._log_root is not None:
            self._name(await asyncio.to_thread(read_names, self._log_root))


def _read(proc: ProcReader, pids: frozenset[int]) -> tuple[str, Found]:
    trouble = proc.trouble()
    if trouble:
        return trouble, {}
    found = {pid: proc.pods_of(pid) for pid in sorted(pids)}
    return "", {pid: pods for pid, pods in found.items() if pods}
