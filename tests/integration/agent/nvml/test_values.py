"""What the real binding reads over the fake library: present, absent, refused, per device."""

import re
from ctypes import CDLL
from pathlib import Path

import pynvml
import pytest

import node_agent.nvml
from node_agent.nvml.model import MigInstance, NvmlState, NvmlView
from testbed.fake_nvml import FakeNvml
from testbed.fake_nvml.library import build
from tests.integration.agent.nvml.watching import Watched


HOPPER_ON = {"gpm_sm_ratio", "gpm_tensor_ratio", "gpm_pcie_tx_bytes_per_s"}
ALWAYS = {
    *("gpu_temp_c", "sm_clock_mhz", "mem_clock_mhz", "gpu_util_pct", "enc_util_pct", "power_w"),
    *("fb_total_bytes", "fb_reserved_bytes", "ecc_dbe_vol", "pcie_gen", "energy_j"),
    *("pcie_replay", "bar1_used_bytes", "power_limit_w", "inforom_valid", "violation_thermal_ns"),
}
NEVER_ON_THESE = {"fan_pct", "retired_sbe", "vgpu_license", "c2c_errors_intr"}


@pytest.mark.parametrize(
    ("model", "present", "absent", "supports"),
    [
        (
            "A100",
            {"memory_temp_c", "remap_pending", "nvlink_up", "nvlink_crc_flit_errors"},
            HOPPER_ON | {"recovery_action", "power_instant_w", "fabric_state"},
            {"row_remap", "nvlink", "ecc", "mig"},
        ),
        (
            "H100",
            HOPPER_ON | {"recovery_action", "fabric_state", "sram_threshold_exceeded"},
            {"nvlink5_effective_ber"},
            {"gpm", "row_remap", "nvlink", "ecc", "mig", "fabric"},
        ),
        (
            "H200",
            HOPPER_ON | {"recovery_action", "pcie_count_bad_tlp", "unrepairable_memory"},
            {"nvlink5_effective_ber"},
            {"gpm", "row_remap", "nvlink", "ecc", "mig", "fabric"},
        ),
        (
            "L4",
            {"recovery_action", "pcie_count_bad_tlp"},
            HOPPER_ON | {"memory_temp_c", "remap_pending", "nvlink_up", "nvlink_tx_bytes_per_s"},
            {"ecc"},
        ),
        (
            "B200",
            HOPPER_ON | {"nvlink5_effective_ber", "nvlink5_symbol_errors"},
            set(),
            {"gpm", "row_remap", "nvlink", "ecc", "mig", "fabric"},
        ),
    ],
)
async def test_each_model_has_what_it_has_and_nothing_else(
    tmp_path: Path, model: str, present: set[str], absent: set[str], supports: set[str]
) -> None:
    watched = Watched(FakeNvml(tmp_path, model=model, gpus=1))
    try:
        wanted = ALWAYS | present
        await watched.until(
            lambda view: view.readings and wanted <= watched.reading(0).values.keys(), "all values"
        )
        reading = watched.reading(0)
        assert not (absent | NEVER_ON_THESE) & reading.values.keys()
        assert reading.errors == {}
        assert watched.view.devices[0].supports == supports
    finally:
        await watched.close()


async def test_values_and_units_of_an_h200(watched: Watched, driver: FakeNvml) -> None:
    driver.field(0, 138, 5_000_000, scope=0xFFFFFFFF)
    await watched.until(lambda view: view.readings and "gpm_sm_ratio" in watched.reading(0).values)
    await watched.next_poll()
    values = watched.reading(0).values
    assert values["power_w"] == pytest.approx(86.759)
    assert values["energy_j"] == pytest.approx(987654.321)
    assert values["fb_total_bytes"] == 143771 * 1024 * 1024
    assert values["nvlink_up"] == 18
    assert values["remap_bank_max"] == 2560
    assert values["gpm_tensor_ratio"] == pytest.approx(0.04)
    assert values["nvlink_rate_bytes_per_s"] >= 0
    device = watched.view.devices[0]
    assert device.limits["tlimit_shutdown_c"] == -8  # 4294967288, as the driver hands it out
    assert device.limits["slowdown_c"] == 92
    assert (device.pci, device.pci_nvml) == ("0000:18:00.0", "00000000:18:00.0")
    assert device.compute_capability == "9.0"
    assert watched.view.driver is not None
    assert watched.view.driver.cuda_version == "13.0"


async def test_an_impossible_value_is_an_error_of_its_own_and_blanks_nothing_else(
    watched: Watched, driver: FakeNvml
) -> None:
    await watched.in_state(NvmlState.OK)
    driver.set(0, temperature0=644245923, util_gpu=4294967295, energy_mj=9223372036854775794)
    await watched.next_poll()
    reading = watched.reading(0)
    assert "644245923" in reading.errors["gpu_temp_c"]
    assert not {"gpu_temp_c", "gpu_util_pct", "energy_j"} & reading.values.keys()
    assert reading.values["mem_util_pct"] == 0
    assert reading.values["power_w"] == pytest.approx(86.759)
    assert watched.reading(1).values["gpu_temp_c"] == 33


async def test_an_error_of_one_call_blanks_only_its_quantity_on_its_device(
    watched: Watched, driver: FakeNvml
) -> None:
    await watched.in_state(NvmlState.OK)
    driver.fail("nvmlDeviceGetPowerUsage", 999, gpu=0)
    driver.field(0, 230, "err:999")
    await watched.next_poll()
    reading = watched.reading(0)
    assert reading.errors["power_w"] == "Unknown Error"
    assert "recovery_action" in reading.errors
    assert not {"power_w", "recovery_action"} & reading.values.keys()
    assert reading.values["gpu_temp_c"] == 33
    assert watched.reading(1).values["power_w"] == pytest.approx(86.759)
    driver.fail("nvmlDeviceGetPowerUsage", None, gpu=0)
    driver.field(0, 230, "ui:1")
    await watched.next_poll()
    assert watched.reading(0).errors == {}
    assert watched.reading(0).values["recovery_action"] == 1


async def test_what_is_not_supported_is_absent_and_not_asked_again_until_enumerated(
    watched: Watched, driver: FakeNvml
) -> None:
    await watched.in_state(NvmlState.OK)
    await watched.next_poll()
    assert watched.view.calls["nvmlDeviceGetFanSpeed"].count == 2  # once a device
    driver.set(0, fan=40)
    watched.supervisor.renumber()
    await watched.until(lambda _: watched.reading(0).values.get("fan_pct") == 40)
    assert "fan_pct" not in watched.reading(1).values


async def test_a_virtual_gpu_and_an_older_driver(watched: Watched, driver: FakeNvml) -> None:
    driver.set(0, vgpu_license=1, clocks_event_reasons=None, clocks_throttle_reasons=0x40)
    driver.set(1, vgpu_license=0)
    watched.supervisor.renumber()
    await watched.until(
        lambda view: len(view.readings) == 2 and "vgpu_license" in watched.reading(1).values
    )
    assert [watched.reading(gpu).values["vgpu_license"] for gpu in (0, 1)] == [1, 0]
    assert watched.reading(0).values["clocks_event_reasons"] == 0x40


def test_every_function_that_is_called_is_in_the_fake_library() -> None:
    """One that is not would be absent in every test, and nobody would know."""
    library = CDLL(str(build() / "libnvidia-ml.so.1"))
    package = Path(node_agent.nvml.__file__).parent
    called = {
        name
        for path in package.glob("*.py")
        for name in re.findall(r"""(?:nvml\.|")(nvml[A-Z]\w+)""", path.read_text("utf-8"))
        if callable(getattr(pynvml, name, None))
    }
    assert len(called) > 60

    def is_there(name: str) -> bool:
        return any(hasattr(library, name + version) for version in ("", "_v2", "_v3", "_v4"))

    assert {name for name in called if not is_there(name)} == set()


async def test_processes(watched: Watched, driver: FakeNvml) -> None:
    driver.process(0, pid=4711, memory=1 << 30, util=40)
    driver.process(0, pid=4712, memory=0xFFFFFFFFFFFFFFFF, kind="graphics")
    driver.process(1, pid=4713, memory=1 << 20, kind="mps", gi=3, ci=0)
    view = await watched.until(lambda view: len(view.processes) == 3, "three processes")
    first, second, third = view.processes
    assert (first.pid, first.kind, first.memory_bytes, first.sm_util) == (
        *(4711, "compute"),
        *(1 << 30, 40.0),
    )
    assert (first.gi, first.ci) == (None, None)
    assert (second.kind, second.memory_bytes) == ("graphics", None)
    assert (third.uuid, third.kind, third.gi, third.ci) == (driver.uuid(1), "mps", 3, 0)


async def test_mig_is_found_when_it_is_switched_on_changed_and_off(
    watched: Watched, driver: FakeNvml
) -> None:
    await watched.in_state(NvmlState.OK)
    assert watched.view.devices[0].mig_enabled is False
    driver.set_mig(0, (1, 0, "3g.71gb"), (2, 0, "3g.71gb"))
    view = await watched.until(lambda view: len(view.devices[0].mig) == 2, "two instances")
    assert view.devices[0].mig_enabled is True
    uuid = view.devices[0].mig[0].uuid
    assert view.devices[0].mig[0] == MigInstance(uuid, 1, 0, "3g.71gb")
    driver.set_mig(0, (7, 0, "1g.18gb"))
    await watched.until(
        lambda view: [one.profile for one in view.devices[0].mig] == ["1g.18gb"], "one instance"
    )
    driver.set_mig(0)
    await watched.until(lambda view: view.devices[0].mig_enabled is False, "no MIG")
    assert watched.view.restarts == 0


async def test_an_instance_of_mig_has_its_own_memory_and_activity(
    watched: Watched, driver: FakeNvml
) -> None:
    await watched.in_state(NvmlState.OK)
    driver.set_mig(0, (1, 0, "3g.71gb"), (2, 0, "1g.18gb"), (2, 1, "1g.18gb"))
    driver.set(0, **{"mig1.fb_used": 5 << 30, "gi2.gpm5": 50.0})
    await watched.until(lambda view: len(view.devices[0].mig) == 3, "three instances")
    large, small, same_gi = (mig.uuid for mig in watched.view.devices[0].mig)

    def complete(view: NvmlView) -> bool:
        reading = view.readings.get(small)
        return reading is not None and "gpm_tensor_ratio" in reading.values

    readings = (await watched.until(complete, "values of the instance")).readings
    assert same_gi not in readings
    assert readings[small].values["fb_used_bytes"] == 5 << 30
    assert readings[small].values["gpm_tensor_ratio"] == pytest.approx(0.5)
    assert readings[large].values["fb_total_bytes"] == 71 << 30
    assert readings[large].values["gpm_tensor_ratio"] == pytest.approx(0.04)
    assert "gpu_temp_c" not in readings[small].values
    whole = watched.reading(0).values
    assert whole["gpu_temp_c"] == 33
    # NVML answers NotSupported for both while MIG is on.
    assert not {"gpu_util_pct", "gpm_tensor_ratio"} & whole.keys()
    driver.fail("nvmlDeviceGetMemoryInfo_v2", 999)
    await watched.until(lambda view: "fb_used_bytes" in view.readings[small].errors, "an error")
    driver.set_mig(0)
    await watched.until(lambda view: small not in view.readings, "no MIG")
    assert watched.view.restarts == 0
