"""NVIDIA devices on PCI, as ``/sys/bus/pci/devices`` shows them.

What can be known here without any driver: that a device is listed (the kernel removes
it on hot-unplug or when a rescan after reboot does not find it), and whether it answers.
A GPU that fell off the bus mostly *stays listed*, and the files ``vendor`` and ``class``
still give what the kernel read when it found the device. Only ``config`` goes to the
hardware: a device that is gone lets every read end in all ones, so a vendor id of 0xffff
there means that it does not answer. The first 64 bytes are readable by everyone.

Not known here: a GPU that answers on PCI and whose driver or firmware hangs.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple


class DeviceClass(StrEnum):
    """What a PCI device of the vendor is, as far as we care."""

    GPU = "gpu"
    NVSWITCH = "nvswitch"


VENDOR_NVIDIA: Final = 0x10DE
_CLASSES: Final = {
    0x0300: DeviceClass.GPU,  # VGA compatible controller
    0x0302: DeviceClass.GPU,  # 3D controller
    0x0680: DeviceClass.NVSWITCH,  # bridge, other
}
_ALL_ONES: Final = b"\xff\xff"


class Device(NamedTuple):
    """One device now. ``answers`` False: its registers read as all ones.

    ``driver`` is the kernel driver that holds it, None if none does or that is not told.
    """

    pci: str
    kind: DeviceClass
    answers: bool
    driver: str | None = None


class PciUnavailableError(Exception):
    """PCI devices cannot be listed. The text says which folder and why."""


class PciSysfs:
    """Scans one sysfs tree. What never changes for an address is read once.

    Args:
        root: where sysfs is mounted, as ``/sys``.
    """

    def __init__(self, *, root: Path) -> None:
        self._folder = root / "bus" / "pci" / "devices"
        self._kinds: dict[str, DeviceClass | None] = {}

    def scan(self) -> tuple[Device, ...]:
        """List the devices now. Blocks for a few milliseconds, longer on a dying bus.

        Raises:
            PciUnavailableError: there is no such folder, or no permission.
        """
        try:
            listed = sorted(entry.name for entry in self._folder.iterdir())
        except OSError as error:
            raise PciUnavailableError(f"{self._folder}: {error.strerror or error}") from error
        # An address that went away may come back as another device.
        self._kinds = {name: self._kinds[name] for name in listed if name in self._kinds}
        devices = []
        for name in listed:
            kind = self._kind(name)
            if kind is not None:
                devices.append(Device(name, kind, self._answers(name), self._driver(name)))
        return tuple(devices)

    def _kind(self, name: str) -> DeviceClass | None:
        if name not in self._kinds:
            vendor, code = self._number(name, "vendor"), self._number(name, "class")
            if vendor is None or code is None:
                return None  # it is going away right now; ask again next time
            ours = vendor == VENDOR_NVIDIA
            self._kinds[name] = _CLASSES.get(code >> 8) if ours else None
        return self._kinds[name]

    def _number(self, name: str, file: str) -> int | None:
        try:
            return int((self._folder / name / file).read_text("ascii"), 16)
        except (OSError, ValueError):
            return None

    def _driver(self, name: str) -> str | None:
        """By the link that the kernel keeps; without one the device is free or hidden from us."""
        try:
            return (self._folder / name / "driver").readlink().name
        except OSError:
            return None

    def _answers(self, name: str) -> bool:
        try:
            with (self._folder / name / "config").open("rb", buffering=0) as file:
                head = file.read(len(_ALL_ONES))
        except OSError:
            # Not readable is not evidence of anything: a sandbox may hide the file.
            return True
        return head != _ALL_ONES
