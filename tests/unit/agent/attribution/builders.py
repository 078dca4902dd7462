"""Devices and uuids of the attribution tests."""

from node_agent.nvml.model import Device, MigInstance


def uuid(kind: str, number: int) -> str:
    """A UUID as NVML prints it: `GPU-00000000-0000-4000-8000-00000000000a`."""
    return f"{kind}-00000000-0000-4000-8000-{number:012x}"


GPU0, GPU1, GPU2 = (uuid("GPU", number) for number in range(3))
MIG0, MIG1, MIG2 = (uuid("MIG", number) for number in range(3))


def device(number: int, *, minor: int | None = None, mig: tuple[MigInstance, ...] = ()) -> Device:
    """GPU `number`; its minor is another number, as on machines where it differs."""
    return Device(
        index=number,
        uuid=uuid("GPU", number),
        pci=f"0000:{0x18 + number:02x}:00.0",
        pci_nvml=f"00000000:{0x18 + number:02X}:00.0",
        name="NVIDIA H200",
        minor=minor,
        mig_enabled=bool(mig),
        mig=mig,
    )


DEVICES = (
    device(0, minor=2),
    device(1, minor=0),
    device(
        2,
        minor=1,
        mig=(
            MigInstance(uuid=MIG0, gi=7, ci=0, profile="1g.18gb"),
            MigInstance(uuid=MIG1, gi=8, ci=0, profile="1g.18gb"),
            MigInstance(uuid=MIG2, gi=3, ci=0, profile="2g.35gb"),
        ),
    ),
)
