"""What a scrape of the agent costs: one scraper at a time, fifty at once, and while NVML hangs.

The real agent on a real API server, with its NVML child on eight fake GPUs (H200), the
default DCGM families and all of our own. The scrapers are another process; everything shares
the machine's cores, as the kubelet and Prometheus' own work share a node's.

Goals: p99 <= 5 ms for one scraper, also while one NVML call hangs; with 50 closed-loop scrapers
p99 <= 50 ms.

    python -m tests.bench.scrape [seconds of each phase]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from testbed.fake_nvml import FakeNvml
from testbed.gpunode import Agent, GpuMachine
from tests.bench.figures import cpu_seconds, finish, memory_mb, percentile, say, say_machine
from tests.bench.site import Site


SECONDS: Final = 8.0
CROWD: Final = 50
HUNG_CALL: Final = "nvmlDeviceGetPowerUsage"
_PATIENCE: Final = 60.0


class Scrapes(NamedTuple):
    """Milliseconds of each scrape, sorted by nothing; how many a second; bytes of a page."""

    took: list[float]
    per_second: float
    bytes: int

    def at(self, percent: float) -> float:
        """A percentile, in milliseconds."""
        return percentile(self.took, percent)


def main(seconds: float = SECONDS) -> None:
    """Print the figures."""
    say_machine()
    with Site() as site, tempfile.TemporaryDirectory() as folder:
        machine = GpuMachine(Path(folder))
        driver = machine.install_driver()
        node = site.cluster.create_node(boot_id=machine.boot_id)
        with Agent(
            machine,
            node=node,
            url=site.plane.url,
            token=site.cluster.agent_token(node),
            ca_file=site.plane.ca_file,
            driver=driver,
        ) as agent:
            finish(measure(agent, driver, seconds))


def measure(agent: Agent, driver: FakeNvml, seconds: float) -> dict[str, float]:
    """One scraper, many, and one again with a call that does not return."""
    pid = agent.process.pid
    _wait(lambda: _gpus(agent) == len(agent.machine.gpus), "all GPUs on the page")
    scrapes(agent, 1, 1.0)
    one = scrapes(agent, 1, seconds)
    crowd = scrapes(agent, CROWD, seconds)
    series = len(agent.metrics())
    driver.hang(HUNG_CALL, gpu=0)
    _wait(lambda: agent.metrics()['gpu_nvml_state{state="hung"}'] == 1, "the hang is noticed")
    spent, begun = cpu_seconds(pid), time.monotonic()
    hung = scrapes(agent, 1, seconds)
    spent = (cpu_seconds(pid) - spent) / (time.monotonic() - begun)
    say(f"agent while scraped by one in a closed loop: {spent * 100:.0f} % of a core")
    return {
        "p50_ms": one.at(50),
        "p99_ms": one.at(99),
        "scrapes_per_s": one.per_second,
        "series": float(series),
        "p99_50_ms": crowd.at(99),
        "p50_50_ms": crowd.at(50),
        "scrapes_per_s_50": crowd.per_second,
        "hung_p99_ms": hung.at(99),
        "hung_p50_ms": hung.at(50),
        "max_ms": max(one.took),
        "page_kb": one.bytes / 1e3,
        "agent_rss_mb": memory_mb(pid),
    }


def scrapes(agent: Agent, scrapers: int, seconds: float) -> Scrapes:
    """Scrape in a closed loop from another process."""
    argv = [sys.executable, "-m", "tests.bench.scraper", str(agent.port), str(scrapers)]
    done = subprocess.run([*argv, str(seconds)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the scrapers failed:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout)
    took: list[float] = answer["took"]
    per_second = len(took) / answer["seconds"]
    result = Scrapes(took, per_second, answer["bytes"])
    say(
        f"{scrapers} scraper(s): {len(took)} scrapes, {per_second:.0f}/s, p50 {result.at(50):.2f} "
        f"ms, p99 {result.at(99):.2f} ms, {result.bytes} bytes gzip"
    )
    return result


def _gpus(agent: Agent) -> int:
    return sum(name.startswith("DCGM_FI_DEV_GPU_TEMP{") for name in agent.metrics())


def _wait(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_PATIENCE:.0f} s: {what}")
        time.sleep(0.1)


if __name__ == "__main__":
    main(*(float(text) for text in sys.argv[1:]))
