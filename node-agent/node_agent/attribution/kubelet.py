"""Asks the kubelet who holds which device: when something changed, and slowly otherwise.

Never more often than the gap. RESOURCE_EXHAUSTED (the kubelet takes 100 questions a second
from all programs of the node together) and other failures back off; after the former nothing
hurries the next question, after the others a change does: that is how the new socket of a
restarted kubelet is found at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from node_agent.attribution.channel import Channel, ChannelError, OverloadedError
from node_agent.attribution.pod_resources import LIST_METHOD, LIST_REQUEST, Pod, decode_list
from node_agent.attribution.watch import watch_folders
from node_agent.attribution.wire import WireError


if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

MAX_REPLY: Final = 16 << 20
LONGEST_PAUSE: Final = 60.0
_LARGE: Final = 1 << 18
"""Answers from this size on are read in a thread: 16 MiB take a second."""


class Stats(msgspec.Struct):
    """Counts since start, and the last answer, for the agent's own metrics."""

    lists: int = 0
    errors: int = 0
    dials: int = 0
    last_seconds: float = 0.0
    last_bytes: int = 0


class Kubelet:
    """The PodResources socket of one kubelet.

    Args:
        socket: its path; the folder that it is in is watched.
        watched: more folders of which a change means that devices were handed out.
        wanted: whether a resource of this name is a GPU.
        interval: seconds between two questions when nothing happens.
        gap: the least.
        timeout: deadline of one question in seconds.
        deliver: gets the pods that hold devices or claims, all at once.
        report: gets why it does not work, or the empty text.
        clock: seconds that only grow.
        log: the agent's own log.
    """

    def __init__(
        self,
        *,
        socket: Path,
        watched: tuple[Path, ...],
        wanted: Callable[[str], bool],
        interval: float,
        gap: float,
        timeout: float,
        deliver: Callable[[tuple[Pod, ...]], None],
        report: Callable[[str], None],
        clock: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._channel = Channel(path=socket, max_reply=MAX_REPLY)
        self._folders = (socket.parent, *watched)
        self._wanted = wanted
        self._interval = interval
        self._gap = gap
        self._timeout = timeout
        self._deliver = deliver
        self._report = report
        self._clock = clock
        self._log = log
        self._something = asyncio.Event()
        self.stats = Stats()

    def look(self) -> None:
        """Something happened: ask soon."""
        self._something.set()

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._ask())

    async def _ask(self) -> None:
        failures = 0
        try:
            while True:
                self._something.clear()
                error = await self._list()
                self._report("" if error is None else str(error))
                failures = 0 if error is None else failures + 1
                pause = pause_after(failures, interval=self._interval, gap=self._gap)
                if isinstance(error, OverloadedError):
                    await asyncio.sleep(pause)
                    continue
                await asyncio.sleep(self._gap)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause - self._gap):
                        await self._something.wait()
        finally:
            self._channel.close()

    async def _list(self) -> ChannelError | WireError | None:
        begun = self._clock()
        self.stats.lists += 1
        try:
            reply = await self._channel.call(LIST_METHOD, LIST_REQUEST, timeout=self._timeout)
            self.stats.last_bytes = len(reply)
            pods = await self._decode(reply)
        except (ChannelError, WireError) as error:
            self.stats.errors += 1
            return error
        finally:
            self.stats.last_seconds = self._clock() - begun
            self.stats.dials = self._channel.dials
        self._deliver(_holders(pods))
        return None

    async def _decode(self, reply: memoryview) -> tuple[Pod, ...]:
        if len(reply) < _LARGE:
            return decode_list(reply, wanted=self._wanted)
        return await asyncio.to_thread(decode_list, reply, wanted=self._wanted)

    async def _watch(self) -> None:
        try:
            await watch_folders(self._folders, changed=self.look, again=self._interval)
        except OSError as error:
            self._log.warning(
                "cannot watch the kubelet's folders; it is asked at intervals only",
                reason=str(error),
                interval_seconds=self._interval,
            )


def pause_after(failures: int, *, interval: float, gap: float) -> float:
    """Seconds until the next question: the interval; after failures twice the gap, doubling."""
    if failures == 0:
        return max(interval, gap)
    return min(gap * 2.0 ** min(failures, 16), max(LONGEST_PAUSE, gap))


def _holders(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """Pods that hold a device or a claim: most pods of a node hold none."""
    return tuple(pod for pod in pods if any(c.devices or c.claims for c in pod.containers))
