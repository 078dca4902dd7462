"""Lists the processes on a device, with their memory and utilisation. In the child.

Costly (microseconds to milliseconds a list), so it has a cadence of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from node_agent.nvml.collect import Handle
from node_agent.nvml.findings import GpuLostError
from node_agent.nvml.model import Process
from node_agent.nvml.watch import Watch


_LOST: Final = 15
_NO_ID: Final = 0xFFFFFFFF
_LARGEST_MEMORY: Final = 2**47
_FIRST_LOOK_BACK_SECONDS: Final = 5.0
"""Asked without a time, NVML hands out samples of any age."""
_FULL: Final = 100


class ProcessReader:
    """Lists one device's processes; remembers up to where utilisation was read.

    Args:
        nvml: the ``pynvml`` module.
        watch: makes the calls.
        handle: the device.
    """

    def __init__(self, *, nvml: Any, watch: Watch, handle: Handle) -> None:
        self._nvml = nvml
        self._watch = watch
        self._handle = handle
        self._seen_until = int((time.time() - _FIRST_LOOK_BACK_SECONDS) * 1e6)

    def read(self) -> list[Process]:
        """Every process now.

        Raises:
            GpuLostError: the device is lost.
        """
        nvml = self._nvml
        lists: Mapping[str, Callable[..., Any]] = {
            "compute": nvml.nvmlDeviceGetComputeRunningProcesses,
            "graphics": nvml.nvmlDeviceGetGraphicsRunningProcesses,
            "mps": nvml.nvmlDeviceGetMPSComputeRunningProcesses,
        }
        listed = [
            (kind, entry) for kind, function in lists.items() for entry in self._ask(function) or ()
        ]
        utilisation = self._utilisation() if listed else {}
        return [
            Process(
                uuid=self._handle.uuid,
                pid=entry.pid,
                kind=kind,
                memory_bytes=_memory(entry.usedGpuMemory),
                sm_util=utilisation.get(entry.pid),
                gi=_instance(entry.gpuInstanceId),
                ci=_instance(entry.computeInstanceId),
            )
            for kind, entry in listed
        ]

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        about = f"gpu {self._handle.index}"
        try:
            return self._watch.call(function, self._handle.raw, *arguments, about=about)
        except self._nvml.NVMLError as error:
            if error.value == _LOST:
                raise GpuLostError from error
            return None

    def _utilisation(self) -> dict[int, float]:
        samples = self._ask(self._nvml.nvmlDeviceGetProcessUtilization, self._seen_until) or ()
        newest: dict[int, tuple[int, float]] = {}
        for sample in samples:
            if sample.smUtil <= _FULL and sample.timeStamp >= newest.get(sample.pid, (0, 0.0))[0]:
                newest[sample.pid] = (sample.timeStamp, float(sample.smUtil))
        if newest:
            self._seen_until = max(at for at, _ in newest.values())
        return {pid: util for pid, (_, util) in newest.items()}


def _memory(raw: int | None) -> int | None:
    return raw if raw is not None and raw <= _LARGEST_MEMORY else None


def _instance(number: int) -> int | None:
    return None if number == _NO_ID else number
