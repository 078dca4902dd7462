"""A supervisor with real children over the fake driver."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping

from node_agent.nvml.conversation import Deadlines
from node_agent.nvml.model import NvmlEvent, NvmlState, NvmlView, Reading
from node_agent.nvml.process import ChildProcess, start_child
from node_agent.nvml.supervisor import Cadence, Supervisor
from testbed.fake_nvml import FakeNvml


# Polls as fast as one follows the other, so that no test waits for a cadence.
CADENCE = Cadence(fast=0.05, slow=0.05, rare=0.05, gpm=0.15, processes=0.05, enumerations=0.0)
DEADLINES = Deadlines(call=50.0, init=50.0, silence=50.0)
"""Nothing hangs, however slow the machine; for tests of what hangs: `SHORT`."""
SHORT = Deadlines(call=1.0, init=2.0, silence=20.0)


class Watched:
    """A running supervisor; `until` waits for a view in which something is true."""

    def __init__(
        self,
        driver: FakeNvml,
        *,
        env: Mapping[str, str] | None = None,
        deadlines: Deadlines = DEADLINES,
    ) -> None:
        self.driver = driver
        self.children: list[ChildProcess] = []
        self.events: asyncio.Queue[NvmlEvent] = asyncio.Queue()
        self.views: list[NvmlView] = []
        self._env = {**os.environ, **(driver.env if env is None else env)}
        self._changed = asyncio.Event()
        self.supervisor = Supervisor(
            start=self._start,
            on_view=self._on_view,
            on_event=self.events.put_nowait,
            cadence=CADENCE,
            deadlines=deadlines,
        )
        self.task = asyncio.create_task(self.supervisor.run())

    async def _start(self) -> ChildProcess:
        child = await start_child(proc=self.driver.proc, devices=self.driver.devices, env=self._env)
        self.children.append(child)
        return child

    def _on_view(self, view: NvmlView) -> None:
        self.views.append(view)
        self._changed.set()

    @property
    def view(self) -> NvmlView:
        return self.supervisor.view

    def reading(self, gpu: int) -> Reading:
        return self.view.readings[self.driver.uuid(gpu)]

    async def until(self, true: Callable[[NvmlView], object], what: str = "it") -> NvmlView:
        async with asyncio.timeout(60):
            while not true(self.view):
                self._changed.clear()
                try:
                    await self._changed.wait()
                except asyncio.CancelledError:
                    raise AssertionError(f"{what} never came true: {self.view}") from None
        return self.view

    async def in_state(self, state: NvmlState) -> NvmlView:
        return await self.until(lambda view: view.state is state, state)

    async def next_poll(self) -> NvmlView:
        """After every group was read at least once more from now on."""
        calls = ("nvmlDeviceGetTemperature", "nvmlDeviceGetEccMode", "nvmlDeviceValidateInforom")
        before = {name: self._count(name) for name in calls}
        return await self.until(
            lambda _: all(self._count(name) > before[name] + 8 for name in calls), "a poll"
        )

    def _count(self, call: str) -> int:
        stats = self.view.calls.get(call)
        return stats.count if stats else 0

    async def close(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
