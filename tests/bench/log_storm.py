"""A storm in a plain kernel log, through the agent's real file source.

100,000 lines of one Xid a second are known from the field (one fleet printed 168,924 in
two days, most of them within minutes). What counts is how fast the agent is through, and
for how long the event loop, which also answers scrapes and renews heartbeats, has to wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from node_agent.sources.kernel_log import KernelLog, KernelLogPaths, Mode
from node_agent.xid.catalogue import load_catalogue
from node_agent.xid.episodes import EpisodeCounter


if TYPE_CHECKING:
    from node_agent.sources.kernel_log import Batch

LINES_PER_SECOND = 100_000


class LogStorm(NamedTuple):
    """What a storm cost.

    ``max_block_ms``: the most processor time between two turns of the event loop, which is
    how long we blocked it. ``max_late_ms``: the longest a turn took by the wall clock; on a
    busy machine that is mostly other processes.
    """

    lines: int
    episodes: int
    lines_per_s: float
    max_block_ms: float
    max_late_ms: float


def storm(lines: int) -> bytes:
    """Lines of one Xid 45 as a driver prints them: same process, other channels."""
    return b"".join(
        b"[%5d.%06d] NVRM: Xid (PCI:0000:9b:00): 45, pid=1818990, name=python3, Ch %08x\n"
        % (1000 + n // LINES_PER_SECOND, n % LINES_PER_SECOND * 10, n % 64)
        for n in range(lines)
    )


async def measure_log_storm(lines: int = 500_000) -> LogStorm:
    """Append a storm to a followed file at once; wait until every line is counted."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "kern.log")
        path.touch()  # noqa: ASYNC240 -- before anything runs
        log = KernelLog(
            catalogue=load_catalogue(), mode=Mode.FILE, paths=KernelLogPaths(files=(path,))
        )
        data = storm(lines)
        counter, ready, done = EpisodeCounter(), asyncio.Event(), asyncio.Event()
        seen = episodes = 0

        def deliver(batch: Batch) -> None:
            nonlocal seen, episodes
            for s in batch.sightings:
                episodes += counter.add(
                    s.report, first=s.first, last=s.last, lines=s.lines
                ).new_episode
                seen += s.lines
            if batch.caught_up:
                ready.set()
            if seen >= lines:
                done.set()

        late = block = 0.0

        async def tick() -> None:
            nonlocal late, block
            while True:
                wall, spent = time.perf_counter(), time.thread_time()
                await asyncio.sleep(0)
                late = max(late, time.perf_counter() - wall)
                block = max(block, time.thread_time() - spent)

        follower = asyncio.create_task(log.run(deliver))
        await ready.wait()
        await asyncio.to_thread(path.write_bytes, data)
        ticker = asyncio.create_task(tick())
        begun = time.perf_counter()
        read_before = seen
        await done.wait()
        seconds = time.perf_counter() - begun
        for task in (follower, ticker):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    rate = (seen - read_before) / seconds
    return LogStorm(seen, episodes, rate, block * 1000, late * 1000)
