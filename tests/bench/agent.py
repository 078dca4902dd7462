"""The node-agent's cost: its memory, what it uses when nothing happens, growth, and a log storm.

Memory and processor time are those of the real program on a real API server, its NVML child
included: its own token, its admission policies, eight fake GPUs (H200), default intervals. Growth
is that of the memory of both processes over many faults (each of another process, on every GPU)
and many scrapes; the first tenth of them is warming up. The storm is measured twice: through
the file source alone (how fast lines are counted), and through the whole program (state,
conditions, metrics and patches included), on a node on which each GPU has many faults open. The
longest block is the processor time of the longest turn of the whole program's event loop.

Goals: RSS <= 80 MB and idle <= 0.5 % of a core, both processes together; growth < 5 % over 10^6
faults and 10^5 scrapes; at least 300,000 lines a second, the event loop never blocked for over
20 ms.

    python -m tests.bench.agent [--idle SECONDS] [--quick]

`--quick` measures growth over a tenth of that.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbed.gpunode import Agent, GpuMachine
from tests.bench.figures import cpu_seconds, finish, memory_mb, say, say_machine
from tests.bench.log_storm import measure_log_storm, storm
from tests.bench.scrape import scrapes
from tests.bench.site import Site


IDLE_SECONDS: Final = 120.0
"""Two looks at PCI, two slow readings of NVML, twelve fast ones."""
SETTLE_SECONDS: Final = 15.0
STORM_LINES: Final = 500_000
FAULTS: Final = 1_000_000
SCRAPES: Final = 100_000
REDUCED: Final = 10
BLOCK: Final = 5_000
SCRAPE_SECONDS: Final = 5.0
DEFAULTS: Final = {
    "pci_interval": "60s",
    "pci_confirm": "2s",
    "node_interval": "30s",
    "nvml_interval": "10s",
    "nvml_slow_interval": "60s",
    "nvml_timeout": "10s",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=float, default=IDLE_SECONDS, help="seconds of idling")
    parser.add_argument("--quick", action="store_true", help="growth over 10^5 faults only")
    options = parser.parse_args(arguments)
    say_machine()
    figures = measure_agent(options.idle, share=REDUCED if options.quick else 1)
    result = asyncio.run(measure_log_storm())
    say(f"file source: {result.lines} lines counted as {result.episodes} episode(s)")
    figures |= {
        "storm_lines_per_s": result.lines_per_s,
        "source_max_block_ms": result.max_block_ms,
        "storm_max_late_ms": result.max_late_ms,
    }
    finish(figures)


def measure_agent(idle: float, *, share: int) -> dict[str, float]:
    """Start an agent, let it idle, send it faults, scrapes and a storm."""
    with Site() as site, tempfile.TemporaryDirectory() as folder:
        machine, turns = GpuMachine(Path(folder)), Path(folder, "turns")
        node = site.cluster.create_node(boot_id=machine.boot_id)
        with Agent(
            machine,
            node=node,
            url=site.plane.url,
            token=site.cluster.agent_token(node),
            ca_file=site.plane.ca_file,
            settings=DEFAULTS,
            driver=machine.install_driver(),
            program=("tests.bench.turns", str(turns)),
        ) as agent:
            pid = agent.process.pid
            time.sleep(SETTLE_SECONDS)
            scrapes(agent, 1, 1.0)
            figures = idle_figures(pid, idle)
            say(f"starting and idling: longest turn {longest_turn(agent, turns):.1f} ms")
            figures |= growth(agent, machine, faults=FAULTS // share, count=SCRAPES // share)
            figures |= {"faults_max_block_ms": longest_turn(agent, turns)}
            figures |= whole_storm(agent, machine)
            figures |= {"storm_max_block_ms": longest_turn(agent, turns)}
            return figures | {"peak_rss_mb": memory_mb(pid, "VmHWM")}


def idle_figures(pid: int, seconds: float) -> dict[str, float]:
    """What both processes use while nothing happens and nobody scrapes."""
    say(f"idling for {seconds:g} s")
    before = [(each, cpu_seconds(each)) for each in family(pid)]
    since = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - since
    shares = [(cpu_seconds(each) - spent) / passed * 100 for each, spent in before]
    say(f"agent {shares[0]:.2f} %, NVML child {sum(shares[1:]):.2f} % of a core")
    return {
        "rss_mb": total_mb(pid),
        "pss_mb": sum(pss_mb(each) for each in family(pid)),
        "agent_rss_mb": memory_mb(pid),
        "idle_cpu_percent": sum(shares),
    }


def growth(agent: Agent, machine: GpuMachine, *, faults: int, count: int) -> dict[str, float]:
    """Growth of the memory after the first tenth of the faults and scrapes, in percent."""
    pid = agent.process.pid
    send_faults(agent, machine, 0, faults // 10)
    scrape(agent, count // 10)
    warm = total_mb(pid)
    say(f"warm: {warm:.1f} MB")
    send_faults(agent, machine, faults // 10, faults)
    scrape(agent, count - count // 10)
    time.sleep(SETTLE_SECONDS)
    after = total_mb(pid)
    say(f"after {faults} faults and {count} scrapes: {after:.1f} MB")
    return {
        "warm_rss_mb": warm,
        "after_rss_mb": after,
        "growth_percent": (after - warm) / warm * 100,
        "growth_faults": float(faults),
        "growth_scrapes": float(count),
    }


def send_faults(agent: Agent, machine: GpuMachine, begin: int, end: int) -> None:
    """Faults number `begin` to `end`: an application error each, of another process."""
    begun = time.monotonic()
    for first in range(begin, end, BLOCK):
        numbers = range(first, min(first + BLOCK, end))
        counted = lines_counted(agent) + len(numbers)
        machine.log(
            *(
                f"NVRM: Xid (PCI:{machine.gpus[n % 8][:-2]}): 31, pid={n + 1}, name=train, "
                f"Ch 00000008, intr 00000000. MMU Fault"
                for n in numbers
            )
        )
        while lines_counted(agent) < counted:
            time.sleep(0.05)
        machine.kernel_log.write_bytes(b"")
    say(f"{end - begin} faults in {time.monotonic() - begun:.1f} s")


def scrape(agent: Agent, count: int) -> None:
    """At least so many scrapes, in a closed loop."""
    done = 0.0
    while done < count:
        done += len(scrapes(agent, 2, SCRAPE_SECONDS).took)


def family(pid: int) -> list[int]:
    """The agent and the processes that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return [pid, *map(int, children)]


def total_mb(pid: int) -> float:
    """Resident memory of all of them."""
    return sum(memory_mb(each) for each in family(pid))


def whole_storm(agent: Agent, machine: GpuMachine) -> dict[str, float]:
    """Append a storm; how fast the whole program is through it, by its own processor time."""
    data, counted = storm(STORM_LINES), lines_counted(agent) + STORM_LINES
    spent, begun = cpu_seconds(agent.process.pid), time.monotonic()
    with machine.kernel_log.open("ab") as file:
        file.write(data)
    while lines_counted(agent) < counted:
        time.sleep(0.1)  # each look has the page made anew
    seconds = time.monotonic() - begun
    spent = cpu_seconds(agent.process.pid) - spent
    say(f"whole agent: {STORM_LINES} lines in {seconds:.2f} s, {spent:.2f} s of a core")
    return {"agent_storm_lines_per_s": STORM_LINES / seconds}


def longest_turn(agent: Agent, file: Path) -> float:
    """The loop's longest turn since the last call, in milliseconds."""
    file.unlink(missing_ok=True)
    agent.process.signal(signal.SIGUSR1)
    agent.process.wait_until(file.exists, timeout=10.0)
    return float(file.read_text("ascii"))


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
    main()
