"""Profiling metrics by GPM: the difference between two samples of a GPU or of a GPU instance.

Hopper and newer. A sample takes 0.6 ms and the comparison 30 ms, so it has its own cadence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from node_agent.nvml.findings import Findings
from node_agent.nvml.quantities import GPM
from node_agent.nvml.watch import Watch


_PAUSE_SECONDS: Final = 0.1
"""Two samples closer than this give no metrics (nvml.h)."""


class GpmReader:
    """Remembers the sample before. :meth:`close` frees it.

    Args:
        nvml: the ``pynvml`` module.
        watch: makes the calls.
        about: the device, for people.
        fill: NVML's function that fills a sample.
        of: what that function wants to know before the sample: the device, maybe the instance.
    """

    def __init__(
        self, *, nvml: Any, watch: Watch, about: str, fill: Callable[..., Any], of: tuple[Any, ...]
    ) -> None:
        self._nvml = nvml
        self._watch = watch
        self._about = about
        self._fill = fill
        self._of = of
        self._before: tuple[float, Any] | None = None
        self._absent = False

    def read(self, findings: Findings) -> None:
        """Add what GPM says about the time since the last call.

        Raises:
            GpuLostError: the device is lost.
        """
        if self._absent:
            return
        try:
            self._compare(findings)
        except self._nvml.NVMLError as error:
            self._absent = findings.failed(error, [quantity.name for quantity in GPM.values()])

    def close(self) -> None:
        """Free the sample."""
        if self._before is not None:
            self._nvml.nvmlGpmSampleFree(self._before[1])
            self._before = None

    def _compare(self, findings: Findings) -> None:
        before, now = self._before, time.monotonic()
        if before is not None and now - before[0] < _PAUSE_SECONDS:
            return
        sample = self._nvml.nvmlGpmSampleAlloc()
        try:
            self._watch.call(self._fill, *self._of, sample, about=self._about)
        except self._nvml.NVMLError:
            self._nvml.nvmlGpmSampleFree(sample)
            raise
        self._before = (now, sample)
        if before is None:
            return
        try:
            self._keep(findings, before[1], sample)
        finally:
            self._nvml.nvmlGpmSampleFree(before[1])

    def _keep(self, findings: Findings, before: Any, after: Any) -> None:
        query = self._nvml.c_nvmlGpmMetricsGet_t()
        query.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = len(GPM)
        query.sample1, query.sample2 = before, after
        for number, metric in enumerate(GPM):
            query.metrics[number].metricId = metric
        self._watch.call(self._nvml.nvmlGpmMetricsGet, query, about=self._about)
        for number, quantity in enumerate(GPM.values()):
            if query.metrics[number].nvmlReturn == 0:
                findings.keep(quantity, query.metrics[number].value)
