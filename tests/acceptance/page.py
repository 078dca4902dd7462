"""The agent's page: its series, and the DCGM families that could be on it."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from typing import Final, NamedTuple

from node_agent.publish.counters import DEFAULT_FILES, load_counters, load_fields


_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def get(port: int, path: str = "/metrics") -> str:
    """One page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


class Row(NamedTuple):
    """One series."""

    name: str
    labels: Mapping[str, str]
    value: float


class Page:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Not by the parser of prometheus_client: it renames counters without `_total`.
        lines = (line.rpartition(" ") for line in text.splitlines() if line[:1] not in {"", "#"})
        self.rows = [
            Row(series.partition("{")[0], dict(_LABEL.findall(series)), float(value))
            for series, _, value in lines
        ]

    def all(self, name: str, **labels: str) -> list[Row]:
        """Series of this name that carry these labels."""
        return [r for r in self.rows if r.name == name and labels.items() <= r.labels.items()]

    def sum(self, name: str, **labels: str) -> float:
        """Of their values."""
        return sum(row.value for row in self.all(name, **labels))

    def dcgm(self) -> dict[str, float]:
        """The first row of each DCGM family."""
        found: dict[str, float] = {}
        for row in self.rows:
            if row.name.startswith("DCGM_"):
                found.setdefault(row.name, row.value)
        return found

    def own(self) -> dict[str, float]:
        """Our own families about GPUs, with the labels that tell their rows apart."""
        identity = {"gpu", "UUID", "pci"}
        return {
            row.name
            + "".join(f"|{v}" for k, v in row.labels.items() if k not in identity): row.value
            for row in self.rows
            if row.name.startswith("gpu_") and not row.name.startswith("gpu_agent_")
        }

    def calls(self) -> dict[str, dict[str, float]]:
        """NVML functions: how often, and microseconds a call on average and at last."""
        found = {}
        for row in self.all("gpu_nvml_calls_total"):
            function = row.labels["call"]
            spent = self.sum("gpu_nvml_call_seconds_total", call=function)
            last = self.sum("gpu_nvml_call_last_seconds", call=function)
            errors = self.sum("gpu_nvml_call_errors_total", call=function)
            found[function] = {
                "calls": row.value,
                "errors": errors,
                "mean_us": round(spent / row.value * 1e6, 1) if row.value else 0.0,
                "last_us": round(last * 1e6, 1),
            }
        return found


def default_families() -> list[str]:
    """DCGM-Exporter's 25 default families of the 4.8 line."""
    counters = load_counters(DEFAULT_FILES["4.8"], load_fields())
    return [counter.family.name for counter in counters.metrics]


def every_counter() -> str:
    """A counters file with all fields of the 4.8 line that the agent can fill."""
    rows = [f for f in load_fields().by_name.values() if f.line != "4.9"]
    return "".join(f"{field.name}, {field.kind}, {field.help}\n" for field in rows)
