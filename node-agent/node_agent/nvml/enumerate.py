"""Lists the devices: identity, limits, MIG, and what each supports. In the child, rarely.

Invariants: a device that gives an error does not hide the others; a fact that a device does not
know is absent; nothing in here changes between two enumerations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from node_agent.nvml.collect import Handle, field_number
from node_agent.nvml.mig import Instance
from node_agent.nvml.model import Device, Driver, MigInstance
from node_agent.nvml.quantities import LIMIT_FIELDS, OutOfRangeError, as_signed
from node_agent.nvml.watch import Watch


_THRESHOLDS: Final = {"shutdown_c": 0, "slowdown_c": 1, "mem_max_c": 2, "gpu_max_c": 3}
_LINK_COUNT: Final = 91
_C2C_LINK_COUNT: Final = 170
_MAX_LINKS: Final = 36
_ROW_REMAP_PENDING: Final = 144
_NO_ID: Final = 0xFFFFFFFF
_LOST: Final = 15
_INFOROM_OBJECTS: Final = {"inforom_oem": 0, "inforom_ecc": 1, "inforom_power": 2}
_MILLI: Final = 1e-3


class Found(msgspec.Struct, frozen=True):
    """One device and its MIG instances, with the handles under which NVML knows them."""

    device: Device
    handle: Handle
    instances: tuple[Instance, ...] = ()


class Enumeration(msgspec.Struct, frozen=True):
    """Everything found. ``unanswered``: NVML's error text, by index."""

    driver: Driver
    found: tuple[Found, ...]
    unanswered: dict[int, str]
    any_lost: bool


class Enumerator:
    """Asks NVML for its devices; NVML has to be initialized.

    Args:
        nvml: the ``pynvml`` module.
        watch: makes the calls.
    """

    def __init__(self, *, nvml: Any, watch: Watch) -> None:
        self._nvml = nvml
        self._watch = watch

    def everything(self) -> Enumeration:
        """Enumerate all devices.

        Raises:
            pynvml.NVMLError: they cannot even be counted.
        """
        nvml = self._nvml
        found: list[Found] = []
        unanswered: dict[int, str] = {}
        any_lost = False
        for index in range(self._watch.call(nvml.nvmlDeviceGetCount)):
            try:
                found.append(self._device(index))
            except nvml.NVMLError as error:
                unanswered[index] = str(error)
                any_lost = any_lost or error.value == _LOST
        return Enumeration(self._driver(), tuple(found), unanswered, any_lost)

    def mig(self, raw: Any, index: int) -> tuple[bool | None, tuple[Instance, ...]]:
        """Whether MIG is on (None: no such thing), and its instances now."""
        mode = self._ask(index, self._nvml.nvmlDeviceGetMigMode, raw)
        if mode is None:
            return None, ()
        if not mode[0]:
            return False, ()
        instances = []
        for number in range(self._ask(index, self._nvml.nvmlDeviceGetMaxMigDeviceCount, raw) or 0):
            handle = self._ask(index, self._nvml.nvmlDeviceGetMigDeviceHandleByIndex, raw, number)
            instance = self._instance(index, handle) if handle is not None else None
            if instance is not None:
                instances.append(Instance(instance, handle))
        return True, tuple(instances)

    def _driver(self) -> Driver:
        cuda = self._ask(0, self._nvml.nvmlSystemGetCudaDriverVersion_v2) or 0
        return Driver(
            self._ask(0, self._nvml.nvmlSystemGetDriverVersion) or "",
            self._ask(0, self._nvml.nvmlSystemGetNVMLVersion) or "",
            f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        )

    def _ask(self, index: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None where the device has none."""
        try:
            return self._watch.call(function, *arguments, about=f"gpu {index}")
        except self._nvml.NVMLError:
            return None

    def _device(self, index: int) -> Found:
        nvml = self._nvml
        about = f"gpu {index}"
        raw = self._watch.call(nvml.nvmlDeviceGetHandleByIndex, index, about=about)
        uuid: str = self._watch.call(nvml.nvmlDeviceGetUUID, raw, about=about)
        pci: str = self._watch.call(nvml.nvmlDeviceGetPciInfo, raw, about=about).busId
        fields = self._fields(index, raw)
        handle = Handle(
            raw,
            index,
            uuid,
            min(int(fields.get(_LINK_COUNT, 0)), _MAX_LINKS),
            int(fields.get(_C2C_LINK_COUNT, 0)),
            self._has_gpm(index, raw),
        )
        mig_enabled, instances = self.mig(raw, index)
        capability = self._ask(index, nvml.nvmlDeviceGetCudaComputeCapability, raw)
        device = Device(
            index=index,
            uuid=uuid,
            pci=normalized_pci(pci),
            pci_nvml=pci,
            name=self._ask(index, nvml.nvmlDeviceGetName, raw) or "",
            minor=self._ask(index, nvml.nvmlDeviceGetMinorNumber, raw),
            serial=self._ask(index, nvml.nvmlDeviceGetSerial, raw) or "",
            vbios=self._ask(index, nvml.nvmlDeviceGetVbiosVersion, raw) or "",
            brand=self._brand(index, raw),
            architecture=self._architecture(index, raw),
            compute_capability=f"{capability[0]}.{capability[1]}" if capability else "",
            mig_enabled=mig_enabled,
            mig=tuple(instance.of for instance in instances),
            supports=self._supports(index, handle, fields, mig_enabled=mig_enabled),
            event_mask=self._ask(index, nvml.nvmlDeviceGetSupportedEventTypes, raw) or 0,
            limits=self._limits(index, raw, fields),
            labels=self._labels(index, raw),
        )
        return Found(device, handle, instances)

    def _fields(self, index: int, raw: Any) -> dict[int, float]:
        # Driver 580 leaves the limits unanswered when others are asked in the same call.
        calls = ([*LIMIT_FIELDS], [_LINK_COUNT, _C2C_LINK_COUNT, _ROW_REMAP_PENDING])
        ask = self._nvml.nvmlDeviceGetFieldValues
        values = {}
        for answer in [one for ids in calls for one in self._ask(index, ask, raw, ids) or ()]:
            value = field_number(self._nvml, answer) if answer.nvmlReturn == 0 else None
            if value is not None:
                values[int(answer.fieldId)] = value
        return values

    def _has_gpm(self, index: int, raw: Any) -> bool:
        support = self._ask(index, self._nvml.nvmlGpmQueryDeviceSupport, raw)
        return bool(support is not None and support.isSupportedDevice)

    def _supports(
        self, index: int, handle: Handle, fields: dict[int, float], *, mig_enabled: bool | None
    ) -> frozenset[str]:
        ecc = self._ask(index, self._nvml.nvmlDeviceGetEccMode, handle.raw)
        info = self._nvml.c_nvmlGpuFabricInfo_v2_t()
        fabric = self._ask(
            index, self._nvml.nvmlDeviceGetGpuFabricInfoV, handle.raw, self._nvml.byref(info)
        )
        there = {
            "gpm": handle.gpm,
            "nvlink": handle.links > 0,
            "c2c": handle.c2c_links > 0,
            "row_remap": _ROW_REMAP_PENDING in fields,
            "ecc": ecc is not None,
            "mig": mig_enabled is not None,
            "fabric": fabric is not None and info.state != 0,
        }
        return frozenset(name for name, is_there in there.items() if is_there)

    def _limits(self, index: int, raw: Any, fields: dict[int, float]) -> dict[str, float]:
        nvml = self._nvml
        limits: dict[str, float | None] = {
            name: self._ask(index, nvml.nvmlDeviceGetTemperatureThreshold, raw, number)
            for name, number in _THRESHOLDS.items()
        }
        limits["pcie_gen_max"] = self._ask(index, nvml.nvmlDeviceGetMaxPcieLinkGeneration, raw)
        limits["pcie_width_max"] = self._ask(index, nvml.nvmlDeviceGetMaxPcieLinkWidth, raw)
        limits["nvlinks"] = fields.get(_LINK_COUNT)
        power = self._ask(index, nvml.nvmlDeviceGetPowerManagementLimitConstraints, raw)
        limits["power_min_w"], limits["power_max_w"] = (
            [milliwatts * _MILLI for milliwatts in power] if power else (None, None)
        )
        limit = self._ask(index, nvml.nvmlDeviceGetPowerManagementLimit, raw)
        limits["power_limit_w"] = limit * _MILLI if limit is not None else None
        for number, quantity in LIMIT_FIELDS.items():
            if number in fields:
                try:
                    limits[quantity.name] = quantity.convert(as_signed(int(fields[number])))
                except OutOfRangeError:
                    continue
        return {name: float(value) for name, value in limits.items() if value is not None}

    def _labels(self, index: int, raw: Any) -> dict[str, str]:
        nvml = self._nvml
        labels = {"inforom_image": self._ask(index, nvml.nvmlDeviceGetInforomImageVersion, raw)}
        for name, number in _INFOROM_OBJECTS.items():
            labels[name] = self._ask(index, nvml.nvmlDeviceGetInforomVersion, raw, number)
        return {name: text for name, text in labels.items() if text}

    def _brand(self, index: int, raw: Any) -> str:
        number = self._ask(index, self._nvml.nvmlDeviceGetBrand, raw)
        return _BRANDS.get(number, "") if number is not None else ""

    def _architecture(self, index: int, raw: Any) -> int | None:
        number: int | None = self._ask(index, self._nvml.nvmlDeviceGetArchitecture, raw)
        return None if number == _NO_ID else number

    def _instance(self, index: int, handle: Any) -> MigInstance | None:
        uuid = self._ask(index, self._nvml.nvmlDeviceGetUUID, handle)
        gi = self._ask(index, self._nvml.nvmlDeviceGetGpuInstanceId, handle)
        ci = self._ask(index, self._nvml.nvmlDeviceGetComputeInstanceId, handle)
        name = self._ask(index, self._nvml.nvmlDeviceGetName, handle) or ""
        if uuid is None or gi is None:
            return None  # it is being destroyed right now
        return MigInstance(uuid, gi, ci, mig_profile(name))


_BRANDS: Final = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "GRID",
    5: "GeForce",
    6: "Titan",
    7: "NVIDIA Virtual Applications",
    8: "NVIDIA Virtual PC",
    9: "NVIDIA Virtual Compute Server",
    10: "NVIDIA RTX Virtual Workstation",
    11: "NVIDIA Cloud Gaming",
    12: "Quadro RTX",
    13: "NVIDIA RTX",
    14: "NVIDIA",
    15: "GeForce RTX",
    16: "Titan RTX",
}


def normalized_pci(nvml: str) -> str:
    """NVML's ``00000000:9B:00.0`` as the kernel writes it, ``0000:9b:00.0``."""
    domain, _, rest = nvml.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def mig_profile(name: str) -> str:
    """The profile in the name of a MIG device, as ``1g.18gb`` of ``NVIDIA H200 MIG 1g.18gb``."""
    return name.rpartition(" MIG ")[2] if " MIG " in name else ""
