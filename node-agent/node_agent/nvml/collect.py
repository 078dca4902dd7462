"""Reads the tables' quantities from one device, in the child.

Invariants:

- One bad value blanks only itself: its error stands under its name, the rest is read on.
- What a device does not support is absent, and is not asked again until the next enumeration.
- A lost GPU is one error, not one for each quantity: reading stops at the first GPU_IS_LOST.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from ctypes import byref
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from node_agent.nvml.findings import Findings, GpuLostError, never_there
from node_agent.nvml.gpm import GpmReader
from node_agent.nvml.protocol import Group, Values
from node_agent.nvml.quantities import (
    CALLS,
    EVERY_LINK,
    FIELDS,
    Call,
    Field,
    Kind,
    Scope,
    bit_error_rate,
    rate,
)
from node_agent.nvml.watch import Watch


_CORRUPTED_INFOROM: Final = 14
_ENABLED: Final = 1


class Handle(msgspec.Struct, frozen=True):
    """A device as NVML hands it out, and what is known of its make-up."""

    raw: Any
    index: int
    uuid: str
    links: int
    c2c_links: int
    gpm: bool


class DeviceReader:
    """Reads groups of one device; remembers what it does not support, counters, GPM samples.

    Args:
        nvml: the ``pynvml`` module.
        watch: makes the calls.
        handle: the device.
    """

    def __init__(self, *, nvml: Any, watch: Watch, handle: Handle) -> None:
        self._nvml = nvml
        self._watch = watch
        self._about = f"gpu {handle.index}"
        self.handle = handle
        self._absent: set[str] = set()
        self._absent_fields: set[tuple[int, int]] = set()
        self._counters: dict[str, tuple[float, int]] = {}
        self._findings = Findings()
        self._gpm = (
            GpmReader(
                nvml=nvml,
                watch=watch,
                about=self._about,
                fill=nvml.nvmlGpmSampleGet,
                of=(handle.raw,),
            )
            if handle.gpm
            else None
        )
        self._own: dict[str, Callable[[Any], Any]] = {
            "memory_info_v2": self._memory_info,
            "nvlink_states": self._nvlink_states,
            "fabric_info": self._fabric_info,
            "sram_ecc": self._sram_ecc,
            "vgpu_license": self._vgpu_license,
            "inforom_valid": self._inforom_valid,
        }

    def read(self, group: Group) -> Values:
        """Everything of this group that there is now."""
        findings = self._findings = Findings()
        lost = False
        try:
            if group is Group.GPM:
                if self._gpm is not None:
                    self._gpm.read(findings)
            else:
                self._read_fields([row for row in FIELDS if row.group is group])
                for call in CALLS:
                    if call.group is group:
                        self._read_call(call)
        except GpuLostError:
            lost = True
        return Values(self.handle.uuid, group, findings.values, findings.errors, lost)

    def close(self) -> None:
        """Free what NVML allocated for this device."""
        if self._gpm is not None:
            self._gpm.close()

    # -- getters --

    def _read_call(self, call: Call) -> None:
        key = f"{call.function}{call.arguments}"
        wanted = [out for out in call.outputs if out[0].name not in self._findings.values]
        if not wanted or key in self._absent:
            return
        names = [quantity.name for quantity, _ in wanted]
        try:
            result = self._call(self._function(call.function), *call.arguments)
        except self._nvml.NVMLError as error:
            if self._findings.failed(error, names):
                self._absent.add(key)
            return
        for quantity, part in wanted:
            self._findings.keep(quantity, _part(result, part))

    def _function(self, name: str) -> Callable[..., Any] | None:
        own = self._own.get(name)
        return own if own is not None else getattr(self._nvml, name, None)

    def _call(self, function: Callable[..., Any] | None, *arguments: Any) -> Any:
        if function is None:  # this version of the Python binding lacks it
            raise self._nvml.NVMLError(self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if function in self._own.values():
            return function(self.handle.raw)
        return self._watch.call(function, self.handle.raw, *arguments, about=self._about)

    # -- getters that need more than a call --

    def _memory_info(self, raw: Any) -> Any:
        nvml = self._nvml
        return self._watch.call(
            nvml.nvmlDeviceGetMemoryInfo, raw, nvml.nvmlMemory_v2, about=self._about
        )

    def _nvlink_states(self, raw: Any) -> SimpleNamespace:
        up = down = 0
        for link in range(self.handle.links):
            try:
                state = self._watch.call(
                    self._nvml.nvmlDeviceGetNvLinkState, raw, link, about=self._about
                )
            except self._nvml.NVMLError as error:
                if never_there(error) and link:
                    continue  # this one link is not wired up
                raise
            up += state == _ENABLED
            down += state != _ENABLED
        if not up + down:
            raise self._nvml.NVMLError(self._nvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(up=up, down=down)

    def _fabric_info(self, raw: Any) -> Any:
        info = self._nvml.c_nvmlGpuFabricInfo_v2_t()
        self._watch.call(
            self._nvml.nvmlDeviceGetGpuFabricInfoV, raw, byref(info), about=self._about
        )
        if info.state == 0:  # NOT_SUPPORTED
            raise self._nvml.NVMLError(self._nvml.NVML_ERROR_NOT_SUPPORTED)
        return info

    def _sram_ecc(self, raw: Any) -> Any:
        status = self._nvml.c_nvmlEccSramErrorStatus_v1_t()
        status.version = self._nvml.nvmlEccSramErrorStatus_v1
        self._watch.call(
            self._nvml.nvmlDeviceGetSramEccErrorStatus, raw, byref(status), about=self._about
        )
        return status

    def _vgpu_license(self, raw: Any) -> int:
        features = self._watch.call(
            self._nvml.nvmlDeviceGetGridLicensableFeatures, raw, about=self._about
        )
        if not features.isGridLicenseSupported or not features.licensableFeaturesCount:
            raise self._nvml.NVMLError(self._nvml.NVML_ERROR_NOT_SUPPORTED)
        count = features.licensableFeaturesCount
        listed = features.gridLicensableFeatures[:count]
        return int(any(feature.featureState for feature in listed))

    def _inforom_valid(self, raw: Any) -> int:
        try:
            self._watch.call(self._nvml.nvmlDeviceValidateInforom, raw, about=self._about)
        except self._nvml.NVMLError as error:
            if error.value == _CORRUPTED_INFOROM:
                return 0
            raise
        return 1

    # -- fields --

    def _read_fields(self, rows: Sequence[Field]) -> None:
        asked = [
            (row, scope)
            for row in rows
            for scope in self._scopes(row.scope)
            if (row.id, scope) not in self._absent_fields
        ]
        if not asked:
            return
        try:
            answers = self._watch.call(
                self._nvml.nvmlDeviceGetFieldValues,
                self.handle.raw,
                [(row.id, scope) for row, scope in asked],
                about=self._about,
            )
        except self._nvml.NVMLError as error:
            if self._findings.failed(error, [row.quantity.name for row in rows]):
                self._absent_fields.update((row.id, scope) for row, scope in asked)
            return
        now = time.monotonic()
        numbers: dict[str, tuple[Field, list[float]]] = {}
        for (row, scope), answer in zip(asked, answers, strict=True):
            raw = self._field_value(row, scope, answer)
            if raw is not None:
                numbers.setdefault(row.quantity.name, (row, []))[1].append(raw)
        for row, found in numbers.values():
            self._keep_field(row, found, now)
        self._add_up_nvlink()

    def _scopes(self, scope: Scope) -> Sequence[int]:
        if scope is Scope.EVERY_LINK:
            return (EVERY_LINK,) if self.handle.links else ()
        if scope is Scope.EACH_LINK:
            return range(self.handle.links)
        if scope is Scope.EACH_C2C:
            return range(self.handle.c2c_links)
        return (0,)

    def _field_value(self, row: Field, scope: int, answer: Any) -> float | None:
        if answer.nvmlReturn:
            error = self._nvml.NVMLError(answer.nvmlReturn)
            if self._findings.failed(error, [row.quantity.name]):
                self._absent_fields.add((row.id, scope))
            return None
        return field_number(self._nvml, answer)

    def _keep_field(self, row: Field, found: list[float], now: float) -> None:
        name = row.quantity.name
        if row.kind is Kind.BIT_ERROR_RATE:
            self._findings.keep(row.quantity, max(bit_error_rate(int(raw)) for raw in found))
        elif row.kind is Kind.RATE:
            before, after = self._counters.get(name), (now, int(sum(found)))
            self._counters[name] = after
            per_second = rate(before, after) if before is not None else None
            if per_second is not None:
                self._findings.keep(row.quantity, per_second)
        elif len(found) == 1:
            self._findings.keep(row.quantity, found[0])
        else:
            self._findings.keep(
                row.quantity, sum(raw for raw in found if raw not in _BLANK_SUMMANDS)
            )

    def _add_up_nvlink(self) -> None:
        both = ("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s")
        if all(name in self._findings.values for name in both):
            self._findings.values["nvlink_rate_bytes_per_s"] = sum(
                self._findings.values[name] for name in both
            )


_BLANK_SUMMANDS: Final = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})


def field_number(nvml: Any, answer: Any) -> float | None:
    """The number in an ``nvmlFieldValue_t``, by its type; None for a type of the future.

    None also for an answer that the driver left as it was given, all zero, with a return code
    that says success: a real double carries a time.
    """
    if answer.valueType == nvml.NVML_VALUE_TYPE_DOUBLE and not answer.timestamp:
        return None
    members = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
    }
    member = members.get(answer.valueType)
    value: float | None = getattr(answer.value, member) if member else None
    return value


def _part(result: Any, part: str | int | None) -> float:
    if part is None:
        value = result
    elif isinstance(part, int):
        value = result[part]
    else:
        value = getattr(result, part)
    number: float = value
    return number
