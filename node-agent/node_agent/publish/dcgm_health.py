"""Open faults in the words of DCGM's health watches, for ``DCGM_EXP_GPU_HEALTH_STATUS``.

Differs from DCGM on purpose in two ways: what clears a fault here clears the watch too
(DCGM latches until its engine restarts), and an application's own error (Xid 13, 31, 43)
never marks a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from node_agent.contract import FaultKind, Severity


if TYPE_CHECKING:
    from collections.abc import Iterable

    from node_agent.health.faults import OpenFault

WATCHES: Final = (
    "ALL",
    "DRIVER",
    "INFOROM",
    "MCU",
    "MEM",
    "NVLINK",
    "PCIE",
    "PMU",
    "POWER",
    "SM",
    "THERMAL",
)
PASS: Final = 0
WARN: Final = 10
FAIL: Final = 20


class Incident(NamedTuple):
    """Why a watch is not well: its code, severity and category in DCGM's words."""

    watch: str
    code: str
    severity: str
    category: str


_XID: Final = "DCGM_FR_XID_ERROR"
_BY_XID: Final = {
    38: Incident("PCIE", _XID, "MONITOR", "HARDWARE_PCIE"),
    39: Incident("PCIE", _XID, "MONITOR", "HARDWARE_PCIE"),
    42: Incident("PCIE", _XID, "MONITOR", "HARDWARE_PCIE"),
    48: Incident("ALL", _XID, "RESET", "HARDWARE_MEMORY"),
    54: Incident("POWER", _XID, "MONITOR", "HARDWARE_POWER"),
    56: Incident("POWER", _XID, "MONITOR", "HARDWARE_POWER"),
    57: Incident("POWER", _XID, "MONITOR", "HARDWARE_POWER"),
    58: Incident("POWER", _XID, "MONITOR", "HARDWARE_POWER"),
    60: Incident("THERMAL", _XID, "MONITOR", "HARDWARE_THERMAL"),
    61: Incident("THERMAL", _XID, "MONITOR", "HARDWARE_THERMAL"),
    62: Incident("THERMAL", _XID, "RESET", "HARDWARE_THERMAL"),
    63: Incident("MEM", "DCGM_FR_PENDING_ROW_REMAP", "RESET", "HARDWARE_MEMORY"),
    64: Incident("MEM", "DCGM_FR_ROW_REMAP_FAILURE", "ISOLATE", "HARDWARE_MEMORY"),
    67: Incident("NVLINK", _XID, "MONITOR", "HARDWARE_NVLINK"),
    73: Incident("NVLINK", _XID, "MONITOR", "HARDWARE_NVLINK"),
    74: Incident("ALL", _XID, "RESET", "HARDWARE_NVLINK"),
    78: Incident("POWER", _XID, "MONITOR", "HARDWARE_POWER"),
    79: Incident("ALL", "DCGM_FR_FALLEN_OFF_BUS", "RESET", "HARDWARE_PCIE"),
    93: Incident("INFOROM", "DCGM_FR_CORRUPT_INFOROM", "MONITOR", "HARDWARE_OTHER"),
    94: Incident("ALL", _XID, "MONITOR", "HARDWARE_MEMORY"),
    95: Incident("ALL", "DCGM_FR_UNCONTAINED_ERROR", "RESET", "HARDWARE_MEMORY"),
    121: Incident("NVLINK", _XID, "MONITOR", "HARDWARE_NVLINK"),
    137: Incident("NVLINK", _XID, "MONITOR", "HARDWARE_NVLINK"),
    154: Incident("DRIVER", _XID, "RESET", "HARDWARE_OTHER"),
    **dict.fromkeys(range(144, 151), Incident("NVLINK", _XID, "RESET", "HARDWARE_NVLINK")),
}
_OTHER_XID: Final = Incident("ALL", _XID, "TRIAGE", "HARDWARE_OTHER")
_BY_KIND: Final = {
    FaultKind.LOST: Incident("ALL", "DCGM_FR_FALLEN_OFF_BUS", "RESET", "HARDWARE_PCIE"),
    FaultKind.MEMORY: Incident("MEM", "DCGM_FR_VOLATILE_DBE_DETECTED", "RESET", "HARDWARE_MEMORY"),
    FaultKind.THERMAL: Incident(
        "THERMAL", "DCGM_FR_CLOCK_THROTTLE_THERMAL", "MONITOR", "HARDWARE_THERMAL"
    ),
    FaultKind.INTERCONNECT: Incident("NVLINK", "DCGM_FR_NVLINK_DOWN", "RESET", "HARDWARE_NVLINK"),
    FaultKind.DRIVER: Incident("DRIVER", "DCGM_FR_NVML_API", "TRIAGE", "SOFTWARE_DRIVER"),
    FaultKind.RECOVERY_ACTION: Incident("DRIVER", _XID, "RESET", "HARDWARE_OTHER"),
}
_PCIE: Final = Incident("PCIE", "DCGM_FR_PCI_REPLAY_RATE", "MONITOR", "HARDWARE_PCIE")
_UNKNOWN: Final = Incident("ALL", "DCGM_FR_UNKNOWN", "TRIAGE", "INTERNAL_OTHER")


def watch_rows(faults: Iterable[OpenFault]) -> list[tuple[dict[str, str], int]]:
    """Labels and value of each watch of one device, given its open faults."""
    worst: dict[str, tuple[int, Incident]] = {}
    for fault in faults:
        if fault.severity is Severity.INFO:
            continue
        incident = _incident(fault)
        level = FAIL if fault.severity is Severity.FATAL else WARN
        if level > worst.get(incident.watch, (PASS, incident))[0]:
            worst[incident.watch] = (level, incident)
    return [
        (_failed(worst[watch][1]), worst[watch][0])
        if watch in worst
        else ({"health_error_code": "DCGM_FR_OK", "health_watch": watch}, PASS)
        for watch in WATCHES
    ]


def _incident(fault: OpenFault) -> Incident:
    if fault.kind is FaultKind.XID:
        return _BY_XID.get(fault.code or 0, _OTHER_XID)
    if fault.kind is FaultKind.INTERCONNECT and fault.subcode.startswith("pcie"):
        return _PCIE
    return _BY_KIND.get(fault.kind, _UNKNOWN)


def _failed(incident: Incident) -> dict[str, str]:
    return {
        "health_error_category": incident.category,
        "health_error_code": incident.code,
        "health_error_severity": incident.severity,
        "health_watch": incident.watch,
    }
