"""What PCI sysfs shows: our devices only, and whether they answer."""

from pathlib import Path

import pytest

from node_agent.sources.pci_sysfs import Device, DeviceClass, PciSysfs, PciUnavailableError


def add(root: Path, pci: str, vendor: str, code: str, config: bytes | None = b"\xde\x10") -> Path:
    folder = root / "bus" / "pci" / "devices" / pci
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{code}\n")
    if config is not None:
        (folder / "config").write_bytes(config)
    return folder


def test_gpus_and_switches_of_the_vendor_are_found_and_nothing_else(tmp_path: Path) -> None:
    add(tmp_path, "0000:18:00.0", "0x10de", "0x030200")
    add(tmp_path, "0000:19:00.0", "0x10de", "0x030000")
    add(tmp_path, "0000:05:00.0", "0x10de", "0x068000")
    add(tmp_path, "0000:19:00.1", "0x10de", "0x040300")  # the audio function of a GPU
    add(tmp_path, "0000:00:02.0", "0x8086", "0x030000")
    assert PciSysfs(root=tmp_path).scan() == (
        Device("0000:05:00.0", DeviceClass.NVSWITCH, answers=True),
        Device("0000:18:00.0", DeviceClass.GPU, answers=True),
        Device("0000:19:00.0", DeviceClass.GPU, answers=True),
    )


def test_registers_of_all_ones_are_no_answer_and_an_unreadable_file_is_no_evidence(
    tmp_path: Path,
) -> None:
    add(tmp_path, "0000:18:00.0", "0x10de", "0x030200", b"\xff" * 64)
    add(tmp_path, "0000:19:00.0", "0x10de", "0x030200", None)
    assert [device.answers for device in PciSysfs(root=tmp_path).scan()] == [False, True]


def test_the_vendor_file_is_read_once_for_an_address_that_stays(tmp_path: Path) -> None:
    folder = add(tmp_path, "0000:18:00.0", "0x10de", "0x030200")
    pci = PciSysfs(root=tmp_path)
    first = pci.scan()
    (folder / "vendor").write_text("0x8086\n")
    assert pci.scan() == first


def test_an_address_that_came_back_is_looked_at_again(tmp_path: Path) -> None:
    folder = add(tmp_path, "0000:18:00.0", "0x10de", "0x030200")
    pci = PciSysfs(root=tmp_path)
    assert len(pci.scan()) == 1
    folder.rename(tmp_path / "away")
    assert pci.scan() == ()
    add(tmp_path, "0000:18:00.0", "0x8086", "0x020000")
    assert pci.scan() == ()


def test_no_sysfs_says_which_folder_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PciUnavailableError, match="bus/pci/devices: No such file"):
        PciSysfs(root=tmp_path).scan()
