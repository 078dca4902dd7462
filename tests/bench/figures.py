"""What benchmarks print: progress for people, one JSON object as the last line for machines."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: a value that was really measured."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)]


def say(text: str) -> None:
    """Progress, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def say_machine() -> None:
    """What the figures depend on: cores, Python, and what else runs."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    say(f"{os.cpu_count()} cores, Python {platform.python_version()}, load before us: {load}")


def finish(figures: dict[str, float]) -> None:
    """Print the last line."""
    print(json.dumps({key: round(value, 3) for key, value in figures.items()}), flush=True)


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """Resident memory of a process in 10^6 bytes; `VmHWM` is the most it ever had."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"/proc/{pid}/status has no {field}")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    after_name = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
