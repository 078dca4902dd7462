"""Our own families: SI units, losses as series, pods and processes, how it stands with NVML."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from node_agent.attribution.model import ProcessOwner
from node_agent.health.fold import scanned
from node_agent.health.state import NodeHealth
from node_agent.nvml.model import NvmlState, NvmlView, Reading
from node_agent.publish.device_families import DEVICE_FAMILIES, SAMPLES
from node_agent.publish.device_metrics import MAX_PROCESSES
from node_agent.sources.pci_sysfs import Device as PciDevice
from node_agent.sources.pci_sysfs import DeviceClass
from tests.unit.agent.publish.builders import (
    MIB,
    NOW,
    POD,
    VALUES,
    World,
    device,
    mig,
    pci,
    pods,
    process,
    uuid,
    view,
)


def found(world: World, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Samples of one family by some of their labels."""
    return {
        tuple(sample.labels.get(label, "") for label in labels): sample.value
        for family in text_string_to_metric_families(world.text())
        for sample in family.samples
        if sample.name == name
    }


@pytest.mark.parametrize(
    ("name", "label", "expected"),
    [
        ("gpu_temperature_celsius", "sensor", {("gpu",): 41.0, ("memory",): 33.0}),
        ("gpu_temperature_limit_celsius", "limit", {("slowdown",): 92.0}),
        ("gpu_clock_hertz", "domain", {("sm",): 1.98e9, ("memory",): 3.201e9}),
        ("gpu_energy_joules_total", "gpu", {("0",): 1234.5678}),
        ("gpu_power_watts", "reading", {("usage",): 86.759}),
        ("gpu_throttle_seconds_total", "cause", {("power",): 1.5}),
        ("gpu_pcie_link_generation", "state", {("current",): 5.0, ("max",): 5.0}),
        ("gpu_ecc_corrected_errors_total", "lifetime", {("volatile",): 2.0}),
        ("gpu_memory_size_bytes", "gpu", {("0",): 143771.0 * MIB}),
    ],
)
def test_values_are_in_si_units(
    name: str, label: str, expected: dict[tuple[str, ...], float]
) -> None:
    assert found(World(), name, label) == expected


def test_percent_becomes_a_ratio() -> None:
    ratios = found(World(), "gpu_utilization_ratio", "engine")
    assert ratios["gpu",] == pytest.approx(0.37)


def test_every_family_has_a_name_of_its_own_and_a_help() -> None:
    names = [family.name for family in DEVICE_FAMILIES]
    assert len(names) == len(set(names))
    assert all(family.doc for family in DEVICE_FAMILIES)


def test_no_two_rows_of_the_table_are_one_series() -> None:
    series = [(sample.family.name, sample.label) for sample in SAMPLES]
    assert len(series) == len(set(series))


def test_a_lost_gpu_is_a_series_with_value_1() -> None:
    world = World()
    seen = [PciDevice(pci(n), DeviceClass.GPU, answers=True) for n in range(3)]
    health = scanned(NodeHealth(), seen, expected_gpus=0, now=NOW)
    world.health = scanned(health, seen[:2], expected_gpus=0, now=NOW)  # one is off the bus
    world.nvml = view(device(0), device(1), lost=(uuid(1),))  # one does not answer
    assert found(world, "gpu_device_lost", "pci") == {
        (pci(0),): 0.0,
        (pci(1),): 1.0,
        (pci(2),): 1.0,
    }


def test_a_gpu_that_was_enumerated_and_is_gone_is_lost_too() -> None:
    world = World()
    world.nvml = view(device(0), lost=("GPU-gone",))
    assert found(world, "gpu_device_lost", "UUID") == {(uuid(0),): 0.0, ("GPU-gone",): 1.0}


def test_not_supported_is_told_from_absent() -> None:
    world = World()
    world.nvml = view(device(supports=frozenset({"ecc"})), values={})
    features = found(world, "gpu_feature_supported", "feature")
    assert features["ecc",] == 1.0
    assert features["gpm",] == 0.0
    assert found(world, "gpu_activity_ratio", "unit") == {}


def test_transitions_of_clock_reasons_not_looks() -> None:
    world = World()
    for at, bits in enumerate((0x0, 0x40, 0x40, 0x0, 0x40)):
        reading = Reading(uuid(0), NOW + at, {"clocks_event_reasons": float(bits)})
        world.nvml = view(readings={uuid(0): reading})
        world.page.take_nvml(world.nvml)
    assert found(world, "gpu_clock_event_transitions_total", "reason")["hw_thermal",] == 2.0
    active = found(world, "gpu_clock_event_active", "reason")
    assert active["hw_thermal",] == 1.0
    assert active["gpu_idle",] == 0.0
    assert len(active) == 9


def test_the_age_of_data_shows_while_nvml_hangs() -> None:
    world = World()
    world.nvml = view(state=NvmlState.HUNG, since=NOW - 30, hung_call="nvmlDeviceGetPowerUsage")
    world.now = NOW + 120
    assert found(world, "gpu_reading_timestamp_seconds", "gpu") == {("0",): NOW - 1}
    states = found(world, "gpu_nvml_state", "state")
    assert states.pop(("hung",)) == 1.0
    assert set(states.values()) == {0.0}
    assert found(world, "gpu_nvml_state_since_timestamp_seconds") == {(): NOW - 30}
    world.now = NOW + 3600
    assert found(world, "gpu_temperature_celsius", "sensor") == {}
    assert found(world, "gpu_reading_timestamp_seconds", "gpu") == {("0",): NOW - 1}


def test_calls_and_restarts() -> None:
    world = World()
    world.nvml = msgspec.structs.replace(view(), restarts=2, abandoned=1)
    name = ("nvmlDeviceGetTemperature",)
    assert found(world, "gpu_nvml_calls_total", "call") == {name: 3.0}
    assert found(world, "gpu_nvml_call_errors_total", "call") == {name: 1.0}
    assert found(world, "gpu_nvml_call_seconds_total", "call") == {name: 0.5}
    assert found(world, "gpu_nvml_child_restarts_total") == {(): 2.0}
    assert found(world, "gpu_nvml_children_abandoned") == {(): 1.0}


def test_without_nvml_the_page_says_so() -> None:
    world = World()
    world.nvml = NvmlView(state=NvmlState.NO_LIBRARY)
    assert found(world, "gpu_nvml_state", "state")["no-library",] == 1.0
    assert "DCGM_" not in world.text()


def test_containers_are_the_sum_of_their_processes_each_counted_once() -> None:
    world = World()
    world.nvml = view(
        processes=(
            process(1, 100, sm_util=20.0),
            process(1, 100, kind="graphics"),  # the same one: it computes and draws
            process(2, 50, sm_util=30.0),
            process(3, 7),  # nobody's
            process(4, None),  # the driver does not say
        )
    )
    of_pod = process_owner()
    world.pods = msgspec.structs.replace(pods(POD), pids=dict.fromkeys((1, 2, 4), of_pod))
    assert found(world, "gpu_pod_memory_bytes", "namespace", "pod", "container") == {
        ("ml", "job-0", "train"): 150.0
    }
    assert found(world, "gpu_pod_sm_utilization_ratio", "pod")["job-0",] == pytest.approx(0.5)
    assert found(world, "gpu_process_memory_bytes", "pid", "kind", "pod") == {
        ("1", "compute", "job-0"): 100.0,
        ("1", "graphics", "job-0"): 100.0,
        ("2", "compute", "job-0"): 50.0,
        ("3", "compute", ""): 7.0,
    }
    assert found(world, "gpu_processes", "kind") == {("compute",): 4.0, ("graphics",): 1.0}


def process_owner() -> ProcessOwner:
    return ProcessOwner(pod_uid="u-1", pod=POD)


def test_processes_are_bounded_the_largest_stay() -> None:
    world = World()
    world.nvml = view(processes=tuple(process(pid, pid) for pid in range(1, 1001)))
    shown = found(world, "gpu_process_memory_bytes", "pid")
    assert len(shown) == MAX_PROCESSES
    assert min(shown.values()) == 1001 - MAX_PROCESSES
    assert found(world, "gpu_processes", "kind") == {("compute",): 1000.0}


def test_who_holds_what() -> None:
    world = World()
    world.nvml = view(device(mig_enabled=True, mig=(mig(3), mig(3, ci=1))))
    world.pods = pods(POD, gi=3)
    assert found(world, "gpu_pod_device_info", "gi", "pod", "shared") == {
        ("3", "job-0", "false"): 1.0
    }
    instances = found(world, "gpu_mig_instance_info", "gi", "ci", "profile")
    assert set(instances) == {("3", "0", "1g.18gb"), ("3", "1", "1g.18gb")}


def test_what_instances_have_is_not_counted_on_the_whole_gpu_as_well() -> None:
    world = World()
    own = Reading("MIG-3-0", NOW, {"fb_used_bytes": 5.0})
    world.nvml = view(device(mig_enabled=True, mig=(mig(3),)), readings={"MIG-3-0": own})
    memory = found(world, "gpu_memory_bytes", "gi", "state")
    assert memory["3", "used"] == 5.0
    assert ("", "used") not in memory
    assert memory["", "free"] == VALUES["fb_free_bytes"]
