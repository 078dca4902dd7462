"""What NVML answers to somebody else than the agent, as one JSON object.

`values`: by the getters, in the units of DCGM-Exporter's 4.8 line. `fields`: every field id with
its return code, type and raw value. `links`: fields of single NVLinks that answered. `gpm`: every
GPM metric over one second, as NVML gives it. `microseconds`: what a call costs, the median of ten.

    python -m tests.acceptance.raw [values]    (`values`: only these, quickly)
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pynvml as nvml

from node_agent.nvml.collect import field_number
from tests.bench.figures import memory_mb


_MIB: Final = 1024 * 1024
_HIGHEST_FIELD: Final = 320
_BLOCK: Final = 40
_LINK_FIELDS: Final = (*range(138, 169), *range(211, 226), *range(235, 251))
_LINKS: Final = 18
_HIGHEST_GPM: Final = 220
_GPM_BLOCK: Final = 60
_REPEAT: Final = 10

VALUES: Final[dict[str, Callable[[Any], float]]] = {
    "DCGM_FI_DEV_SM_CLOCK": lambda h: nvml.nvmlDeviceGetClockInfo(h, 1),
    "DCGM_FI_DEV_MEM_CLOCK": lambda h: nvml.nvmlDeviceGetClockInfo(h, 2),
    "DCGM_FI_DEV_VIDEO_CLOCK": lambda h: nvml.nvmlDeviceGetClockInfo(h, 3),
    "DCGM_FI_DEV_GPU_TEMP": lambda h: nvml.nvmlDeviceGetTemperature(h, 0),
    "DCGM_FI_DEV_POWER_USAGE": lambda h: nvml.nvmlDeviceGetPowerUsage(h) / 1000,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": nvml.nvmlDeviceGetTotalEnergyConsumption,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": nvml.nvmlDeviceGetPcieReplayCounter,
    "DCGM_FI_DEV_GPU_UTIL": lambda h: nvml.nvmlDeviceGetUtilizationRates(h).gpu,
    "DCGM_FI_DEV_MEM_COPY_UTIL": lambda h: nvml.nvmlDeviceGetUtilizationRates(h).memory,
    "DCGM_FI_DEV_ENC_UTIL": lambda h: nvml.nvmlDeviceGetEncoderUtilization(h)[0],
    "DCGM_FI_DEV_DEC_UTIL": lambda h: nvml.nvmlDeviceGetDecoderUtilization(h)[0],
    "DCGM_FI_DEV_FB_TOTAL": lambda h: _memory(h).total // _MIB,
    "DCGM_FI_DEV_FB_USED": lambda h: _memory(h).used // _MIB,
    "DCGM_FI_DEV_FB_FREE": lambda h: _memory(h).free // _MIB,
    "DCGM_FI_DEV_FB_RESERVED": lambda h: _memory(h).reserved // _MIB,
    "DCGM_FI_DEV_BAR1_TOTAL": lambda h: nvml.nvmlDeviceGetBAR1MemoryInfo(h).bar1Total // _MIB,
    "DCGM_FI_DEV_BAR1_USED": lambda h: nvml.nvmlDeviceGetBAR1MemoryInfo(h).bar1Used // _MIB,
    "DCGM_FI_DEV_PCIE_LINK_GEN": nvml.nvmlDeviceGetCurrPcieLinkGeneration,
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": nvml.nvmlDeviceGetCurrPcieLinkWidth,
    "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": nvml.nvmlDeviceGetMaxPcieLinkGeneration,
    "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": nvml.nvmlDeviceGetMaxPcieLinkWidth,
    "DCGM_FI_DEV_PSTATE": nvml.nvmlDeviceGetPerformanceState,
    "DCGM_FI_DEV_PERSISTENCE_MODE": nvml.nvmlDeviceGetPersistenceMode,
    "DCGM_FI_DEV_ECC_CURRENT": lambda h: nvml.nvmlDeviceGetEccMode(h)[0],
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": lambda h: nvml.nvmlDeviceGetPowerManagementLimit(h) / 1000,
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": lambda h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": nvml.nvmlDeviceGetCurrentClocksEventReasons,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": lambda h: nvml.nvmlDeviceGetRemappedRows(h)[1],
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": lambda h: nvml.nvmlDeviceGetRemappedRows(h)[0],
    "DCGM_FI_DEV_ROW_REMAP_PENDING": lambda h: nvml.nvmlDeviceGetRemappedRows(h)[2],
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": lambda h: nvml.nvmlDeviceGetRemappedRows(h)[3],
    "DCGM_FI_DEV_SLOWDOWN_TEMP": lambda h: nvml.nvmlDeviceGetTemperatureThreshold(h, 1),
    "DCGM_FI_DEV_SHUTDOWN_TEMP": lambda h: nvml.nvmlDeviceGetTemperatureThreshold(h, 0),
}


def main(only_values: bool) -> None:  # noqa: FBT001 - one switch of a script
    """Print it."""
    before = memory_mb(os.getpid())
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    after = memory_mb(os.getpid())
    answer: dict[str, object] = {"values": values(handle)}
    if not only_values:
        answer |= {
            "driver": _text(nvml.nvmlSystemGetDriverVersion),
            "nvml": _text(nvml.nvmlSystemGetNVMLVersion),
            "name": _text(nvml.nvmlDeviceGetName, handle),
            "uuid": _text(nvml.nvmlDeviceGetUUID, handle),
            "pci": nvml.nvmlDeviceGetPciInfo(handle).busId,
            "init_mb": [round(before, 1), round(after, 1)],
            "init_loads_libcuda": "libcuda.so" in Path("/proc/self/maps").read_text("ascii"),
            "event_types": f"{nvml.nvmlDeviceGetSupportedEventTypes(handle):#x}",
            "fields": fields(handle),
            "links": links(handle),
            "tlimits": tlimits(handle),
            "gpm": gpm(handle),
            "pcie_throughput": throughput(handle),
            "microseconds": costs(handle),
        }
    print(json.dumps(answer))


def values(handle: Any) -> dict[str, float | str]:
    """By the getters; the error's text where there is no value."""
    found: dict[str, float | str] = {}
    for name, function in VALUES.items():
        try:
            found[name] = function(handle)
        except (nvml.NVMLError, AttributeError) as error:
            found[name] = f"error: {error}"
    return found


def fields(handle: Any) -> dict[int, dict[str, float | None]]:
    """Every field id that is not simply unknown."""
    found = {}
    for first in range(1, _HIGHEST_FIELD, _BLOCK):
        for answer in _ask(handle, list(range(first, first + _BLOCK))):
            code = answer.nvmlReturn
            if code in {2, 3}:  # an unknown id; not supported
                continue
            value = None if code else field_number(nvml, answer)
            found[int(answer.fieldId)] = {
                "code": code,
                "type": answer.valueType,
                "value": value,
                "us": answer.latencyUsec,
                "filled": bool(answer.timestamp),
            }
    return found


def tlimits(handle: Any) -> dict[str, list[tuple[int, int, int, bool]]]:
    """T.Limit fields one by one and together: return code, type, signed value, filled in."""
    asked = [193, 194, 195, 196]
    ways = {"alone": [_ask(handle, [one])[0] for one in asked], "together": _ask(handle, asked)}
    ways["as the agent"] = _ask(handle, [*asked, 91, 170, 144])
    return {
        way: [(a.nvmlReturn, a.valueType, a.value.siVal, bool(a.timestamp)) for a in answers]
        for way, answers in ways.items()
    }


def throughput(handle: Any) -> dict[str, float]:
    """PCIe traffic as the getter samples it for 20 ms: the mean of ten, as it hands it out."""
    found = {}
    for name, counter in (("transmit", 0), ("receive", 1)):
        values = [nvml.nvmlDeviceGetPcieThroughput(handle, counter) for _ in range(_REPEAT)]
        found[name] = sum(values) / len(values)
    return found


def links(handle: Any) -> dict[str, float | None]:
    """`id.link`: the value, for fields of single links that answered."""
    found = {}
    for number in _LINK_FIELDS:
        for answer in _ask(handle, [(number, link) for link in range(_LINKS)]):
            if answer.nvmlReturn == 0:
                found[f"{number}.{answer.scopeId}"] = field_number(nvml, answer)
    return found


def gpm(handle: Any) -> dict[int, float]:
    """Every metric over a second that succeeded, as NVML gives it."""
    if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        return {}
    samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
    nvml.nvmlGpmSampleGet(handle, samples[0])
    time.sleep(1)
    nvml.nvmlGpmSampleGet(handle, samples[1])
    found = {}
    for first in range(1, _HIGHEST_GPM, _GPM_BLOCK):
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version = nvml.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = _GPM_BLOCK
        query.sample1, query.sample2 = samples
        for number in range(_GPM_BLOCK):
            query.metrics[number].metricId = first + number
        try:
            nvml.nvmlGpmMetricsGet(query)
        except nvml.NVMLError:
            continue
        for metric in query.metrics[:_GPM_BLOCK]:
            if metric.nvmlReturn == 0:
                found[int(metric.metricId)] = metric.value
    for sample in samples:
        nvml.nvmlGpmSampleFree(sample)
    return found


def costs(handle: Any) -> dict[str, float]:
    """Median microseconds of the calls that the agent makes most."""
    calls: dict[str, Callable[[], object]] = {
        "nvmlDeviceGetTemperature": lambda: nvml.nvmlDeviceGetTemperature(handle, 0),
        "nvmlDeviceGetMarginTemperature": lambda: nvml.nvmlDeviceGetMarginTemperature(handle),
        "nvmlDeviceGetUtilizationRates": lambda: nvml.nvmlDeviceGetUtilizationRates(handle),
        "nvmlDeviceGetEncoderUtilization": lambda: nvml.nvmlDeviceGetEncoderUtilization(handle),
        "nvmlDeviceGetPowerUsage": lambda: nvml.nvmlDeviceGetPowerUsage(handle),
        "nvmlDeviceGetMemoryInfo": lambda: _memory(handle),
        "nvmlDeviceGetTotalEnergyConsumption": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(
            handle
        ),
        "nvmlDeviceGetPcieThroughput": lambda: nvml.nvmlDeviceGetPcieThroughput(handle, 0),
        "nvmlDeviceGetPcieReplayCounter": lambda: nvml.nvmlDeviceGetPcieReplayCounter(handle),
        "nvmlDeviceGetBAR1MemoryInfo": lambda: nvml.nvmlDeviceGetBAR1MemoryInfo(handle),
        "nvmlDeviceGetComputeRunningProcesses": lambda: nvml.nvmlDeviceGetComputeRunningProcesses(
            handle
        ),
        "nvmlDeviceValidateInforom": lambda: nvml.nvmlDeviceValidateInforom(handle),
        "nvmlDeviceGetFieldValues, 12 cheap fields": lambda: _ask(
            handle, [82, 185, 186, 230, 3, 4, 5, 6, 142, 143, 144, 145]
        ),
        "nvmlDeviceGetFieldValues, 12 PCIe counters": lambda: _ask(handle, [169, *range(173, 184)]),
    }
    return {name: us for name, call in calls.items() if (us := _median(call)) is not None}


def _median(call: Callable[[], object]) -> float | None:
    took = []
    try:
        for _ in range(_REPEAT):
            begun = time.perf_counter()
            call()
            took.append((time.perf_counter() - begun) * 1e6)
    except nvml.NVMLError:
        return None
    return round(sorted(took)[_REPEAT // 2], 1)


def _ask(handle: Any, ids: Sequence[Any]) -> Sequence[Any]:
    try:
        answers: Sequence[Any] = nvml.nvmlDeviceGetFieldValues(handle, list(ids))
    except nvml.NVMLError:
        return ()
    return answers


def _memory(handle: Any) -> Any:
    return nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)


def _text(function: Callable[..., Any], *arguments: Any) -> str:
    return str(function(*arguments))


if __name__ == "__main__":
    main(sys.argv[1:] == ["values"])
