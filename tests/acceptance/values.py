"""The agent's page against nvidia-smi and against NVML, family by family.

A value that changes from moment to moment is right when it lies between what was read right
before and right after the page was read, with the tolerance of its kind.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple


class Tolerance(NamedTuple):
    """How far a value may lie outside of what the others read."""

    absolute: float = 0.0
    relative: float = 0.0


_EXACT: Final = Tolerance()
_SMI: Final[Mapping[str, tuple[str, Tolerance]]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("clocks.sm", Tolerance(30, 0.05)),
    "DCGM_FI_DEV_MEM_CLOCK": ("clocks.mem", Tolerance(30)),
    "DCGM_FI_DEV_VIDEO_CLOCK": ("clocks.video", Tolerance(60, 0.05)),
    "DCGM_FI_DEV_MEMORY_TEMP": ("temperature.memory", Tolerance(2)),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature.gpu", Tolerance(2)),
    "DCGM_FI_DEV_POWER_USAGE": ("power.draw", Tolerance(5, 0.15)),
    "DCGM_FI_DEV_POWER_USAGE_INSTANT": ("power.draw.instant", Tolerance(20, 0.3)),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": ("power.limit", _EXACT),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN": ("power.min_limit", _EXACT),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX": ("power.max_limit", _EXACT),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": ("enforced.power.limit", _EXACT),
    "DCGM_FI_DEV_GPU_UTIL": ("utilization.gpu", Tolerance(5)),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("utilization.memory", Tolerance(10)),
    "DCGM_FI_DEV_ENC_UTIL": ("utilization.encoder", _EXACT),
    "DCGM_FI_DEV_DEC_UTIL": ("utilization.decoder", _EXACT),
    "DCGM_FI_DEV_FB_TOTAL": ("memory.total", _EXACT),
    "DCGM_FI_DEV_FB_USED": ("memory.used", Tolerance(16)),
    "DCGM_FI_DEV_FB_FREE": ("memory.free", Tolerance(16)),
    "DCGM_FI_DEV_FB_RESERVED": ("memory.reserved", _EXACT),
    "DCGM_FI_DEV_PCIE_LINK_GEN": ("pcie.link.gen.gpucurrent", _EXACT),
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": ("pcie.link.width.current", _EXACT),
    "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": ("pcie.link.width.max", _EXACT),
    "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": ("pcie.link.gen.max", _EXACT),
    "DCGM_FI_DEV_PSTATE": ("pstate", _EXACT),
    "DCGM_FI_DEV_PERSISTENCE_MODE": ("persistence_mode", _EXACT),
    "DCGM_FI_DEV_ECC_CURRENT": ("ecc.mode.current", _EXACT),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("clocks_event_reasons.active", _EXACT),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc.errors.corrected.volatile.total", _EXACT),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc.errors.uncorrected.volatile.total", _EXACT),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": ("ecc.errors.corrected.aggregate.total", _EXACT),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": ("ecc.errors.uncorrected.aggregate.total", _EXACT),
    "DCGM_FI_DEV_FAN_SPEED": ("fan.speed", _EXACT),
}
_GROWING: Final[Mapping[str, Tolerance]] = {
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": Tolerance(0, 0.001),
    "DCGM_FI_DEV_BAR1_USED": Tolerance(4),
}
_WORDS: Final = {"enabled": 1.0, "disabled": 0.0, "active": 1.0, "not active": 0.0}


class Row(NamedTuple):
    """One family: the page's value, and what the others read before and after it."""

    family: str
    page: float | None
    smi: list[float | None]
    nvml: list[float | None]
    agrees: bool


def ask_smi() -> dict[str, float | None]:
    """What nvidia-smi says, by the family that it should equal. Empty where it is missing."""
    fields = {family: field for family, (field, _) in _SMI.items()}
    answer = _smi(list(fields.values()))
    if answer is None:  # one unknown name spoils the whole question
        answer = [(one or [""])[0] for one in (_smi([field]) for field in fields.values())]
    return {family: number(text) for family, text in zip(fields, answer, strict=False)}


def compare(
    page: Mapping[str, float],
    smi: Sequence[Mapping[str, float | None]],
    nvml: Sequence[Mapping[str, float | str]],
) -> list[Row]:
    """One row for each family that any of the others knows.

    Args:
        page: values of the DCGM families.
        smi: nvidia-smi before and after the page.
        nvml: the getters before and after the page.
    """
    rows = []
    for family in dict.fromkeys((*_SMI, *(nvml[0] if nvml else ()))):
        seen = [one.get(family) for one in smi]
        called = [_number(one.get(family)) for one in nvml]
        known = [value for value in (*called, *seen) if value is not None]
        value = page.get(family)
        tolerance = _SMI[family][1] if family in _SMI else _GROWING.get(family, _EXACT)
        rows.append(Row(family, value, seen, called, _agrees(value, known, tolerance)))
    return rows


def _agrees(value: float | None, known: Sequence[float], tolerance: Tolerance) -> bool:
    if value is None or not known:
        return value is None and not known  # absent on the page where nobody else has it
    slack = tolerance.absolute + tolerance.relative * abs(value) + 0.011  # nvidia-smi rounds
    return min(known) - slack <= value <= max(known) + slack


def _number(value: float | str | None) -> float | None:
    return value if isinstance(value, int | float) else None


def number(text: str) -> float | None:
    """A value of nvidia-smi: a number, `P0`, `0x0…`, Enabled; None for `[N/A]`."""
    text = text.strip().lower()
    if text in _WORDS:
        return _WORDS[text]
    if text.startswith("0x"):
        return float(int(text, 16))
    found = re.fullmatch(r"p?(-?\d+(?:\.\d+)?)", text)
    return float(found[1]) if found else None


def _smi(fields: Sequence[str]) -> list[str] | None:
    argv = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [*argv, "--id=0"], capture_output=True, text=True, timeout=30, check=False
        )
    except FileNotFoundError:
        return []
    return done.stdout.strip().split(",") if done.returncode == 0 else None
