"""The node-agent's program, with its event loop's longest turn measured from within.

A turn's cost is the processor time of the loop's thread between two looks at what is ready: for
so long nobody else was served. SIGUSR1 has the longest since the last one written to a file, in
milliseconds.

    python -m tests.bench.turns FILE run ...
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

from node_agent.cli import main


class _Loop(asyncio.SelectorEventLoop):
    """asyncio's own loop, and a watch."""

    longest = 0.0

    def _run_once(self) -> None:
        begun = time.thread_time()  # waiting for events costs none
        super()._run_once()  # type: ignore[misc]
        self.longest = max(self.longest, time.thread_time() - begun)


class _Policy(asyncio.DefaultEventLoopPolicy):
    def __init__(self) -> None:
        super().__init__()
        self.made: list[_Loop] = []

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        self.made.append(_Loop())
        return self.made[-1]


def run() -> int:
    """Run the agent as its own command line does."""
    policy, file = _Policy(), Path(sys.argv.pop(1))
    asyncio.set_event_loop_policy(policy)

    def say(*_: object) -> None:
        new = file.with_suffix(".new")
        new.write_text(str(max((loop.longest for loop in policy.made), default=0.0) * 1000))
        new.rename(file)
        for loop in policy.made:
            loop.longest = 0.0

    signal.signal(signal.SIGUSR1, say)
    return main()


if __name__ == "__main__":
    sys.exit(run())
