"""What NVML says about this node, as the rest of the agent reads it.

One value, :class:`NvmlView`, holds the latest of everything with its age; nobody waits for
NVML to read it. Immutable, made anew by :mod:`node_agent.nvml.supervisor`.

Invariants:

- A quantity that the device does not support, or whose value failed its range check, is
  absent from ``Reading.values``. It is never 0 in its place.
- Units stand in the names of the quantities.
- Times ``at`` and ``since`` are unix seconds by the agent's clock; NVML has none of its own.

Imports nothing but msgspec: the child process lives on it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec


class NvmlState(StrEnum):
    """How it stands with NVML as a whole. ``NvmlView.why`` says it in words."""

    STARTING = "starting"
    """No child has enumerated the devices yet."""
    OK = "ok"
    NO_LIBRARY = "no-library"
    """There is no libnvidia-ml.so.1 here."""
    DRIVER_NOT_LOADED = "driver-not-loaded"
    VERSION_MISMATCH = "version-mismatch"
    """The library and the kernel module are of different versions; mostly an upgrade half done."""
    NO_ACCESS = "no-access"
    """The driver is there and we may not use it (device cgroup, permissions). Not a GPU fault."""
    HUNG = "hung"
    """A call did not return in time; ``hung_call`` names it."""
    RESTARTING = "restarting"
    """The child died or was replaced, and its successor has not answered yet."""
    RELEASED = "released"
    """Handles are closed on request, so that a GPU can be reset or the driver unloaded."""


class MigInstance(msgspec.Struct, frozen=True):
    """One MIG device. ``profile`` as NVIDIA writes it, as ``1g.18gb``."""

    uuid: str
    gi: int
    ci: int | None
    profile: str


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Identity and limits of one GPU: read once per enumeration.

    ``pci`` as the kernel log's side normalizes it (``0000:9b:00.0``), ``pci_nvml`` as NVML
    prints it (``00000000:9B:00.0``). ``mig_enabled`` is None where there is no MIG.
    ``supports``: names of whole features (``gpm``, ``row_remap``, ``nvlink``, ``ecc``,
    ``fabric``, ``mig``). ``limits`` by name with unit: ``slowdown_c``, ``shutdown_c``,
    ``gpu_max_c``, ``mem_max_c``, ``tlimit_{shutdown,slowdown,mem_max,gpu_max}_c``,
    ``power_limit_w``, ``power_min_w``, ``power_max_w``, ``pcie_gen_max``,
    ``pcie_width_max``, ``nvlinks``. ``labels``: texts such as InfoROM versions.
    """

    index: int
    uuid: str
    pci: str
    pci_nvml: str
    name: str
    minor: int | None = None
    serial: str = ""
    vbios: str = ""
    brand: str = ""
    architecture: int | None = None
    compute_capability: str = ""
    mig_enabled: bool | None = None
    mig: tuple[MigInstance, ...] = ()
    supports: frozenset[str] = frozenset()
    event_mask: int = 0
    limits: dict[str, float] = {}
    labels: dict[str, str] = {}


class Driver(msgspec.Struct, frozen=True):
    """Versions, as NVML prints them; ``cuda_version`` as ``13.0``."""

    driver_version: str
    nvml_version: str
    cuda_version: str


class Reading(msgspec.Struct, frozen=True):
    """The latest values of one device, or of what a MIG instance has of its own.

    ``errors``: NVML's text by quantity, for those that could not be read. NotSupported is
    not an error: such a quantity is in neither. ``at`` is when the newest value came.
    """

    uuid: str
    at: float
    values: dict[str, float]
    errors: dict[str, str] = {}


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process on one GPU. ``kind`` is ``compute``, ``graphics`` or ``mps``.

    ``memory_bytes`` None: the driver does not say (MIG, or no permission). ``sm_util`` in
    percent since the look before. The pid is of the host's namespace if we share it.
    """

    uuid: str
    pid: int
    kind: str
    memory_bytes: int | None = None
    sm_util: float | None = None
    gi: int | None = None
    ci: int | None = None


class NvmlEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the driver. ``bits`` has one bit set; ``data`` is the code of an Xid."""

    at: float
    uuid: str
    bits: int
    data: int = 0
    gi: int | None = None
    ci: int | None = None


EVENT_NAMES: Final[Mapping[int, str]] = {
    0x2: "uncorrected_ecc",
    0x8: "xid",
    0x200: "corrected_ecc_storm",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failure",
    0x1000: "poison",
    0x2000: "fatal_poison",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}
"""``nvmlEventType*`` bits of nvml.h that are listened to, by their names on the metrics page."""


class CallStats(msgspec.Struct, frozen=True):
    """Calls of one NVML function since the agent started."""

    count: int = 0
    errors: int = 0
    total_seconds: float = 0.0
    last_seconds: float = 0.0


class NvmlView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known from NVML now.

    While ``state`` is not OK, devices, readings and processes stay as they were last seen:
    their age tells. ``lost``: UUIDs of devices that answered GPU_IS_LOST; they stay in
    ``devices``. ``readings`` are by UUID, of a device or of the first MIG instance of each GPU
    instance. ``unanswered``: NVML's error text by index, for devices that it counts but does
    not hand out; after a restart of the agent their UUIDs are not known. ``bound``: how many
    GPUs the driver has; with more than ``devices``, some cannot be opened here (a GPU that was
    added has no device node in a container that ran before). ``events_error``: why events are
    not delivered; ``events`` counts them by name. ``restarts`` counts children that were replaced
    since they hung or died, ``abandoned`` those that hang and are still alive.
    """

    state: NvmlState = NvmlState.STARTING
    why: str = ""
    since: float = 0.0
    driver: Driver | None = None
    devices: tuple[Device, ...] = ()
    readings: dict[str, Reading] = {}
    processes: tuple[Process, ...] = ()
    processes_at: float = 0.0
    lost: tuple[str, ...] = ()
    unanswered: dict[int, str] = {}
    bound: int | None = None
    events_error: str = ""
    events: dict[str, int] = {}
    calls: dict[str, CallStats] = {}
    restarts: int = 0
    abandoned: int = 0
    hung_call: str = ""
