"""What a program costs: processor time and memory of its processes, and the time of a scrape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from testbed.processes import Child, free_port
from tests.acceptance.faults import spread
from tests.acceptance.page import get
from tests.bench.figures import cpu_seconds, memory_mb


class Meter:
    """Of one program: the process and its children, between two moments."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = {each: cpu_seconds(each) for each in family(pid)}
        self._since = time.monotonic()

    def read(self) -> dict[str, Any]:
        """Percent of a core since it was made; memory now, in 10^6 bytes."""
        passed = time.monotonic() - self._since
        spent = {each: cpu_seconds(each) - before for each, before in self._before.items()}
        return {
            "seconds": round(passed, 1),
            "cpu_percent": round(100 * sum(spent.values()) / passed, 3),
            "cpu_percent_each": [round(100 * one / passed, 3) for one in spent.values()],
            "rss_mb": round(sum(memory_mb(each) for each in spent), 1),
            "rss_mb_each": [round(memory_mb(each), 1) for each in spent],
            "pss_mb": round(sum(pss_mb(each) for each in spent), 1),
        }


def family(pid: int) -> list[int]:
    """A process and those that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return [pid, *map(int, children)]


def pss_mb(pid: int) -> float:
    """Proportional set size in 10^6 bytes: a page shared by two counts half."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    line = next(line for line in text.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024 / 1e6


def largest_mappings(pid: int, count: int = 12) -> dict[str, float]:
    """What the memory of a process is resident for: 10^6 bytes by mapped file."""
    sums: dict[str, float] = {}
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text("ascii", "replace").splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            name = words[5].rpartition("/")[2] if len(words) > 5 else "anonymous"
        elif words[0] == "Rss:":
            sums[name] = sums.get(name, 0.0) + int(words[1]) * 1024 / 1e6
    ranked = sorted(sums.items(), key=lambda item: -item[1])[:count]
    return {name: round(size, 1) for name, size in ranked}


def closed_loop(port: int, seconds: float) -> dict[str, Any]:
    """One scraper that asks again as soon as it has its page, from another process."""
    argv = [sys.executable, "-m", "tests.bench.scraper", str(port), "1", str(seconds)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"error": done.stderr[-500:]}
    took = json.loads(done.stdout)["took"]
    return {"scrapes": len(took), "ms": spread(took)}


def paced(ports: Mapping[str, int], *, seconds: float, every: float) -> dict[str, Any]:
    """Scrape all of them, each so often; milliseconds of each scrape with a new connection."""
    took: dict[str, list[float]] = {name: [] for name in ports}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        due = time.monotonic() + every
        for name, port in ports.items():
            begun = time.perf_counter()
            get(port)
            took[name].append((time.perf_counter() - begun) * 1000)
        time.sleep(max(0.0, due - time.monotonic()))
    return {name: {"scrapes": len(each), "ms": spread(each)} for name, each in took.items()}


class Peer:
    """nvitop-exporter with its defaults; a context manager. `trouble` if it does not run."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.port = free_port()
        self.trouble = ""
        argv = [sys.executable, "-m", "nvitop_exporter", "--port", str(self.port)]
        variables = [f"{name}={value}" for name, value in env.items()]
        self._child = Child(
            "nvitop-exporter", ["/usr/bin/env", *variables, *argv], log=folder / "peer.log"
        )

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._child.pid

    def __enter__(self) -> Self:
        """Start it."""
        self._child.start()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self._child.running:
            try:
                if "# HELP" in get(self.port):
                    return self
            except OSError:
                time.sleep(0.1)
        self.trouble = self._child.log_tail()[-1500:] or "no page within 20 s"
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._child.close()


def run_json(argv: Sequence[str], env: Mapping[str, str]) -> Any:
    """The JSON that a module of ours prints."""
    done = subprocess.run(
        [sys.executable, "-m", *argv],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
        timeout=120,
    )
    if done.returncode != 0:
        return {"error": done.stderr[-2000:]}
    return json.loads(done.stdout)
