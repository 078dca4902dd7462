"""A FIFO: whatever a tool pipes in, taken as written now. It cannot be read twice."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from node_agent.sources.kernel_log.model import BLOCK_BYTES, Batch, Clock, Counters
from node_agent.sources.kernel_log.text import LineSplitter, LogText


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from node_agent.sources.kernel_log.grouping import Grouper

SOURCE: Final = "fifo"


class FifoLog:
    """Reads one FIFO. Raises OSError when it cannot be opened."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        grouper: Grouper,
        counters: Counters,
        report_state: Callable[[str], None],
    ) -> None:
        """There is no position to go on from. ``report_state("")``: it works now."""
        self._path = path
        self._clock = clock
        self._grouper = grouper
        self._text = LogText(grouper=grouper, counters=counters)
        self._report_state = report_state

    async def run(self, deliver: Callable[[Batch], None]) -> None:
        """Read until cancelled; writers may come and go."""
        # Open for writing too: then the last writer's leaving is not an end of file, which
        # would make the descriptor readable for ever.
        fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        splitter = LineSplitter()
        self._report_state("")
        loop.add_reader(fd, readable.set)
        try:
            deliver(Batch((), (), None, caught_up=True))
            while True:
                readable.clear()
                try:
                    chunk = os.read(fd, BLOCK_BYTES)
                except BlockingIOError:
                    await readable.wait()
                    continue
                if block := splitter.push(chunk):
                    self._text.read(block, self._clock.now(), live=True)
                    batch = Batch(
                        self._grouper.take(), self._grouper.take_identities(), None, caught_up=True
                    )
                    deliver(batch)
                await asyncio.sleep(0)
        finally:
            loop.remove_reader(fd)
            os.close(fd)
