"""Which NVML call or field gives which quantity, in which range: tables, and pure conversion.

Facts of NVIDIA's nvml.h (field ids, units) and of measurements on real cards (what a call
costs). Cheap ones are ``fast``; what takes the driver's lock for long is ``slow``
(the energy counter 2.6 ms, BAR1 0.3 ms, PCIe counters 0.15 ms each); reading the InfoROM
takes 70 ms, so it is ``rare``.

Invariants:

- A number that cannot be true never becomes a value. Cards have reported 644245923 degrees and
  4294967295 percent; each row states what it believes.
- Rows are tried in their order, and a quantity that has a value already is not asked again:
  a later row is what older or newer drivers offer instead.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from node_agent.nvml.protocol import Group


_BLANKS: Final = frozenset(
    {0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF}
    | set(range(0x7FFFFFF0, 0x80000000))
    | set(range(0x7FFFFFFFFFFFFFF0, 0x8000000000000000))
)
"""What NVML and DCGM write where there is no value."""
_COUNT: Final = float(2**53)
_BYTES: Final = float(2**47)
_BYTES_PER_SECOND: Final = 1e14
_TEMPERATURE: Final = (-60.0, 200.0)
KB: Final = 1000.0
"""Of PCIe throughput: measured against GPM on an H200, where 1,024 is 3 % too much."""
KIB: Final = 1024.0
MIB: Final = 1024.0 * 1024.0
_MILLI: Final = 1e-3
_PERCENT_TO_RATIO: Final = 1e-2
EVERY_LINK: Final = 0xFFFFFFFF
"""The scope of a field that sums over all NVLinks."""


class OutOfRangeError(Exception):
    """A number that cannot be true."""


class Quantity(NamedTuple):
    """One row: its name, the factor to its unit, and what can be true in that unit."""

    name: str
    scale: float = 1.0
    low: float = 0.0
    high: float = _COUNT

    def convert(self, raw: float) -> float | None:
        """The value in the quantity's unit; None where ``raw`` says that there is none.

        Raises:
            OutOfRangeError: it cannot be true; the text says what was read.
        """
        if raw in _BLANKS:
            return None
        value = raw * self.scale
        if not self.low <= value <= self.high:
            raise OutOfRangeError(f"{raw} is not within {self.low:g} to {self.high:g}")
        return value


class Scope(Enum):
    """Over what a field is asked."""

    DEVICE = auto()
    EVERY_LINK = auto()
    EACH_LINK = auto()
    EACH_C2C = auto()


class Kind(Enum):
    """What the numbers of a field mean."""

    LEVEL = auto()
    SIGNED = auto()
    """Signed, though some drivers hand it out as unsigned 32 bits: 4294967288 is -8."""
    RATE = auto()
    """A counter of which the growth per second is wanted."""
    BIT_ERROR_RATE = auto()
    """Mantissa in bits 8-11, exponent of 10 in bits 0-7, negated. The worst link counts."""


class Field(NamedTuple):
    """A row of ``nvmlDeviceGetFieldValues``."""

    group: Group
    id: int
    quantity: Quantity
    scope: Scope = Scope.DEVICE
    kind: Kind = Kind.LEVEL


class Call(NamedTuple):
    """A row of a getter. ``outputs``: attribute, index, or None for the result itself."""

    group: Group
    function: str
    outputs: tuple[tuple[Quantity, str | int | None], ...]
    arguments: tuple[int, ...] = ()


def _flag(name: str) -> Quantity:
    return Quantity(name, high=1)


def _percent(name: str) -> Quantity:
    return Quantity(name, high=100)


def _celsius(name: str) -> Quantity:
    return Quantity(name, 1.0, *_TEMPERATURE)


def _watts(name: str) -> Quantity:
    return Quantity(name, _MILLI, 0, 20_000)


def _mhz(name: str) -> Quantity:
    return Quantity(name, high=20_000)


def _bytes(name: str) -> Quantity:
    return Quantity(name, high=_BYTES)


def _rate(name: str, scale: float = 1.0) -> Quantity:
    return Quantity(name, scale, 0, _BYTES_PER_SECOND)


def _one(
    group: Group, function: str, quantity: Quantity, *, of: str | int | None = None, arg: int = -1
) -> Call:
    return Call(group, function, ((quantity, of),), (arg,) if arg >= 0 else ())


_F: Final = Group.FAST
_S: Final = Group.SLOW

MEMORY: Final = (
    (_bytes("fb_total_bytes"), "total"),
    (_bytes("fb_used_bytes"), "used"),
    (_bytes("fb_free_bytes"), "free"),
    (_bytes("fb_reserved_bytes"), "reserved"),
)
"""What version 2 of the memory struct says, of a GPU as of a MIG instance."""

CALLS: Final[tuple[Call, ...]] = (
    _one(_F, "nvmlDeviceGetTemperature", _celsius("gpu_temp_c"), arg=0),
    _one(_F, "nvmlDeviceGetTemperatureV", _celsius("gpu_temp_c"), arg=0),
    _one(_F, "nvmlDeviceGetMarginTemperature", Quantity("margin_temp_c", 1, -200, 200)),
    _one(_F, "nvmlDeviceGetClockInfo", _mhz("sm_clock_mhz"), arg=1),
    _one(_F, "nvmlDeviceGetClockInfo", _mhz("mem_clock_mhz"), arg=2),
    _one(_F, "nvmlDeviceGetClockInfo", _mhz("video_clock_mhz"), arg=3),
    Call(
        _F,
        "nvmlDeviceGetUtilizationRates",
        ((_percent("gpu_util_pct"), "gpu"), (_percent("mem_util_pct"), "memory")),
    ),
    _one(_F, "nvmlDeviceGetEncoderUtilization", _percent("enc_util_pct"), of=0),
    _one(_F, "nvmlDeviceGetDecoderUtilization", _percent("dec_util_pct"), of=0),
    _one(_F, "nvmlDeviceGetPowerUsage", _watts("power_w")),
    Call(_F, "memory_info_v2", MEMORY),
    Call(_F, "nvmlDeviceGetMemoryInfo", MEMORY[:3]),
    _one(_F, "nvmlDeviceGetCurrentClocksEventReasons", Quantity("clocks_event_reasons")),
    _one(_F, "nvmlDeviceGetCurrentClocksThrottleReasons", Quantity("clocks_event_reasons")),
    _one(_F, "nvmlDeviceGetFanSpeed", Quantity("fan_pct", high=200)),
    _one(_F, "nvmlDeviceGetPerformanceState", Quantity("pstate", high=15)),
    _one(_F, "nvmlDeviceGetCurrPcieLinkGeneration", Quantity("pcie_gen", 1, 1, 16)),
    _one(_F, "nvmlDeviceGetCurrPcieLinkWidth", Quantity("pcie_width", 1, 1, 64)),
    Call(_F, "nvlink_states", ((Quantity("nvlink_up"), "up"), (Quantity("nvlink_down"), "down"))),
    _one(_S, "nvmlDeviceGetTotalEnergyConsumption", Quantity("energy_j", _MILLI)),
    _one(_S, "nvmlDeviceGetPcieReplayCounter", Quantity("pcie_replay")),
    Call(
        _S,
        "nvmlDeviceGetBAR1MemoryInfo",
        ((_bytes("bar1_total_bytes"), "bar1Total"), (_bytes("bar1_used_bytes"), "bar1Used")),
    ),
    # Each of these two measures for 20 ms; a counter in 32 bits wraps too fast to be of use.
    _one(_S, "nvmlDeviceGetPcieThroughput", _rate("pcie_tx_bytes_per_s", KB), arg=0),
    _one(_S, "nvmlDeviceGetPcieThroughput", _rate("pcie_rx_bytes_per_s", KB), arg=1),
    _one(_S, "nvmlDeviceGetPowerManagementLimit", _watts("power_limit_w")),
    _one(_S, "nvmlDeviceGetEnforcedPowerLimit", _watts("enforced_power_limit_w")),
    _one(_S, "nvmlDeviceGetEccMode", _flag("ecc_mode"), of=0),
    _one(_S, "nvmlDeviceGetPersistenceMode", _flag("persistence_mode")),
    Call(
        _S,
        "nvmlDeviceGetRowRemapperHistogram",
        tuple(
            (Quantity(f"remap_bank_{name}"), name)
            for name in ("max", "high", "partial", "low", "none")
        ),
    ),
    Call(
        _S,
        "fabric_info",
        (
            (Quantity("fabric_state", high=16), "state"),
            (Quantity("fabric_status", high=1000), "status"),
            (Quantity("fabric_health_mask"), "healthMask"),
        ),
    ),
    Call(_S, "sram_ecc", ((_flag("sram_threshold_exceeded"), "bThresholdExceeded"),)),
    _one(_S, "nvmlDeviceGetUnrepairableMemoryFlag_v1", _flag("unrepairable_memory")),
    _one(_S, "vgpu_license", _flag("vgpu_license")),
    _one(Group.RARE, "inforom_valid", _flag("inforom_valid")),
)

_PCIE_COUNTS: Final = {
    "l0_to_recovery": 169,
    "correctable_errors": 173,
    "naks_received": 174,
    "receiver_error": 175,
    "bad_tlp": 176,
    "naks_sent": 177,
    "bad_dllp": 178,
    "non_fatal_error": 179,
    "fatal_error": 180,
    "unsupported_req": 181,
    "lcrc_error": 182,
    "lane_error": 183,
}
_VIOLATIONS: Final = {
    "power": 74,
    "thermal": 75,
    "sync_boost": 76,
    "board_limit": 77,
    "low_util": 78,
    "reliability": 79,
}

FIELDS: Final[tuple[Field, ...]] = (
    Field(_F, 82, _celsius("memory_temp_c")),
    Field(_F, 185, _watts("power_average_w")),
    Field(_F, 186, _watts("power_instant_w")),
    Field(_F, 230, Quantity("recovery_action", high=255)),
    Field(_F, 3, Quantity("ecc_sbe_vol")),
    Field(_F, 4, Quantity("ecc_dbe_vol")),
    Field(_F, 5, Quantity("ecc_sbe_agg")),
    Field(_F, 6, Quantity("ecc_dbe_agg")),
    Field(_F, 142, Quantity("remap_correctable")),
    Field(_F, 143, Quantity("remap_uncorrectable")),
    Field(_F, 144, _flag("remap_pending")),
    Field(_F, 145, _flag("remap_failure")),
    Field(_S, 94, Quantity("pcie_replay")),
    Field(_S, 29, Quantity("retired_sbe")),
    Field(_S, 30, Quantity("retired_dbe")),
    Field(_S, 31, _flag("retired_pending")),
    *(
        Field(_S, number, Quantity(f"violation_{name}_ns", high=2.0**63))
        for name, number in _VIOLATIONS.items()
    ),
    *(Field(_S, number, Quantity(f"pcie_count_{name}")) for name, number in _PCIE_COUNTS.items()),
    Field(_S, 138, _rate("nvlink_tx_bytes_per_s", KIB), Scope.EVERY_LINK, Kind.RATE),
    Field(_S, 139, _rate("nvlink_rx_bytes_per_s", KIB), Scope.EVERY_LINK, Kind.RATE),
    Field(_S, 38, Quantity("nvlink_crc_flit_errors")),
    Field(_S, 45, Quantity("nvlink_crc_data_errors")),
    Field(_S, 52, Quantity("nvlink_replay_errors")),
    Field(_S, 59, Quantity("nvlink_recovery_errors")),
    Field(_S, 213, Quantity("nvlink5_recovery_ok"), Scope.EACH_LINK),
    Field(_S, 214, Quantity("nvlink5_recovery_failed"), Scope.EACH_LINK),
    Field(_S, 215, Quantity("nvlink5_recovery_events"), Scope.EACH_LINK),
    Field(_S, 220, Quantity("nvlink5_effective_ber", high=1), Scope.EACH_LINK, Kind.BIT_ERROR_RATE),
    Field(_S, 221, Quantity("nvlink5_symbol_errors"), Scope.EACH_LINK),
    Field(_S, 231, Quantity("c2c_errors_intr"), Scope.EACH_C2C),
    Field(_S, 232, Quantity("c2c_errors_replay"), Scope.EACH_C2C),
    Field(_S, 233, Quantity("c2c_errors_replay_b2b"), Scope.EACH_C2C),
)

GPM: Final[dict[int, Quantity]] = {
    **{
        number: Quantity(f"gpm_{name}_ratio", _PERCENT_TO_RATIO, 0, 1.01)
        for number, name in {
            1: "graphics",
            2: "sm",
            3: "sm_occupancy",
            5: "tensor",
            10: "dram",
            11: "fp64",
            12: "fp32",
            13: "fp16",
        }.items()
    },
    20: _rate("gpm_pcie_tx_bytes_per_s", MIB),
    21: _rate("gpm_pcie_rx_bytes_per_s", MIB),
    60: _rate("gpm_nvlink_rx_bytes_per_s", MIB),
    61: _rate("gpm_nvlink_tx_bytes_per_s", MIB),
}
"""By NVML_GPM_METRIC id. Percent and MiB/s, as nvml.h has them."""

LIMIT_FIELDS: Final[dict[int, Quantity]] = {
    193: Quantity("tlimit_shutdown_c", 1, -300, 300),
    194: Quantity("tlimit_slowdown_c", 1, -300, 300),
    195: Quantity("tlimit_mem_max_c", 1, -300, 300),
    196: Quantity("tlimit_gpu_max_c", 1, -300, 300),
}
"""Distances to a limit: 0 and below is where it acts. Read once, always signed."""


def as_signed(raw: int) -> int:
    """Undo that a driver handed a negative 32-bit number out as unsigned."""
    return raw - 2**32 if 2**31 <= raw < 2**32 else raw


def bit_error_rate(raw: int) -> float:
    """Decode NVLink's bit error rate."""
    return float((raw >> 8) & 0xF) * 10.0 ** -(raw & 0xFF)


def rate(before: tuple[float, int], now: tuple[float, int]) -> float | None:
    """Growth per second between two ``(seconds, counter)``; None when it fell or no time passed."""
    seconds = now[0] - before[0]
    grown = now[1] - before[1]
    return grown / seconds if seconds > 0 and grown >= 0 else None
