"""The node-agent's cost: how fast it is through a storm of kernel-log lines.

Goal: at least 300,000 lines a second, the event loop never blocked for over 20 ms.
"""

from __future__ import annotations

import asyncio

from tests.bench.figures import finish, say, say_machine
from tests.bench.log_storm import measure_log_storm


def main() -> None:
    """Print the figures."""
    say_machine()
    result = asyncio.run(measure_log_storm())
    say(f"{result.lines} lines counted as {result.episodes} episode(s)")
    finish(
        {
            "storm_lines_per_s": result.lines_per_s,
            "storm_max_block_ms": result.max_block_ms,
            "storm_max_late_ms": result.max_late_ms,
        }
    )


if __name__ == "__main__":
    main()
