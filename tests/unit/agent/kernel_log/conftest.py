"""A kernel log under test: run it, write to it, wait for what it delivers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from node_agent.sources.kernel_log import (
    Batch,
    KernelLog,
    KernelLogPaths,
    Mode,
    Moment,
    Position,
    SourceState,
)
from node_agent.xid.catalogue import Catalogue, load_catalogue
from node_agent.xid.episodes import EpisodeCounter


if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    Follow = Callable[..., AbstractAsyncContextManager["Followed"]]

BOOT_ID = "11111111-2222-3333-4444-555555555555"
NOW = Moment(wall=1_800_000_000.0, boot=50_000.0)


class FixedClock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        """Start at NOW."""
        self.moment = NOW

    def now(self) -> Moment:
        return self.moment


class Followed:
    """What a running kernel log has delivered so far."""

    def __init__(self, log: KernelLog, states: list[SourceState], losses: list[str]) -> None:
        """Start the log; ``states`` and ``losses`` are filled by it."""
        self.log = log
        self._task = asyncio.create_task(log.run(self.deliver))
        self._task.add_done_callback(lambda _: self._delivered.set())
        self.states = states
        self.losses = losses
        self.batches: list[Batch] = []
        self._delivered = asyncio.Event()
        self._episodes = EpisodeCounter()
        self.episodes = 0

    def deliver(self, batch: Batch) -> None:
        self.batches.append(batch)
        for s in batch.sightings:
            seen = self._episodes.add(s.report, first=s.first, last=s.last, lines=s.lines)
            self.episodes += seen.new_episode
        self._delivered.set()

    @property
    def codes(self) -> list[int | None]:
        """One entry a line, in order."""
        return [s.report.code for b in self.batches for s in b.sightings for _ in range(s.lines)]

    @property
    def caught_up(self) -> bool:
        return bool(self.batches) and self.batches[-1].caught_up

    @property
    def position(self) -> Position | None:
        return self.batches[-1].position

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a delivery that makes the condition true; the test's time-out is the limit."""
        while not condition():
            assert not self._task.done(), self._task
            self._delivered.clear()
            await self._delivered.wait()

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def until_codes(self, *codes: int | None) -> None:
        await self.until(lambda: len(self.codes) >= len(codes))
        assert self.codes == list(codes)

    async def until_state(self, condition: Callable[[SourceState], bool]) -> None:
        """States change rarely and without a delivery: look again at each turn of the loop."""
        while not condition(self.log.state):  # noqa: ASYNC110 -- as said
            await asyncio.sleep(0.001)


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return load_catalogue()


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def follow(tmp_path: Path, catalogue: Catalogue, clock: FixedClock) -> Follow:
    """What runs a kernel log within an ``async with`` block."""
    boot_id = tmp_path / "boot_id"
    boot_id.write_text(BOOT_ID + "\n")

    @contextlib.asynccontextmanager
    async def run(
        mode: Mode, path: Path, *, resume: Position | None = None, retry_seconds: float = 30.0
    ) -> AsyncIterator[Followed]:
        states: list[SourceState] = []
        losses: list[str] = []
        paths = KernelLogPaths(kmsg=path, files=(path,), fifo=path, boot_id=boot_id)
        log = KernelLog(
            catalogue=catalogue,
            mode=mode,
            paths=paths,
            resume=resume,
            clock=clock,
            retry_seconds=retry_seconds,
            on_state=states.append,
            on_loss=losses.append,
        )
        followed = Followed(log, states, losses)
        try:
            yield followed
        finally:
            await followed.stop()

    return run
