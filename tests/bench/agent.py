"""The node-agent's cost: its memory, what it uses when nothing happens, and a log storm.

Memory and processor time are those of the real program on a real API server: its own token,
its admission policies, eight GPUs, default intervals. The storm is measured twice: through
the file source alone (how fast lines are counted, how long the loop is blocked), and through
the whole program (state, conditions, metrics and patches included).

Goals: RSS <= 60 MB; idle <= 0.3 % of a core; at least 300,000 lines a second, the event loop
never blocked for over 20 ms.

    python -m tests.bench.agent [seconds of idling]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from testbed.gpunode import Agent, GpuMachine
from tests.bench.figures import cpu_seconds, finish, memory_mb, say, say_machine
from tests.bench.log_storm import measure_log_storm, storm
from tests.bench.site import Site


IDLE_SECONDS: Final = 90.0
"""More than one look at PCI (60 s), and 18 of the loop's own checks."""
SETTLE_SECONDS: Final = 5.0
STORM_LINES: Final = 500_000
DEFAULTS: Final = {"pci_interval": "60s", "pci_confirm": "2s", "node_interval": "30s"}


def main(idle: float = IDLE_SECONDS) -> None:
    """Print the figures."""
    say_machine()
    figures = measure_agent(idle)
    result = asyncio.run(measure_log_storm())
    say(f"file source: {result.lines} lines counted as {result.episodes} episode(s)")
    figures |= {
        "storm_lines_per_s": result.lines_per_s,
        "storm_max_block_ms": result.max_block_ms,
        "storm_max_late_ms": result.max_late_ms,
    }
    finish(figures)


def measure_agent(idle: float) -> dict[str, float]:
    """Start an agent, let it idle, send it a storm."""
    with Site() as site, tempfile.TemporaryDirectory() as folder:
        machine = GpuMachine(Path(folder))
        node = site.cluster.create_node(boot_id=machine.boot_id)
        with Agent(
            machine,
            node=node,
            url=site.plane.url,
            token=site.cluster.agent_token(node),
            ca_file=site.plane.ca_file,
            settings=DEFAULTS,
        ) as agent:
            pid = agent.process.pid
            time.sleep(SETTLE_SECONDS)
            say(f"idling for {idle:g} s")
            spent, since = cpu_seconds(pid), time.monotonic()
            time.sleep(idle)
            percent = (cpu_seconds(pid) - spent) / (time.monotonic() - since) * 100
            figures = {
                "rss_mb": memory_mb(pid),
                "pss_mb": pss_mb(pid),
                "idle_cpu_percent": percent,
            }
            figures |= whole_storm(agent, machine)
            return figures | {"peak_rss_mb": memory_mb(pid, "VmHWM")}


def whole_storm(agent: Agent, machine: GpuMachine) -> dict[str, float]:
    """Append a storm; how fast the whole program is through it, by its own processor time."""
    data = storm(STORM_LINES)
    spent, begun = cpu_seconds(agent.process.pid), time.monotonic()
    with machine.kernel_log.open("ab") as file:
        file.write(data)
    while not lines_counted(agent) >= STORM_LINES:
        time.sleep(0.02)
    seconds = time.monotonic() - begun
    spent = cpu_seconds(agent.process.pid) - spent
    say(f"whole agent: {STORM_LINES} lines in {seconds:.2f} s, {spent:.2f} s of a core")
    return {"agent_storm_lines_per_s": STORM_LINES / seconds}


def lines_counted(agent: Agent) -> float:
    """Raw Xid lines that `/metrics` shows."""
    return sum(v for k, v in agent.metrics().items() if k.startswith("gpu_xid_lines_total"))


def pss_mb(pid: int) -> float:
    """Proportional set size in 10^6 bytes: pages shared with others count by their share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"/proc/{pid}/smaps_rollup has no Pss")


if __name__ == "__main__":
    main(*(float(text) for text in sys.argv[1:]))
