"""What the driver says of GPUs of several models, as keys of the fake library's script.

An idle card's values. Those of the H200 were measured (driver 580); the others carry what
their data sheets and NVML's documentation say differs: no GPM before Hopper, no NVLink and no
row remapping on the L4, NVLink 5 counters on the B200.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


MIB: Final = 1024 * 1024
_EVERY_EVENT: Final = 0xFF9F

_COMMON: Final[Mapping[str, object]] = {
    "brand": 14,
    "vbios": "96.00.99.00.01",
    "inforom_image": "G520.0200.00.05",
    "inforom_0": "2.1",
    "inforom_1": "7.16",
    "mig_current": 0,
    "mig_pending": 0,
    "event_types": _EVERY_EVENT,
    "pcie_gen_max": 5,
    "pcie_width_max": 16,
    "pcie_gen": 5,
    "pcie_width": 16,
    "temperature0": 33,
    "threshold0": 95,
    "threshold1": 92,
    "threshold3": 90,
    "margin": 55,
    "clock0": 1980,
    "clock1": 1980,
    "clock2": 3201,
    "clock3": 1545,
    "util_gpu": 0,
    "util_mem": 0,
    "util_enc": 0,
    "util_dec": 0,
    "util_period": 100000,
    "power_mw": 86759,
    "power_limit_mw": 700000,
    "enforced_power_limit_mw": 700000,
    "power_min_mw": 200000,
    "power_max_mw": 700000,
    "pstate": 0,
    "persistence": 1,
    "ecc_current": 1,
    "ecc_pending": 1,
    "energy_mj": 987654321,
    "pcie_replay": 1,
    "bar1_total": 131072 * MIB,
    "bar1_used": 2 * MIB,
    "pcie_kbps0": 1200,
    "pcie_kbps1": 800,
    "clocks_event_reasons": 1,
    "fb_reserved": 600 * MIB,
    "fb_used": 4 * MIB,
    "inforom_valid": 1,
    **dict.fromkeys((f"f{number}" for number in (3, 4, 5, 6)), 0),
    **dict.fromkeys((f"f{number}" for number in range(74, 80)), 0),
}
_ROW_REMAP: Final[Mapping[str, object]] = {
    **dict.fromkeys((f"f{number}" for number in (142, 143, 144, 145)), "ui:0"),
    "remap_banks": "2560 0 0 0 0",
    "sram_threshold_exceeded": 0,
}
_HBM: Final[Mapping[str, object]] = {"f82": "ui:33"}
_PCIE_COUNTS: Final[Mapping[str, object]] = {
    "f169": 1144,
    "f173": 0,
    "f174": 0,
    "f175": 38,
    "f176": 54,
    "f177": 37,
    "f178": 0,
    "f179": 0,
    "f180": 0,
    "f181": 0,
    "f182": 0,
    "f183": 47,
    "f197": 1_000_000,
    "f198": 2_000_000,
}
_RECENT: Final[Mapping[str, object]] = {  # of drivers since 570
    "f185": "ui:97920",
    "f186": "ui:86759",
    "f193": "ui:4294967288",
    "f194": "ui:4294967294",
    "f195": "ui:0",
    "f196": "ui:0",
    "f230": "ui:0",
    "unrepairable_memory": 0,
}
_GPM: Final[Mapping[str, object]] = {
    "gpm": 1,
    **{
        f"gpm{number}": value
        for number, value in {
            1: 12.5,
            2: 10.0,
            3: 6.25,
            5: 4.0,
            10: 8.0,
            11: 0.0,
            12: 2.0,
            13: 1.0,
            20: 10.0,
            21: 20.0,
            60: 100.0,
            61: 50.0,
        }.items()
    },
}


def _nvlinks(count: int) -> dict[str, object]:
    everything = 0xFFFFFFFF
    return {
        **{f"nvlink{link}": 1 for link in range(count)},
        "f91": f"ui:{count}",
        f"f138.{everything}": 1_000,
        f"f139.{everything}": 2_000,
        **dict.fromkeys((f"f{number}" for number in (38, 45, 52, 59)), 0),
    }


def _nvlink5(count: int) -> dict[str, object]:
    scopes = [f".{link}" if link else "" for link in range(count)]  # scope 0 is written as none
    counters: dict[str, object] = {
        f"f{number}{scope}": 0 for number in (213, 214, 215, 221) for scope in scopes
    }
    return counters | {f"f220{scope}": 0x10F for scope in scopes}


_FABRIC: Final[Mapping[str, object]] = {"fabric": "3 0 0"}
MODELS: Final[Mapping[str, Mapping[str, object]]] = {
    "A100": {
        **_COMMON,
        **_ROW_REMAP,
        **_HBM,
        **_nvlinks(12),
        "name": "NVIDIA A100-SXM4-80GB",
        "architecture": 7,
        "cc_major": 8,
        "cc_minor": 0,
        "fb_total": 81920 * MIB,
        "pcie_gen_max": 4,
        "pcie_gen": 4,
        "power_max_mw": 400000,
        "power_limit_mw": 400000,
    },
    "H100": {
        **_COMMON,
        **_ROW_REMAP,
        **_HBM,
        **_PCIE_COUNTS,
        **_RECENT,
        **_GPM,
        **_nvlinks(18),
        **_FABRIC,
        "name": "NVIDIA H100 80GB HBM3",
        "architecture": 9,
        "cc_major": 9,
        "cc_minor": 0,
        "fb_total": 81559 * MIB,
    },
    "H200": {
        **_COMMON,
        **_ROW_REMAP,
        **_HBM,
        **_PCIE_COUNTS,
        **_RECENT,
        **_GPM,
        **_nvlinks(18),
        **_FABRIC,
        "name": "NVIDIA H200",
        "architecture": 9,
        "cc_major": 9,
        "cc_minor": 0,
        "fb_total": 143771 * MIB,
    },
    "L4": {
        **{key: value for key, value in _COMMON.items() if not key.startswith("mig_")},
        **_PCIE_COUNTS,
        **_RECENT,
        "name": "NVIDIA L4",
        "architecture": 8,
        "cc_major": 8,
        "cc_minor": 9,
        "fb_total": 23034 * MIB,
        "pcie_gen_max": 4,
        "pcie_gen": 4,
        "power_max_mw": 72000,
        "power_limit_mw": 72000,
    },
    "B200": {
        **_COMMON,
        **_ROW_REMAP,
        **_HBM,
        **_PCIE_COUNTS,
        **_RECENT,
        **_GPM,
        **_nvlinks(18),
        **_nvlink5(18),
        **_FABRIC,
        "name": "NVIDIA B200",
        "architecture": 10,
        "cc_major": 10,
        "cc_minor": 0,
        "fb_total": 183359 * MIB,
        "power_max_mw": 1000000,
        "power_limit_mw": 1000000,
    },
}


def identity(number: int) -> dict[str, object]:
    """UUID, PCI address, serial and minor of GPU `number`, alike in every run."""
    return {
        "uuid": f"GPU-{number:08x}-7183-dbcc-7426-ca20a423fd21",
        "pci": f"00000000:{0x18 + 8 * number:02X}:00.0",
        "serial": f"16539241846{number:02d}",
        "minor": number,
    }
