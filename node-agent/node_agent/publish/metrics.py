"""Families about faults, conditions and the kernel log, and those about the agent itself.

Ages are exposed as timestamps, so that they do not change while nothing happens. Names and
units follow the Prometheus conventions; ``docs/agent/metrics.md`` lists them.
"""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Info
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from node_agent import __version__
from node_agent.contract import ConditionStatus, FaultKind
from node_agent.publish.exposition import Block, Family, block, braces, number
from node_agent.sources.pci_sysfs import DeviceClass
from node_agent.xid.parse import RECOVERY_ACTION_CHANGED


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from node_agent.contract import Condition
    from node_agent.health.conditions import View, ViewState
    from node_agent.health.merge import Merger
    from node_agent.health.state import NodeHealth
    from node_agent.sources.kernel_log import Counters, SourceState
    from node_agent.sources.pci_sysfs import Device

XID_EPISODES = Family(
    "gpu_xid_errors_total", "counter", "Xid episodes (lines within 30 s are one)."
)
XID_LINES = Family("gpu_xid_lines_total", "counter", "Raw Xid lines of the kernel log.")
SXID_EPISODES = Family("gpu_sxid_errors_total", "counter", "NVSwitch SXid episodes.")
SXID_LINES = Family("gpu_sxid_lines_total", "counter", "Raw SXid lines of the kernel log.")
FAULT_ACTIVE = Family("gpu_fault_active", "gauge", "1 for each unresolved or recent fault.")
FAULT_SEEN = Family(
    "gpu_fault_last_seen_timestamp_seconds", "gauge", "When an open fault was last seen."
)
RECOVERY = Family(
    "gpu_recovery_action_required", "gauge", "1 for each action that the driver asks for."
)
SOURCE_FIRST = Family(
    "gpu_fault_source_first_total",
    "counter",
    "Xid episodes that this source reported before the others, since the agent started.",
)
SOURCE_LATER = Family(
    "gpu_fault_source_later_total", "counter", "Xid episodes that another source told before."
)
UNMERGED = Family(
    "gpu_fault_unmerged_total",
    "counter",
    "Reports that were counted before another source could complete them: too many waited.",
)
FORGOTTEN = Family(
    "gpu_fault_episodes_forgotten_total",
    "counter",
    "Episodes forgotten while they may have been running: there were too many.",
)
SOURCE_LAG = Family(
    "gpu_fault_source_lag_seconds_total",
    "counter",
    "Sum of the times by which this source came later than the first one.",
)
EXPECTED = Family("gpu_devices_expected", "gauge", "Devices that were ever seen on PCI.")
SEEN = Family("gpu_devices_seen", "gauge", "Devices that are on PCI now and answer.")
LOST = Family("gpu_devices_lost", "gauge", "Expected devices that are gone or do not answer.")
CONDITION = Family(
    "gpu_condition_status", "gauge", "1 for the status that each own node condition should have."
)
VIEW_UP = Family("gpu_agent_view_up", "gauge", "Whether the agent can look at this.")
LOG_SOURCE = Family(
    "gpu_kernel_log_source_working", "gauge", "Which kernel log is read, and whether it works."
)
LOG_LINES = Family("gpu_kernel_log_lines_total", "counter", "Lines or records read.")
LOG_MATCHED = Family("gpu_kernel_log_matched_total", "counter", "Lines that reported a fault.")
LOG_MALFORMED = Family(
    "gpu_kernel_log_malformed_total",
    "counter",
    "Lines that claim to be a fault and are unreadable.",
)
LOG_OVERSIZED = Family("gpu_kernel_log_oversized_total", "counter", "Lines cut at the limit.")
LOG_OVERRUNS = Family(
    "gpu_kernel_log_overruns_total", "counter", "Times the kernel's ring overran the agent."
)
LOG_GAPS = Family("gpu_kernel_log_gaps_total", "counter", "Records missing in the sequence.")
LOG_LOST_PLACES = Family(
    "gpu_kernel_log_lost_places_total",
    "counter",
    "Times the place up to which a log file had been read was not found again.",
)

LOG_ROTATIONS = Family(
    "gpu_kernel_log_rotations_total", "counter", "Times a log file was replaced by a new one."
)
LOG_TRUNCATIONS = Family(
    "gpu_kernel_log_truncations_total", "counter", "Times a log file became shorter."
)
LOG_EARLIER_BOOT = Family(
    "gpu_kernel_log_earlier_boot_total",
    "counter",
    "Lines left out at the start because they are of an earlier boot.",
)

FAMILIES: Final = (
    XID_EPISODES,
    XID_LINES,
    SXID_EPISODES,
    SXID_LINES,
    FAULT_ACTIVE,
    FAULT_SEEN,
    RECOVERY,
    SOURCE_FIRST,
    SOURCE_LATER,
    SOURCE_LAG,
    UNMERGED,
    FORGOTTEN,
    EXPECTED,
    SEEN,
    LOST,
    CONDITION,
    VIEW_UP,
    LOG_SOURCE,
    LOG_LINES,
    LOG_MATCHED,
    LOG_MALFORMED,
    LOG_OVERSIZED,
    LOG_OVERRUNS,
    LOG_GAPS,
    LOG_LOST_PLACES,
    LOG_ROTATIONS,
    LOG_TRUNCATIONS,
    LOG_EARLIER_BOOT,
)


class SelfMetrics:
    """Metrics of the agent itself, in a registry of its own."""

    def __init__(self, *, node: str) -> None:
        """``node``: the Node's name."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        Info("gpu_agent_build", "Version of the agent, and its node.", registry=self.registry).info(
            {"version": __version__, "node": node}
        )
        self.publishes = Counter(
            "gpu_agent_publishes",
            "Writes of the Node's status, by result.",
            ["result"],
            registry=self.registry,
        )
        for result in ("ok", "error"):
            self.publishes.labels(result)
        self.published = Gauge(
            "gpu_agent_published_timestamp_seconds",
            "When the Node's status was last written.",
            registry=self.registry,
        )
        self.events = Counter(
            "gpu_agent_events", "Events, by result.", ["result"], registry=self.registry
        )
        self.state_writes = Counter(
            "gpu_agent_state_writes",
            "Writes of the state file, by result.",
            ["result"],
            registry=self.registry,
        )
        self.loop_lag = Gauge(
            "gpu_agent_loop_lag_seconds",
            "How late the event loop last ran a timer.",
            registry=self.registry,
        )

    def blocks(self) -> Iterator[Block]:
        """All of them now."""
        for metric in self.registry.collect():
            suffix = _SUFFIXES.get(metric.type, "")
            family = Family(metric.name + suffix, metric.type, metric.documentation)
            yield Block(
                family,
                [
                    (sample.name + braces(sample.labels), number(sample.value))
                    for sample in metric.samples
                    if not sample.name.endswith("_created")
                ],
            )


_SUFFIXES: Final = {"counter": "_total", "info": "_info"}


def state_blocks(
    health: NodeHealth,
    *,
    devices: tuple[Device, ...],
    conditions: tuple[Condition, ...],
    views: Mapping[View, ViewState],
    counters: Counters,
    source: SourceState,
) -> Iterator[Block]:
    """What the agent knows without NVML: faults, devices on PCI, conditions, the kernel log."""
    yield from _fault_blocks(health)
    yield from _device_blocks(health, devices)
    yield from _condition_blocks(conditions)
    yield block(VIEW_UP, (({"view": v.value}, float(s.up)) for v, s in views.items()))
    yield from _log_blocks(counters, source)


def _fault_blocks(health: NodeHealth) -> Iterator[Block]:
    families = {
        FaultKind.XID: (XID_EPISODES, XID_LINES),
        FaultKind.SXID: (SXID_EPISODES, SXID_LINES),
    }
    for kind, (episodes, lines) in families.items():
        totals = [total for total in health.totals.values() if total.kind is kind]
        labels = [
            {
                "pci": t.pci,
                "UUID": health.uuids.get(t.pci, ""),
                kind.value: str(t.code),
                "severity": t.severity.value,
                "category": "application" if t.application else "device",
            }
            for t in totals
        ]
        yield block(episodes, zip(labels, (float(t.episodes) for t in totals), strict=True))
        yield block(lines, zip(labels, (float(t.lines) for t in totals), strict=True))
    faults = health.worst_first()
    labels = [
        {
            "pci": f.pci,
            "UUID": f.gpu,
            "kind": f.kind.value,
            "code": "" if f.code is None else str(f.code),
            "subcode": f.subcode,
            "gi": "" if f.gi is None else str(f.gi),
            "ci": "" if f.ci is None else str(f.ci),
            "severity": f.severity.value,
        }
        for f in faults
    ]
    yield block(FAULT_ACTIVE, ((each, 1.0) for each in labels))
    yield block(FAULT_SEEN, zip(labels, (f.last_seen for f in faults), strict=True))
    asked = {
        (f.pci, f.gpu or health.uuids.get(f.pci, ""), f.reason)
        for f in faults
        if f.code == RECOVERY_ACTION_CHANGED or f.kind is FaultKind.RECOVERY_ACTION
    }
    names = ("pci", "UUID", "action")
    yield block(RECOVERY, ((dict(zip(names, a, strict=True)), 1.0) for a in sorted(asked)))


def source_blocks(merger: Merger) -> Iterator[Block]:
    """Which source of Xids was first, how late the others were, and what found no room."""
    stats = merger.stats
    yield block(UNMERGED, (({}, float(merger.dropped)),))
    yield block(FORGOTTEN, (({}, float(merger.forgotten)),))
    for family, values in (
        (SOURCE_FIRST, {source: float(one.first) for source, one in stats.items()}),
        (SOURCE_LATER, {source: float(one.later) for source, one in stats.items()}),
        (SOURCE_LAG, {source: one.lag_seconds for source, one in stats.items()}),
    ):
        yield block(family, (({"source": source.value}, v) for source, v in values.items()))


def _device_blocks(health: NodeHealth, devices: Iterable[Device]) -> Iterator[Block]:
    expected = Tally(health.expected.values())
    alive = {device.pci for device in devices if device.answers}
    seen = Tally(device.kind for device in devices if device.answers)
    lost = Tally(kind for pci, kind in health.expected.items() if pci not in alive)
    for family, tally in ((EXPECTED, expected), (SEEN, seen), (LOST, lost)):
        yield block(family, (({"class": c.value}, float(tally[c])) for c in DeviceClass))


def _condition_blocks(conditions: Iterable[Condition]) -> Iterator[Block]:
    yield block(
        CONDITION,
        (
            ({"type": c.type.value, "status": status.value}, float(c.status is status))
            for c in conditions
            for status in ConditionStatus
        ),
    )


def _log_blocks(counters: Counters, source: SourceState) -> Iterator[Block]:
    yield block(LOG_SOURCE, (({"source": source.source}, float(source.working)),))
    for family, value in (
        (LOG_LINES, counters.lines),
        (LOG_MATCHED, counters.matched),
        (LOG_MALFORMED, counters.malformed),
        (LOG_OVERSIZED, counters.oversized),
        (LOG_OVERRUNS, counters.overruns),
        (LOG_GAPS, counters.gaps),
        (LOG_LOST_PLACES, counters.lost_places),
        (LOG_ROTATIONS, counters.rotations),
        (LOG_TRUNCATIONS, counters.truncations),
        (LOG_EARLIER_BOOT, counters.earlier_boot),
    ):
        yield block(family, (({}, float(value)),))
