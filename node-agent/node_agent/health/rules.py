"""Which fault raises which condition, and what makes it end. One table.

The order of :data:`RULES` is the order of precedence: the first row that matches a
fault speaks for it. ``docs/agent/health.md`` is generated from here.

Invariant: nothing clears because time went by, except informational faults, which
raise nothing. Everything else needs positive evidence (:class:`Clear`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from node_agent.contract import ConditionType, FaultKind, Reason, Severity
from node_agent.xid.catalogue import Action
from node_agent.xid.parse import FALLEN_OFF_BUS, RECOVERY_ACTION_CHANGED


class Clear(StrEnum):
    """Positive evidence that a fault is over."""

    AGE = "age"
    """Informational only: not seen for an hour."""
    REBOOT = "reboot"
    """A new boot that the kubelet confirms, the fault not seen in it, every device there."""
    RESET = "reset"
    """The driver takes its recovery action back (Xid 154, field 230): a verified GPU reset."""
    LEVEL = "level"
    """The signal itself went away, for long enough: there again, cool again, link up again."""
    OPERATOR = "operator"
    """A person says so (``set-healthy``), for faults older than a time."""


class Raise(NamedTuple):
    """A condition that a fault makes true. An empty reason is filled from the fault."""

    type: ConditionType
    reason: str = ""


class Rule(NamedTuple):
    """One row. ``codes`` and ``subcodes`` empty: any."""

    name: str
    kind: FaultKind | None
    codes: frozenset[int]
    raises: tuple[Raise, ...]
    cleared_by: frozenset[Clear]
    severity: Severity | None = None
    subcodes: frozenset[str] = frozenset()


ABSENT: Final = "absent"
NO_ANSWER: Final = "no-answer"
TOO_FEW: Final = "too-few"
"""Subcodes of ``lost`` faults that PCI sysfs raised: level signals, which clear by themselves."""
PCI_SUBCODES: Final = frozenset((ABSENT, NO_ANSWER, TOO_FEW))


class Level(StrEnum):
    """Subcodes of faults that NVML's readings raise and end (:mod:`~node_agent.health.signals`)."""

    RECOVERY_ACTION = "recovery-action"
    NVML_LOST = "nvml-lost"
    UNBOUND = "unbound"
    REMAP_FAILURE = "row-remap-failure"
    REMAP_PENDING = "row-remap-pending"
    REMAP_EXHAUSTED = "row-remap-bank-exhausted"
    UNREPAIRABLE = "unrepairable"
    RETIREMENT_PENDING = "page-retirement-pending"
    RETIREMENT_LIMIT = "page-retirement-limit"
    ECC_UNCORRECTED = "ecc-uncorrected"
    ECC_CORRECTED = "ecc-corrected"
    SRAM_THRESHOLD = "sram-threshold"
    HW_THERMAL = "hw-thermal"
    SW_THERMAL = "sw-thermal"
    POWER_BRAKE = "power-brake"
    OVER_LIMIT = "over-limit"
    MEMORY_OVER_LIMIT = "memory-over-limit"
    PCIE_LINK = "pcie-link"
    PCIE_ERRORS = "pcie-errors"
    NVLINK_DOWN = "nvlink-down"
    NVLINK_ERRORS = "nvlink-errors"
    FABRIC = "fabric"
    PERSISTENCE_OFF = "persistence-off"
    INFOROM = "inforom"
    NVML_TIMEOUT = "nvml-timeout"
    DRIVER_NOT_LOADED = "driver-not-loaded"
    VERSION_MISMATCH = "version-mismatch"


LEVEL_SUBCODES: Final = frozenset(str(level) for level in Level)

_ROW_REMAP_PENDING: Final = 63
_ROW_REMAP_FAILURE: Final = 64
_UNCORRECTABLE_ECC: Final = frozenset((48, 95, 140))
_NVLINK: Final = frozenset((74, *range(144, 151)))
_NO_CODES: Final[frozenset[int]] = frozenset()

_XID: Final = Raise(ConditionType.XID_ERROR)
_BY_REBOOT: Final = frozenset((Clear.REBOOT, Clear.OPERATOR))
_BY_RESET: Final = frozenset((Clear.RESET, Clear.REBOOT, Clear.OPERATOR))
_BY_LEVEL: Final = frozenset((Clear.LEVEL, Clear.OPERATOR))


def _level(name: str, kind: FaultKind, *levels: Level, raises: tuple[Raise, ...]) -> Rule:
    subcodes = frozenset(str(level) for level in levels)
    return Rule(name, kind, _NO_CODES, raises, _BY_LEVEL, subcodes=subcodes)


def _memory(name: str, reason: Reason, *levels: Level) -> Rule:
    raises = (Raise(ConditionType.MEMORY_DEGRADED, reason),)
    return _level(name, FaultKind.MEMORY, *levels, raises=raises)


def _thermal(name: str, reason: Reason, *levels: Level) -> Rule:
    raises = (Raise(ConditionType.OVERHEATING, reason),)
    return _level(name, FaultKind.THERMAL, *levels, raises=raises)


def _link(name: str, reason: Reason, *levels: Level) -> Rule:
    raises = (Raise(ConditionType.INTERCONNECT_DEGRADED, reason),)
    return _level(name, FaultKind.INTERCONNECT, *levels, raises=raises)


def _driver(name: str, reason: Reason, level: Level) -> Rule:
    raises = (Raise(ConditionType.DRIVER_UNRESPONSIVE, reason),)
    return _level(name, FaultKind.DRIVER, level, raises=raises)


RULES: Final = (
    Rule(
        "informational, by NVML",
        None,
        _NO_CODES,
        (),
        _BY_LEVEL,
        severity=Severity.INFO,
        subcodes=LEVEL_SUBCODES,
    ),
    Rule(
        "informational",
        None,
        _NO_CODES,
        (),
        frozenset((Clear.AGE, Clear.REBOOT, Clear.OPERATOR)),
        severity=Severity.INFO,
    ),
    Rule(
        # Neither a reset nor a reboot repairs memory that ran out of spare rows.
        "row remapping failed",
        FaultKind.XID,
        frozenset((_ROW_REMAP_FAILURE,)),
        (_XID, Raise(ConditionType.MEMORY_DEGRADED, Reason.ROW_REMAP_FAILURE)),
        frozenset((Clear.OPERATOR,)),
    ),
    Rule(
        "row remapping pending",
        FaultKind.XID,
        frozenset((_ROW_REMAP_PENDING,)),
        (_XID, Raise(ConditionType.MEMORY_DEGRADED, Reason.ROW_REMAP_PENDING)),
        _BY_RESET,
    ),
    Rule(
        "uncorrectable memory error",
        FaultKind.XID,
        _UNCORRECTABLE_ECC,
        (_XID, Raise(ConditionType.MEMORY_DEGRADED, Reason.UNCORRECTABLE_ECC)),
        _BY_RESET,
    ),
    Rule(
        "fallen off the bus",
        FaultKind.XID,
        frozenset((FALLEN_OFF_BUS,)),
        (_XID, Raise(ConditionType.LOST, Reason.FALLEN_OFF_BUS)),
        _BY_REBOOT,
    ),
    Rule(
        # The reason is the action that the driver asks for.
        "recovery action",
        FaultKind.XID,
        frozenset((RECOVERY_ACTION_CHANGED,)),
        (_XID, Raise(ConditionType.RECOVERY_ACTION_REQUIRED)),
        _BY_RESET,
    ),
    Rule(
        "NVLink",
        FaultKind.XID,
        _NVLINK,
        (_XID, Raise(ConditionType.INTERCONNECT_DEGRADED, Reason.NVLINK_DOWN)),
        _BY_RESET,
    ),
    Rule("other Xid", FaultKind.XID, _NO_CODES, (_XID,), _BY_RESET),
    Rule(
        "NVSwitch",
        FaultKind.SXID,
        _NO_CODES,
        (_XID, Raise(ConditionType.INTERCONNECT_DEGRADED, Reason.FABRIC_UNHEALTHY)),
        _BY_REBOOT,
    ),
    Rule(
        "device missing on PCI",
        FaultKind.LOST,
        _NO_CODES,
        (Raise(ConditionType.LOST, Reason.COUNT_MISMATCH),),
        frozenset((Clear.LEVEL, Clear.OPERATOR)),
        subcodes=frozenset((ABSENT, TOO_FEW)),
    ),
    Rule(
        "device does not answer on PCI",
        FaultKind.LOST,
        _NO_CODES,
        (Raise(ConditionType.LOST, Reason.DEVICE_LOST),),
        frozenset((Clear.LEVEL, Clear.OPERATOR)),
        subcodes=frozenset((NO_ANSWER,)),
    ),
    _level(
        "lost to the driver",
        FaultKind.LOST,
        Level.NVML_LOST,
        raises=(Raise(ConditionType.LOST, Reason.DEVICE_LOST),),
    ),
    Rule(
        "fallen off the bus, said without an Xid",
        FaultKind.LOST,
        _NO_CODES,
        (Raise(ConditionType.LOST, Reason.FALLEN_OFF_BUS),),
        _BY_REBOOT,
    ),
    _level(
        # The reason is the action that the driver asks for.
        "recovery action, by NVML",
        FaultKind.RECOVERY_ACTION,
        Level.RECOVERY_ACTION,
        raises=(Raise(ConditionType.RECOVERY_ACTION_REQUIRED),),
    ),
    _memory(
        "memory beyond repair",
        Reason.ROW_REMAP_FAILURE,
        Level.REMAP_FAILURE,
        Level.UNREPAIRABLE,
    ),
    _memory("row remapping pending, by NVML", Reason.ROW_REMAP_PENDING, Level.REMAP_PENDING),
    Rule(
        "uncorrected errors that no Xid explains",
        FaultKind.MEMORY,
        _NO_CODES,
        (Raise(ConditionType.MEMORY_DEGRADED, Reason.UNCORRECTABLE_ECC),),
        frozenset((Clear.LEVEL, Clear.RESET, Clear.REBOOT, Clear.OPERATOR)),
        subcodes=frozenset((str(Level.ECC_UNCORRECTED),)),
    ),
    _memory("SRAM error threshold", Reason.UNCORRECTABLE_ECC, Level.SRAM_THRESHOLD),
    _memory("page retirement pending", Reason.PAGE_RETIREMENT_PENDING, Level.RETIREMENT_PENDING),
    _memory("too many retired pages", Reason.PAGE_RETIREMENT_LIMIT, Level.RETIREMENT_LIMIT),
    _thermal("hardware thermal slowdown", Reason.HW_THERMAL_SLOWDOWN, Level.HW_THERMAL),
    _thermal(
        "over its temperature limit",
        Reason.TEMPERATURE_OVER_LIMIT,
        Level.OVER_LIMIT,
        Level.MEMORY_OVER_LIMIT,
    ),
    _thermal("software thermal slowdown", Reason.SW_THERMAL_SLOWDOWN, Level.SW_THERMAL),
    _link("NVLink down", Reason.NVLINK_DOWN, Level.NVLINK_DOWN),
    _link("fabric", Reason.FABRIC_UNHEALTHY, Level.FABRIC),
    _link("NVLink errors", Reason.NVLINK_ERRORS, Level.NVLINK_ERRORS),
    _link("PCIe link", Reason.PCIE_LINK_DEGRADED, Level.PCIE_LINK, Level.PCIE_ERRORS),
    _driver("NVML does not answer", Reason.NVML_TIMEOUT, Level.NVML_TIMEOUT),
    _driver("driver not loaded", Reason.DRIVER_NOT_LOADED, Level.DRIVER_NOT_LOADED),
    _driver("versions do not match", Reason.VERSION_MISMATCH, Level.VERSION_MISMATCH),
)
_NOTHING_KNOWN: Final = Rule("unknown", None, _NO_CODES, (), frozenset((Clear.OPERATOR,)))

BEYOND_A_RESET: Final = frozenset(
    (
        Action.RESTART_BM,
        Action.RESTART_VM,
        Action.CONTACT_SUPPORT,
        Action.CHECK_MECHANICALS,
        Action.UPDATE_SWFW,
    )
)
"""Advice that a GPU reset does not fulfil: such a fault outlives one, whatever its row says."""


def rule_for(*, kind: FaultKind, code: int | None, subcode: str = "", severity: Severity) -> Rule:
    """The row that speaks for a fault. Every fault has one."""
    for rule in RULES:
        if (
            (rule.kind is None or rule.kind is kind)
            and (rule.severity is None or rule.severity is severity)
            and (not rule.codes or code in rule.codes)
            and (not rule.subcodes or subcode in rule.subcodes)
        ):
            return rule
    return _NOTHING_KNOWN


def is_cleared_by(rule: Rule, evidence: Clear, *, action: str) -> bool:
    """Whether this evidence ends a fault of this row, whose advised action is ``action``."""
    asks = any(each.type is ConditionType.RECOVERY_ACTION_REQUIRED for each in rule.raises)
    if evidence is Clear.RESET and action in BEYOND_A_RESET and not asks:
        return False  # what the driver asked for is over when it says so, whatever it was
    return evidence in rule.cleared_by
