"""What one reading of one GPU says about it: one small judge a signal, one table.

A judge looks at the values of now, at how counters grew, and at the device's own limits,
and says bad, fine, in between (keep what was said: hysteresis), or nothing (it cannot
tell). When bad becomes a fault and fine ends it is in the table too (``hold`` and
``release``, seconds); :mod:`node_agent.health.levels` keeps that time.
``docs/agent/health.md`` is generated from :data:`SIGNALS`.

Invariants:

- A value that is absent is never bad nor fine; one that could not be read is not absent.
- Error counters count by growth only: a healthy card has non-zero ones.
- Limits come from the device itself, not from a list of models.

Longer than other modules: the judges and the table that names them are read side by side.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from node_agent.contract import FaultKind, Reason, Severity
from node_agent.health.rules import Level
from node_agent.xid.catalogue import Action


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from node_agent.nvml.model import Device


class Judgement(Enum):
    """What a judge says. ``BETWEEN`` keeps what was said before, ``UNKNOWN`` says nothing."""

    BAD = "bad"
    FINE = "fine"
    BETWEEN = "between"
    UNKNOWN = "unknown"


class Finding(NamedTuple):
    """A judgement; for a bad one its words, and what differs from the table's row."""

    judgement: Judgement
    text: str = ""
    severity: Severity | None = None
    action: Action | None = None
    reason: Reason | None = None


class Look(NamedTuple):
    """What a judge may look at.

    ``growth(quantity, seconds)``: by how much a counter grew in the last so many seconds.
    ``links``: NVLinks that this device ought to have up: as many as it had, or its like have.
    ``failed``: quantities that the device has and that could not be read this time.
    ``explained``: an Xid of a moment ago speaks for new uncorrected memory errors.
    """

    device: Device
    values: Mapping[str, float]
    growth: Callable[[str, float], float]
    links: float
    explained: bool
    failed: AbstractSet[str]

    def limit(self, name: str) -> float | None:
        """One of the device's own limits."""
        return self.device.limits.get(name)


class Signal(NamedTuple):
    """One row. ``raises`` and ``ends`` are for people; ``latched``: only another board ends it."""

    level: Level
    kind: FaultKind
    severity: Severity
    action: Action
    hold: float
    release: float
    raises: str
    ends: str
    judge: Callable[[Look], Finding]
    latched: bool = False


UNKNOWN: Final = Finding(Judgement.UNKNOWN)
FINE: Final = Finding(Judgement.FINE)
BETWEEN: Final = Finding(Judgement.BETWEEN)

_SW_THERMAL: Final = 0x20
_HW_SLOWDOWN: Final = 0x08
_HW_THERMAL: Final = 0x40
_POWER_BRAKE: Final = 0x80
"""``nvmlClocksEventReason*`` bits. 0x08 is the sum of all hardware slowdowns."""
_HYSTERESIS_C: Final = 5.0
_LOADED_PERCENT: Final = 10.0
_RETIRED_PAGES_LIMIT: Final = 60.0
"""NVIDIA's RMA policy for GPUs before Ampere; the InfoROM holds 64."""
_REPLAYS_PER_MINUTE: Final = 8.0
"""The rate at which DCGM's health check warns."""
_CRC_PER_SECOND: Final = 100.0
"""Same, for NVLink flit CRC errors."""
_WINDOW: Final = 300.0
_FABRIC_IN_PROGRESS: Final = 2
_FABRIC_COMPLETED: Final = 3
_FABRIC_PARTS: Final = (
    (0, 0x3, "bandwidth is degraded"),
    (2, 0x3, "route recovery is going on"),
    (4, 0x3, "a route is unhealthy"),
    (6, 0x3, "access timeout recovery is going on"),
)
"""``NVML_GPU_FABRIC_HEALTH_MASK_*``: shift, width, words; 1 is true, 2 false, 0 unsupported."""
_FABRIC_CONFIGURATION: Final = (8, 0xF)
"""Same word: 0 unsupported, 1 none, more: what is wrong with the configuration."""


def bad(
    text: str,
    *,
    severity: Severity | None = None,
    action: Action | None = None,
    reason: Reason | None = None,
) -> Finding:
    """A bad finding in these words."""
    return Finding(Judgement.BAD, text, severity, action, reason)


def _flag(quantity: str, text: str, *, is_bad: float = 1.0) -> Callable[[Look], Finding]:
    """A judge of a quantity that is bad at one value and fine at any other."""

    def judge(look: Look) -> Finding:
        value = look.values.get(quantity)
        if value is None:
            return UNKNOWN
        return bad(text) if value == is_bad else FINE

    return judge


def _reason_bit(look: Look, bits: int, *, without: int = 0) -> bool | None:
    reasons = look.values.get("clocks_event_reasons")
    if reasons is None:
        return None
    return bool(int(reasons) & bits) and not int(reasons) & without


def _clock_reason(bits: int, text: str) -> Callable[[Look], Finding]:
    def judge(look: Look) -> Finding:
        found = _reason_bit(look, bits)
        if found is None:
            return UNKNOWN
        return bad(text) if found else FINE

    return judge


def judge_hw_thermal(look: Look) -> Finding:
    """The bit for heat; the bit for all hardware slowdowns where no power brake explains it."""
    thermal = _reason_bit(look, _HW_THERMAL)
    if thermal is None:
        return UNKNOWN
    if thermal or _reason_bit(look, _HW_SLOWDOWN, without=_POWER_BRAKE):
        return bad("the hardware slows the clocks down because of heat")
    return FINE


def judge_temperature(look: Look) -> Finding:
    """Against the slowdown limit, absolute or as distance to it, whichever the device has."""
    return _worst(
        _against(look, "gpu_temp_c", "slowdown_c", "GPU temperature"),
        _margin(look),
    )


def judge_memory_temperature(look: Look) -> Finding:
    """Against the memory's own maximum."""
    return _against(look, "memory_temp_c", "mem_max_c", "memory temperature")


def _against(look: Look, quantity: str, limit_name: str, words: str) -> Finding:
    value, limit = look.values.get(quantity), look.limit(limit_name)
    if value is None or not limit:
        return UNKNOWN
    if value >= limit:
        return bad(f"{words} {value:g} C has reached the device's limit of {limit:g} C")
    return FINE if value < limit - _HYSTERESIS_C else BETWEEN


def _margin(look: Look) -> Finding:
    """T.Limit counts down: 0 at the highest operating temperature, below that it slows down."""
    margin, limit = look.values.get("margin_temp_c"), look.limit("tlimit_slowdown_c")
    if margin is None or limit is None:
        return UNKNOWN
    if margin <= limit:
        return bad(f"temperature margin {margin:g} C has reached the slowdown limit {limit:g} C")
    return FINE if margin > limit + _HYSTERESIS_C else BETWEEN


def _worst(*findings: Finding) -> Finding:
    for judgement in (Judgement.BAD, Judgement.BETWEEN, Judgement.FINE):
        for finding in findings:
            if finding.judgement is judgement:
                return finding
    return UNKNOWN


def judge_uncorrected(look: Look) -> Finding:
    """New uncorrected errors that no Xid accounts for; over when the counter begins anew."""
    now = look.values.get("ecc_dbe_vol")
    grown = max(look.growth("ecc_dbe_vol", _WINDOW), look.growth("ecc_dbe_agg", _WINDOW))
    if grown > 0:
        if look.explained:
            return BETWEEN
        return bad(f"{grown:g} uncorrected memory error(s), and no Xid that says what was hit")
    if now is None:
        return UNKNOWN
    return FINE if now == 0 else BETWEEN


def judge_corrected(look: Look) -> Finding:
    """Corrected errors that come fast."""
    if "ecc_sbe_vol" not in look.values:
        return UNKNOWN
    grown = look.growth("ecc_sbe_vol", _WINDOW)
    if grown >= 10:  # noqa: PLR2004 - two a minute
        return bad(f"{grown:g} corrected memory errors in five minutes")
    return FINE if grown == 0 else BETWEEN


def judge_banks(look: Look) -> Finding:
    """Banks without a spare row: the next uncorrected error there cannot be remapped."""
    banks = look.values.get("remap_bank_none")
    if banks is None:
        return UNKNOWN
    return bad(f"{banks:g} memory bank(s) have no spare row left") if banks else FINE


def judge_retired(look: Look) -> Finding:
    """Retired pages, on devices that have no row remapping."""
    if "row_remap" in look.device.supports:
        return UNKNOWN
    pages = [look.values[q] for q in ("retired_sbe", "retired_dbe") if q in look.values]
    if not pages:
        return UNKNOWN
    total = sum(pages)
    return bad(f"{total:g} memory pages are retired") if total >= _RETIRED_PAGES_LIMIT else FINE


def judge_retirement_pending(look: Look) -> Finding:
    """A page will be retired at the next reset."""
    if "row_remap" in look.device.supports:
        return UNKNOWN
    return _flag("retired_pending", "a memory page will be retired at the next reset")(look)


def judge_pcie_link(look: Look) -> Finding:
    """Below the maximum while the device works: at rest a link may go down to save power."""
    parts = []
    for quantity, limit_name, words in (
        ("pcie_gen", "pcie_gen_max", "generation"),
        ("pcie_width", "pcie_width_max", "width"),
    ):
        now, most = look.values.get(quantity), look.limit(limit_name)
        if now is None or not most:
            return UNKNOWN
        if now < most:
            parts.append(f"{words} {now:g} of {most:g}")
    if not parts:
        return FINE
    if not _is_loaded(look):
        return BETWEEN
    return bad(f"the PCIe link runs below its maximum under load: {', '.join(parts)}")


def _is_loaded(look: Look) -> bool:
    """Whether the device works. With MIG there is no utilisation; then the P-state tells."""
    used = look.values.get("gpu_util_pct")
    ratio = look.values.get("gpm_graphics_ratio")
    if used is None and ratio is None:
        return look.values.get("pstate") == 0
    return (used or 0.0) >= _LOADED_PERCENT or (ratio or 0.0) * 100 >= _LOADED_PERCENT


def judge_pcie_errors(look: Look) -> Finding:
    """Replays by their rate, fatal errors by any growth."""
    if "pcie_replay" not in look.values and "pcie_count_fatal_error" not in look.values:
        return UNKNOWN
    fatal = look.growth("pcie_count_fatal_error", _WINDOW)
    if fatal:
        return bad(f"{fatal:g} fatal PCIe error(s)")
    rate = look.growth("pcie_replay", _WINDOW) / (_WINDOW / 60.0)
    if rate >= _REPLAYS_PER_MINUTE:
        return bad(f"{rate:.0f} PCIe replays a minute")
    return FINE if rate < _REPLAYS_PER_MINUTE / 4 else BETWEEN


def judge_nvlinks(look: Look) -> Finding:
    """Links that were up, or are up on the GPUs of the same kind beside it."""
    up = look.values.get("nvlink_up")
    if up is None or not look.links:
        return UNKNOWN
    return bad(f"{up:g} of {look.links:g} NVLinks are up") if up < look.links else FINE


def judge_nvlink_errors(look: Look) -> Finding:
    """Failed or many recoveries; CRC errors by their rate."""
    quantities = (
        "nvlink_replay_errors",
        "nvlink_recovery_errors",
        "nvlink_crc_data_errors",
        "nvlink_crc_flit_errors",
        "nvlink5_recovery_failed",
    )
    if not any(quantity in look.values for quantity in quantities):
        return UNKNOWN
    failed = look.growth("nvlink5_recovery_failed", _WINDOW)
    if failed:
        return bad(f"{failed:g} NVLink recoveries failed", severity=Severity.FATAL)
    for quantity in quantities[:3]:
        grown = look.growth(quantity, _WINDOW)
        if grown:
            words = quantity.removeprefix("nvlink_").removesuffix("_errors").replace("_", " ")
            return bad(f"{grown:g} NVLink {words} error(s) in five minutes")
    if look.growth("nvlink_crc_flit_errors", _WINDOW) >= _CRC_PER_SECOND * _WINDOW:
        return bad("over 100 NVLink flit CRC errors a second")
    return FINE


def judge_fabric(look: Look) -> Finding:
    """The NVLink fabric that the Fabric Manager sets up. A device without one says nothing."""
    state = look.values.get("fabric_state")
    if state == _FABRIC_IN_PROGRESS:
        return bad("the GPU is not registered with the NVLink fabric: is the Fabric Manager well?")
    if state != _FABRIC_COMPLETED:
        return UNKNOWN
    if not look.failed.isdisjoint(("fabric_status", "fabric_health_mask")):
        return UNKNOWN
    status = look.values.get("fabric_status", 0.0)  # older drivers have no mask
    if status:
        return bad(f"registration with the NVLink fabric failed: NVML code {status:g}")
    mask = int(look.values.get("fabric_health_mask", 0.0))
    wrong = [words for shift, width, words in _FABRIC_PARTS if mask >> shift & width == 1]
    shift, width = _FABRIC_CONFIGURATION
    if (mask >> shift & width) > 1:
        wrong.append(f"its configuration is wrong (code {mask >> shift & width})")
    return bad(f"NVLink fabric: {', '.join(wrong)}") if wrong else FINE


_M, _T, _I, _D = FaultKind.MEMORY, FaultKind.THERMAL, FaultKind.INTERCONNECT, FaultKind.DRIVER
_NOTE, _WARN, _FATAL = Severity.INFO, Severity.WARNING, Severity.FATAL

SIGNALS: Final = (
    Signal(
        Level.REMAP_FAILURE, _M, _FATAL, Action.CONTACT_SUPPORT, 0, 0,
        "the row remapper failed (field 145)", "never by itself; another board in its place",
        _flag("remap_failure", "row remapping has failed"), latched=True,
    ),
    Signal(
        Level.UNREPAIRABLE, _M, _FATAL, Action.CONTACT_SUPPORT, 0, 0,
        "the driver calls its memory unrepairable", "never by itself; another board in its place",
        _flag("unrepairable_memory", "the memory is unrepairable"), latched=True,
    ),
    Signal(
        Level.REMAP_PENDING, _M, _WARN, Action.RESET_GPU, 0, 10,
        "a row remap waits for a reset (field 144)", "none waits",
        _flag("remap_pending", "a row will be remapped at the next reset"),
    ),
    Signal(
        Level.REMAP_EXHAUSTED, _M, _NOTE, Action.NONE, 0, 10,
        "a bank has no spare row left", "every bank has one",
        judge_banks,
    ),
    Signal(
        Level.RETIREMENT_PENDING, _M, _WARN, Action.RESET_GPU, 0, 10,
        "before Ampere: a page waits to be retired (field 31)", "none waits",
        judge_retirement_pending,
    ),
    Signal(
        Level.RETIREMENT_LIMIT, _M, _WARN, Action.CONTACT_SUPPORT, 0, 10,
        "before Ampere: 60 pages or more are retired", "fewer are",
        judge_retired,
    ),
    Signal(
        Level.ECC_UNCORRECTED, _M, _WARN, Action.RESET_GPU, 15, 10,
        "uncorrected errors grew, volatile or aggregate, and no Xid 48, 94, 95 or 140 came within "
        "a minute of it (an Xid tells contained from uncontained, and speaks for itself)",
        "the volatile count is 0 again: the driver was loaded or the GPU reset",
        judge_uncorrected,
    ),
    Signal(
        Level.ECC_CORRECTED, _M, _NOTE, Action.NONE, 0, 0,
        "10 corrected errors in five minutes", "none for five minutes",
        judge_corrected,
    ),
    Signal(
        Level.SRAM_THRESHOLD, _M, _WARN, Action.CONTACT_SUPPORT, 0, 10,
        "SRAM errors exceed the driver's threshold", "they do not",
        _flag("sram_threshold_exceeded", "SRAM errors have exceeded the driver's threshold"),
    ),
    Signal(
        Level.HW_THERMAL, _T, _WARN, Action.NONE, 5, 60,
        "hardware slowdown for 5 s, by heat or by no cause named (clocks event reasons)",
        "none for a minute",
        judge_hw_thermal,
    ),
    Signal(
        Level.SW_THERMAL, _T, _WARN, Action.NONE, 60, 60,
        "software thermal slowdown for a minute", "none for a minute",
        _clock_reason(_SW_THERMAL, "the driver slows the clocks down because of heat"),
    ),
    Signal(
        Level.POWER_BRAKE, _T, _NOTE, Action.NONE, 10, 60,
        "external power brake for 10 s; the machine's power, not the GPU", "none for a minute",
        _clock_reason(_POWER_BRAKE, "the machine's power brake slows the clocks down"),
    ),
    Signal(
        Level.OVER_LIMIT, _T, _WARN, Action.NONE, 5, 30,
        "temperature at the device's slowdown limit, or its T.Limit margin used up, for 5 s",
        "5 C away from it for 30 s",
        judge_temperature,
    ),
    Signal(
        Level.MEMORY_OVER_LIMIT, _T, _WARN, Action.NONE, 5, 30,
        "memory temperature at the device's maximum for 5 s", "5 C below it for 30 s",
        judge_memory_temperature,
    ),
    Signal(
        Level.PCIE_LINK, _I, _WARN, Action.NONE, 60, 30,
        "PCIe generation or width below the maximum for a minute of load (10 % utilisation)",
        "both at the maximum for 30 s, loaded or not",
        judge_pcie_link,
    ),
    Signal(
        Level.PCIE_ERRORS, _I, _WARN, Action.NONE, 0, 300,
        "8 replays a minute over five minutes, or any fatal PCIe error", "fewer than 2 a minute",
        judge_pcie_errors,
    ),
    Signal(
        Level.NVLINK_DOWN, _I, _WARN, Action.NONE, 10, 30,
        "fewer NVLinks up than this GPU had, or than its like on this node have, for 10 s",
        "as many again for 30 s",
        judge_nvlinks,
    ),
    Signal(
        Level.NVLINK_ERRORS, _I, _WARN, Action.NONE, 0, 300,
        "any replay, recovery or data CRC error of NVLink within five minutes, 100 flit CRC errors "
        "a second, or (fatal) an NVLink 5 recovery that failed",
        "none for ten minutes",
        judge_nvlink_errors,
    ),
    Signal(
        Level.FABRIC, _I, _WARN, Action.NONE, 300, 30,
        "not registered with the NVLink fabric for five minutes, or registered and unhealthy",
        "registered and healthy for 30 s",
        judge_fabric,
    ),
    Signal(
        Level.PERSISTENCE_OFF, _D, _NOTE, Action.NONE, 60, 0,
        "persistence mode is off", "it is on",
        _flag("persistence_mode", "persistence mode is off: the driver unloads state when idle",
              is_bad=0.0),
    ),
    Signal(
        Level.INFOROM, _D, _NOTE, Action.NONE, 0, 0,
        "the InfoROM's checksum is wrong", "it is right",
        _flag("inforom_valid", "the InfoROM is corrupt", is_bad=0.0),
    ),
)  # fmt: skip
