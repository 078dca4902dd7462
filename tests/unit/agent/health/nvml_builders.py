"""Short ways to say what NVML showed."""

from collections.abc import Mapping

from node_agent.nvml.model import Device, NvmlState, NvmlView, Reading
from node_agent.sources.pci_sysfs import Device as PciDevice
from node_agent.sources.pci_sysfs import DeviceClass
from tests.unit.agent.health.builders import GPU, OTHER_GPU


UUID = "GPU-00000000-0000-0000-0000-000000000001"
OTHER_UUID = "GPU-00000000-0000-0000-0000-000000000002"
LIMITS = {
    "slowdown_c": 90.0,
    "mem_max_c": 95.0,
    "pcie_gen_max": 5.0,
    "pcie_width_max": 16.0,
}
WELL = {
    "gpu_temp_c": 40.0,
    "memory_temp_c": 50.0,
    "clocks_event_reasons": 1.0,
    "recovery_action": 0.0,
    "ecc_sbe_vol": 0.0,
    "ecc_dbe_vol": 0.0,
    "ecc_dbe_agg": 2.0,
    "remap_pending": 0.0,
    "remap_failure": 0.0,
    "remap_bank_none": 0.0,
    "pcie_gen": 5.0,
    "pcie_width": 16.0,
    "gpu_util_pct": 50.0,
    "pcie_replay": 3.0,
    "pcie_count_fatal_error": 1.0,
    "nvlink_up": 18.0,
    "nvlink_down": 0.0,
    "nvlink_crc_flit_errors": 7.0,
    "nvlink_replay_errors": 1.0,
    "nvlink5_recovery_failed": 1.0,
    "fabric_state": 3.0,
    "fabric_status": 0.0,
    "fabric_health_mask": float(0b01_10_10_10_10),
    "persistence_mode": 1.0,
    "inforom_valid": 1.0,
    "unrepairable_memory": 0.0,
    "sram_threshold_exceeded": 0.0,
}
ON_PCI = (
    PciDevice(GPU, DeviceClass.GPU, answers=True, driver="nvidia"),
    PciDevice(OTHER_GPU, DeviceClass.GPU, answers=True, driver="nvidia"),
)


def device(uuid: str = UUID, pci: str = GPU, *, index: int = 0, mig: bool | None = None) -> Device:
    """An H200 as far as health looks at it."""
    return Device(
        index=index,
        uuid=uuid,
        pci=pci,
        pci_nvml=f"0000{pci.upper()}",
        name="NVIDIA H200",
        mig_enabled=mig,
        supports=frozenset(("row_remap", "ecc")),
        limits=LIMITS,
    )


def view(
    at: float,
    values: Mapping[str, float] | None = None,
    *,
    state: NvmlState = NvmlState.OK,
    lost: tuple[str, ...] = (),
    devices: tuple[Device, ...] = (),
    others: Mapping[str, float] | None = None,
    why: str = "",
    hung_call: str = "",
) -> NvmlView:
    """Two GPUs of which the first reads ``values`` at this time, the second ``others``."""
    devices = devices or (device(), device(OTHER_UUID, OTHER_GPU, index=1))
    texts = {UUID: WELL if values is None else values, OTHER_UUID: others or WELL}
    readings = {
        d.uuid: Reading(uuid=d.uuid, at=at, values=dict(texts[d.uuid]))
        for d in devices
        if d.uuid not in lost
    }
    return NvmlView(
        state=state,
        since=at,
        why=why,
        hung_call=hung_call,
        devices=devices,
        readings=readings,
        lost=lost,
    )
