"""Everything the agent remembers about this node's devices; what the state file holds.

Immutable: each piece of evidence gives a new value (:mod:`node_agent.health.fold`).
Bounded: at most :data:`MAX_FAULTS` distinct faults a device, fatal ones apart. How many were left
out stays known until the device has no fault any more, so that nobody takes the rest for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from node_agent.contract import FaultKind, Severity, Truncated
from node_agent.health.faults import OpenFault
from node_agent.health.past import PastFault
from node_agent.sources.kernel_log.model import Position
from node_agent.sources.pci_sysfs import DeviceClass


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_FAULTS: Final = 64
"""Distinct faults kept per device; informational ones go first, the oldest of them first."""
MAX_DEVICES: Final = 256
VERSION: Final = 1


class Total(msgspec.Struct, frozen=True, omit_defaults=True):
    """Episodes and lines of one code on one device since the state file began."""

    kind: FaultKind
    pci: str
    code: int | None
    severity: Severity
    application: bool
    episodes: int = 0
    lines: int = 0


class NodeHealth(msgspec.Struct, frozen=True, rename="camel"):
    """The devices of one node.

    ``faults`` by their key. ``expected`` are the devices that were seen on PCI, by
    address; ``uuids`` what the log named them. ``cleared_before``: an operator declared
    everything older than this well. ``answered`` is a ``set-healthy`` value that lay in the
    future when it was read: it is not read again, also when its time has come.
    ``forgotten``: the state before was lost and could not be restored from the Node.
    ``left_out``: how often a fault was one too many for its device, by ``pci|severity``.
    ``baselines``: counters of NVML whose growth while no agent runs counts too, and the most
    NVLinks that were up, by ``uuid|quantity``. ``nvml``: NVML has answered here before.
    ``past``: times of faults that are over, for counts.
    """

    version: int = VERSION
    boot_id: str = msgspec.field(default="", name="bootID")
    position: Position | None = None
    faults: dict[str, OpenFault] = {}
    expected: dict[str, DeviceClass] = {}
    uuids: dict[str, str] = {}
    totals: dict[str, Total] = {}
    cleared_before: float = 0.0
    answered: str = msgspec.field(default="", name="refused")
    forgotten: bool = False
    baselines: dict[str, float] = {}
    left_out: dict[str, int] = {}
    nvml: bool = False
    past: dict[str, PastFault] = {}

    def worst_first(self) -> list[OpenFault]:
        """Fatal before warning before information; within each the first seen, the root, first."""
        return worst_first(self.faults.values())

    def of_severity(self, *severities: Severity) -> list[OpenFault]:
        """Open faults of these severities, worst first."""
        return [fault for fault in self.worst_first() if fault.severity in severities]

    @property
    def truncated(self) -> Truncated:
        """How many faults of each severity are missing here."""
        missing = {Severity.INFO: 0, Severity.WARNING: 0}
        for key, number in self.left_out.items():
            missing[Severity(key.rpartition("|")[2])] += number
        return Truncated(info=missing[Severity.INFO], warning=missing[Severity.WARNING])

    def with_faults(self, faults: Mapping[str, OpenFault], **changes: Any) -> NodeHealth:
        """The same with these faults, at most :data:`MAX_FAULTS` a device beside the fatal ones.

        The newest of the worst stay; the others are counted.
        """
        kept = bounded(faults)
        there = {fault.pci for fault in kept.values()}
        left_out = {
            key: number for key, number in self.left_out.items() if key.rpartition("|")[0] in there
        }
        for fault in faults.values():
            if fault.key not in kept:
                key = f"{fault.pci}|{fault.severity}"
                left_out[key] = left_out.get(key, 0) + 1
        return msgspec.structs.replace(self, faults=kept, left_out=left_out, **changes)

    @property
    def has_serious_faults(self) -> bool:
        """Whether anything raises a condition."""
        return any(fault.severity is not Severity.INFO for fault in self.faults.values())


RANK: Final[Mapping[Severity, int]] = {Severity.FATAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


def bounded(faults: Mapping[str, OpenFault]) -> dict[str, OpenFault]:
    """The same faults with at most :data:`MAX_FAULTS` a device, and all that are fatal."""
    by_device: dict[str, list[OpenFault]] = {}
    for fault in faults.values():
        by_device.setdefault(fault.pci, []).append(fault)
    if len(by_device) <= MAX_DEVICES and all(len(f) <= MAX_FAULTS for f in by_device.values()):
        return dict(faults)
    kept = (fault for group in by_device.values() for fault in _most_telling(group, MAX_FAULTS))
    most = _most_telling(kept, MAX_FAULTS * MAX_DEVICES)
    return {fault.key: fault for fault in most}


def _most_telling(faults: Iterable[OpenFault], limit: int) -> list[OpenFault]:
    ranked = sorted(faults, key=lambda f: (RANK[f.severity], -f.last_seen))
    fatal = sum(fault.severity is Severity.FATAL for fault in ranked)
    return ranked[: max(limit, fatal)]


def worst_first(faults: Iterable[OpenFault]) -> list[OpenFault]:
    """Fatal before warning before information; within each the first seen, the root, first."""
    return sorted(faults, key=lambda f: (RANK[f.severity], f.first_seen, f.key))
