"""Provoked faults: what each source saw and when, what reached the Node and when, how it counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from node_agent.cli_local import ask
from testbed.gpunode import Agent
from tests.acceptance.page import Page, get
from tests.acceptance.receiver import Receiver
from tests.acceptance.rig import Fault, Rig
from tests.acceptance.witnesses import KERNEL_LOG, NVML, TRACEPOINT, Sighting, Witnesses
from tests.bench.figures import percentile


CODES: Final = {"unmapped": (31,), "misaligned": (13,), "both": (13, 31)}
_PATIENCE: Final = 5.0
_COUNTS: Final = 11.0
_QUIET: Final = 0.4
"""Later reports of the same fault come within this: the last line 0.2 s after the first."""
_COALESCE: Final = 0.15
"""Changes are collected for 0.1 s after a write; a fault out of the blue does not meet that."""


class Sample(NamedTuple):
    """One fault. Milliseconds from the first word of the driver, in any source."""

    fault: Fault
    sightings: list[Sighting]
    node_faults: list[dict[str, Any]]
    first: str
    patch_ms: float | None
    behind_ms: dict[str, float]
    """By how much each source came after the first; `launch` is negative: the kernel's start."""
    told: dict[str, tuple[float, float]]
    """By source, of the agent: how often it was first; milliseconds after the first, in all."""


def provoke(
    *,
    rig: Rig,
    agent: Agent,
    receiver: Receiver,
    witnesses: Witnesses,
    kind: str,
    library: str = "",
    settle: bool = False,
) -> Sample:
    """Provoke one fault, wait for everything about it, and take it off the Node again.

    With `settle`, wait until mere counts have been written too, which they are each 10 s.
    """
    before, since = _told(agent), time.monotonic()
    fault = rig.fault(kind, library=library)
    wanted = set(CODES[kind])
    _wait(lambda: _patched(receiver, since, wanted) is not None)
    _wait(lambda: wanted <= {one.code for one in witnesses.since(since)})
    _wait(lambda: _quiet(witnesses, since))
    if settle:
        time.sleep(_COUNTS)
    sightings = witnesses.since(since)
    last = [p.faults for p in receiver.patches if p.at >= since and p.faults is not None]
    after = _told(agent)
    told = {k: (after[k][0] - before[k][0], after[k][1] - before[k][1]) for k in after}
    sample = _judge(fault, sightings, _patched(receiver, since, {CODES[kind][0]}), last, told)
    clear(agent, receiver)
    return sample


def clear(agent: Agent, receiver: Receiver) -> None:
    """Declare the node healthy; returns when its annotation shows no fault, and a little later."""
    count = len(receiver.patches)
    now = datetime.now(UTC).isoformat()
    ask(str(agent.machine.socket), "POST", "/set-healthy", {"before": now})
    _wait(lambda: any(p.faults == [] for p in receiver.patches[count:]))
    time.sleep(_COALESCE)


def _judge(
    fault: Fault,
    sightings: list[Sighting],
    patched: float | None,
    reports: Sequence[list[dict[str, Any]]],
    told: dict[str, tuple[float, float]],
) -> Sample:
    at: dict[str, float] = {}
    for one in sightings:
        if one.code == CODES[fault.kind][0]:
            # A trace's stamp is of the same clock; a kernel-log record's is only nearly so.
            moment = one.stamped if one.source == TRACEPOINT and one.stamped else one.at
            at.setdefault(one.source, moment)
    first = min(at, key=lambda source: at[source], default="")
    begin = at.get(first, fault.launched)
    return Sample(
        fault,
        sightings,
        reports[-1] if reports else [],
        first,
        None if patched is None else (patched - begin) * 1000,
        {
            "launch": (fault.launched - begin) * 1000,
            "returned": (fault.returned - begin) * 1000,
            **{source: (moment - begin) * 1000 for source, moment in at.items()},
        },
        told,
    )


def _told(agent: Agent) -> dict[str, tuple[float, float]]:
    page = Page(get(agent.port))
    return {
        source: (
            page.sum("gpu_fault_source_first_total", source=source),
            page.sum("gpu_fault_source_lag_seconds_total", source=source) * 1000,
        )
        for source in (KERNEL_LOG, TRACEPOINT, NVML)
    }


def _patched(receiver: Receiver, since: float, codes: set[int]) -> float | None:
    """When all these codes had arrived in the annotation."""
    missing = set(codes)
    for patch in list(receiver.patches):
        if patch.at >= since:
            missing -= {fault.get("code") for fault in patch.faults or ()}
            if not missing:
                return patch.at
    return None


def _quiet(witnesses: Witnesses, since: float) -> bool:
    last = max((one.at for one in witnesses.since(since)), default=since)
    return time.monotonic() - last >= _QUIET


def _wait(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """The figures of many faults of one kind."""
    patched = [one.patch_ms for one in samples if one.patch_ms is not None]
    answer: dict[str, Any] = {
        "n": len(samples),
        "patched": len(patched),
        "first_source": {
            source: sum(one.first == source for one in samples)
            for source in (KERNEL_LOG, TRACEPOINT, NVML)
        },
        "patch_ms": spread(patched),
        "errors": sorted({one.fault.error for one in samples}),
        "pid_right": sum(
            any(f.get("pid") == one.fault.pid for f in one.node_faults) for one in samples
        ),
        "counted_once": sum(_once(one) for one in samples),
        "node_sources": sorted(
            {s for one in samples for f in one.node_faults for s in f["sources"]}
        ),
        "agent_told": [
            {source: [first, round(lag, 2)] for source, (first, lag) in one.told.items()}
            for one in samples[:6]
        ],
        "pods": sorted({p for one in samples for f in one.node_faults for p in f.get("pods", ())}),
    }
    for source in ("launch", "returned", KERNEL_LOG, TRACEPOINT, NVML):
        values = [one.behind_ms[source] for one in samples if source in one.behind_ms]
        answer[f"{source}_ms"] = spread(values)
    return answer


def _once(sample: Sample) -> bool:
    """Each expected code is one fault with one episode, and nothing else is there."""
    found = sorted((f.get("code"), f.get("count", 1)) for f in sample.node_faults)
    return [(code, 1) for code in CODES[sample.fault.kind]] == found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Percentiles, rounded."""
    if not values:
        return {}
    named = {"min": 0.0, "p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    return {name: round(percentile(values, at), 2) for name, at in named.items()}
