"""The vocabulary that agent and controller share: what stands on the Node object.

The agent writes, the controller reads, and they meet nowhere else. Two things
carry everything: node conditions (a level each, for anyone to read) and one
annotation with the faults behind them (for policies that ask for more than a
level). ``docs/contract.md`` is the page for users; this module is the truth.

Invariants:

- An annotation never exceeds :data:`MAX_BYTES`, unless its fatal faults alone do:
  a fatal fault is never dropped, and what is missing is counted.
- A reader understands this version and the one before. Of a newer one it uses the
  conditions only, and says so (:class:`UnsupportedVersionError`).

Imports nothing but msgspec, so that neither program pays for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec


DOMAIN: Final = "gpu-remediator.io"
FAULTS_ANNOTATION: Final = f"{DOMAIN}/gpu-faults"
SET_HEALTHY_ANNOTATION: Final = f"{DOMAIN}/set-healthy"
"""RFC 3339 time; clears faults older than it. Written by an operator, never by us."""

VERSION: Final = 1
OLDEST_READABLE_VERSION: Final = 1
MAX_BYTES: Final = 8192
MAX_READ: Final = 65536
"""Characters of an annotation that is read: no machine has so many fatal faults."""
MAX_TIMES: Final = 10
"""Episode times kept per fault, newest last, so that "3 in 24 h" can be decided."""
PAST_SECONDS: Final = 86400.0
"""How long the times of a fault that is over are kept, so that a reset does not end a count."""

HEARTBEAT_SECONDS: Final = 300.0
"""How often an unchanged state is written again (with jitter)."""
STALE_AFTER_SECONDS: Final = 3 * HEARTBEAT_SECONDS
"""Without a new heartbeat for this long, a reader takes the agent for silent."""


class ConditionType(StrEnum):
    """Node condition types of the agent. ``True`` = problem, ``Unknown`` = cannot tell."""

    XID_ERROR = "GPUXidError"
    RECOVERY_ACTION_REQUIRED = "GPURecoveryActionRequired"
    LOST = "GPULost"
    MEMORY_DEGRADED = "GPUMemoryDegraded"
    OVERHEATING = "GPUOverheating"
    INTERCONNECT_DEGRADED = "GPUInterconnectDegraded"
    DRIVER_UNRESPONSIVE = "GPUDriverUnresponsive"


class ConditionStatus(StrEnum):
    """The three values that Kubernetes gives a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Reasons of conditions. ``Xid<code>`` and ``SXid<code>`` are made by :func:`xid_reason`."""

    NO_FAULT = "NoFault"
    NOT_CHECKED = "NotChecked"
    GPU_RESET = "GPUReset"
    NODE_REBOOT = "NodeReboot"
    DRAIN_P2P = "DrainP2P"
    DRAIN_AND_RESET = "DrainAndReset"
    RECOVER_IMEX_DOMAIN = "RecoverIMEXDomain"
    FALLEN_OFF_BUS = "FallenOffBus"
    COUNT_MISMATCH = "CountMismatch"
    DEVICE_LOST = "DeviceLost"
    ROW_REMAP_FAILURE = "RowRemapFailure"
    ROW_REMAP_PENDING = "RowRemapPending"
    UNCORRECTABLE_ECC = "UncorrectableECC"
    PAGE_RETIREMENT_PENDING = "PageRetirementPending"
    PAGE_RETIREMENT_LIMIT = "PageRetirementLimit"
    HW_THERMAL_SLOWDOWN = "HwThermalSlowdown"
    SW_THERMAL_SLOWDOWN = "SwThermalSlowdown"
    TEMPERATURE_OVER_LIMIT = "TemperatureOverLimit"
    NVLINK_DOWN = "NVLinkDown"
    NVLINK_ERRORS = "NVLinkErrors"
    PCIE_LINK_DEGRADED = "PCIeLinkDegraded"
    FABRIC_UNHEALTHY = "FabricUnhealthy"
    NVML_TIMEOUT = "NVMLTimeout"
    DRIVER_NOT_LOADED = "DriverNotLoaded"
    VERSION_MISMATCH = "VersionMismatch"


class Severity(StrEnum):
    """How bad a fault is. Info never raises a condition by itself."""

    INFO = "info"
    WARNING = "warning"
    FATAL = "fatal"


class FaultKind(StrEnum):
    """What a fault is about, which is also where its ``code`` comes from."""

    XID = "xid"
    SXID = "sxid"
    LOST = "lost"
    RECOVERY_ACTION = "recovery-action"
    MEMORY = "memory"
    THERMAL = "thermal"
    INTERCONNECT = "interconnect"
    DRIVER = "driver"


class Instance(msgspec.Struct, frozen=True, omit_defaults=True):
    """A MIG instance: GPU instance id and compute instance id."""

    gi: int
    ci: int | None = None


class Fault(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One unresolved (or, if informational, recent) fault of one device.

    ``pci`` is ``dddd:bb:dd.f`` in lower-case hex. ``count`` is episodes, ``lines``
    raw reports. ``action`` is what NVIDIA's catalogue or the driver advises.
    ``sources`` are the agent's views that saw it, ``pid`` and ``process`` (truncated by the
    kernel to 15 characters) the last process that the driver named. Times are UTC.
    """

    kind: FaultKind
    severity: Severity
    first_seen: datetime
    last_seen: datetime
    pci: str = ""
    gpu: str = ""
    index: int | None = None
    code: int | None = None
    subcode: str = ""
    action: str = ""
    count: int = 1
    lines: int = 1
    times: tuple[datetime, ...] = ()
    boot_id: str = msgspec.field(default="", name="bootID")
    mig: Instance | None = None
    pods: tuple[str, ...] = ()
    message: str = ""
    pid: int | None = None
    process: str = ""
    sources: tuple[str, ...] = ()


class Past(msgspec.Struct, frozen=True, omit_defaults=True):
    """Episodes of a code on one device that are over: for counts, and for nothing else.

    ``times`` are the beginnings of the last :data:`MAX_TIMES` within :data:`PAST_SECONDS`, newest
    last, UTC. No condition rests on them, and alone they say that nothing is wrong now.
    """

    kind: FaultKind
    code: int
    times: tuple[datetime, ...]
    pci: str = ""


class Truncated(msgspec.Struct, frozen=True, omit_defaults=True):
    """What did not fit: faults left out by severity, faults without their details, the past."""

    info: int = 0
    warning: int = 0
    details: int = 0
    past: int = 0


class FaultReport(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The whole annotation: the faults of one node, worst first, and what is over, newest first.

    ``past`` is younger than the version: a writer may not know it, and a reader may ignore it.
    """

    version: int
    boot_id: str = msgspec.field(default="", name="bootID")
    faults: tuple[Fault, ...] = ()
    truncated: Truncated | None = None
    past: tuple[Past, ...] = ()


class ContractError(Exception):
    """The annotation cannot be used; the conditions still can."""


class MalformedReportError(ContractError):
    """Not JSON of this schema. ``str()`` names the place."""


class UnsupportedVersionError(ContractError):
    """Written by a newer agent. Upgrade the controller to read the details."""


class Condition(NamedTuple):
    """One condition as the agent states it, without its times."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str


_SEVERITY_ORDER: Final = {Severity.FATAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


def xid_reason(kind: FaultKind, code: int) -> str:
    """Reason of GPUXidError for a code: ``Xid79``, ``SXid20034``."""
    return f"{'SXid' if kind is FaultKind.SXID else 'Xid'}{code}"


def worst_first(fault: Fault) -> tuple[int, float]:
    """Sort key: fatal before warning before info, newest first within each."""
    return _SEVERITY_ORDER[fault.severity], -fault.last_seen.timestamp()


def encode_report(
    faults: tuple[Fault, ...],
    *,
    boot_id: str,
    past: tuple[Past, ...] = (),
    left_out: Truncated = Truncated(),  # noqa: B008 - immutable
    limit: int = MAX_BYTES,
) -> str:
    """Return the annotation for these faults, at most ``limit`` bytes of UTF-8.

    ``left_out`` are those that the agent itself could not keep.

    What goes first when it is too long: the past, the oldest first; the oldest informational
    faults; then messages, pods and times of the rest; then the oldest warnings. A fatal fault
    is never dropped, so a report of very many fatal faults may exceed the limit
    (it is then stripped to its essentials).
    """
    kept = sorted(faults, key=worst_first)
    over = sorted(past, key=lambda one: (one.times[-1:], one.kind, one.code, one.pci), reverse=True)
    fitting = _fitting(kept, over, boot_id=boot_id, left_out=left_out, limit=limit)
    if fitting is None:
        missing = msgspec.structs.replace(left_out, past=left_out.past + len(over))
        fitting = _shortened(kept, boot_id, missing, limit)
    return msgspec.json.encode(fitting).decode()


def decode_report(text: str) -> FaultReport:
    """Read the annotation.

    Raises:
        UnsupportedVersionError: a version newer than :data:`VERSION`.
        MalformedReportError: anything else that is not of the schema.
    """
    if len(text) > MAX_READ:
        raise MalformedReportError(f"{FAULTS_ANNOTATION} is longer than {MAX_READ} characters")
    try:
        version = msgspec.json.decode(text, type=_VersionOnly).version
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedReportError(f"{FAULTS_ANNOTATION} is not a fault report: {error}") from error
    if version > VERSION:
        raise UnsupportedVersionError(
            f"{FAULTS_ANNOTATION} is of version {version}, this program reads up to {VERSION}: "
            "its details are left out, the node's conditions are used",
        )
    if version < OLDEST_READABLE_VERSION:
        raise MalformedReportError(f"{FAULTS_ANNOTATION} has no usable version: {version}")
    try:
        return msgspec.json.decode(text, type=FaultReport)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedReportError(f"{FAULTS_ANNOTATION} is not a fault report: {error}") from error


class _VersionOnly(msgspec.Struct):
    version: int


def _fitting(
    kept: list[Fault], over: list[Past], *, boot_id: str, left_out: Truncated, limit: int
) -> FaultReport | None:
    """Return the report with all faults, and as much of the past as fits; None: not even those."""

    def report(number: int) -> FaultReport:
        truncated = msgspec.structs.replace(left_out, past=left_out.past + len(over) - number)
        return FaultReport(
            version=VERSION,
            boot_id=boot_id,
            faults=tuple(kept),
            truncated=None if truncated == Truncated() else truncated,
            past=tuple(over[:number]),
        )

    room = limit - _size(report(0)) - len(b',"past":[]')
    sizes = [len(msgspec.json.encode(one)) + 1 for one in over]
    number = len(over) if sum(sizes) <= room else 0
    while number < len(over) and sizes[number] <= room:
        room -= sizes[number]
        number += 1
    found = report(number)
    return found if _size(found) <= limit else None


def _size(report: FaultReport) -> int:
    return len(msgspec.json.encode(report))


def _shortened(kept: list[Fault], boot_id: str, left_out: Truncated, limit: int) -> FaultReport:
    """Drop, in the order of :func:`encode_report`, until it fits or only fatal faults remain.

    Each fault is encoded once and sizes are added up: with hundreds of faults, encoding the
    whole report for each one dropped would hold up the agent's event loop.
    """
    sizes = [len(msgspec.json.encode(fault)) for fault in kept]
    faults_size = sum(sizes)
    info, warning, details = left_out.info, left_out.warning, left_out.details
    past = left_out.past

    def report(faults: Sequence[Fault]) -> FaultReport:
        truncated = Truncated(info=info, warning=warning, details=details, past=past)
        return FaultReport(
            version=VERSION,
            boot_id=boot_id,
            faults=tuple(faults),
            truncated=truncated,
        )

    def fits() -> bool:
        around = report(())
        brackets_and_commas = len(b'"faults":[],') + max(0, len(kept) - 1)
        return _size(around) + brackets_and_commas + faults_size <= limit

    while kept and kept[-1].severity is Severity.INFO and not fits():
        kept.pop()
        faults_size -= sizes.pop()
        info += 1
    for at in range(len(kept) - 1, -1, -1):
        if fits():
            return report(kept)
        bare = msgspec.structs.replace(kept[at], message="", pods=(), times=kept[at].times[-1:])
        details += bare != kept[at]
        kept[at] = bare
        size = len(msgspec.json.encode(bare))
        faults_size += size - sizes[at]
        sizes[at] = size
    while kept and kept[-1].severity is Severity.WARNING and not fits():
        kept.pop()
        faults_size -= sizes.pop()
        warning += 1
    return report(kept)
