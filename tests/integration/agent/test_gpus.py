"""The whole agent over a fake driver: NVML levels, three sources, pods, release, check."""

import json
import os
from typing import Any

import pytest

from node_agent.contract import FAULTS_ANNOTATION, ConditionType, Fault, decode_report
from testbed.cluster import Cluster
from testbed.fake_nvml import FakeNvml
from testbed.podresources import KubeletSocket, pod
from tests.integration.agent.conftest import MakeSetup, Setup


pytestmark = pytest.mark.cluster


@pytest.fixture
def gpus(cluster: Cluster, make_setup: MakeSetup) -> Setup:
    """A node with two H200 and their driver; the agent is running."""
    made = make_setup(cluster, gpus=2, model="H200")
    made.agent.start()
    return made


def driver_of(setup: Setup) -> FakeNvml:
    assert setup.driver is not None
    return setup.driver


def faults(setup: Setup) -> list[Fault]:
    text = setup.cluster.node(setup.node)["metadata"]["annotations"][FAULTS_ANNOTATION]
    return list(decode_report(text).faults)


def checks(setup: Setup) -> dict[str, Any]:
    done = setup.agent.show("check", "-o", "json")
    return {each["view"]: each for each in json.loads(done.stdout)}


def test_with_nvml_every_condition_is_checked(gpus: Setup) -> None:
    assert gpus.conditions() == dict.fromkeys(ConditionType, ("False", "NoFault"))
    metrics = gpus.agent.metrics()
    assert metrics['gpu_agent_view_up{view="nvml"}'] == 1
    names = [name for name in metrics if name.startswith("DCGM_FI_DEV_GPU_TEMP{")]
    assert len(names) == 2
    for gpu in (0, 1):
        assert any(driver_of(gpus).uuid(gpu) in name for name in names)


def test_a_hot_gpu_overheats_and_cools_down(gpus: Setup) -> None:
    driver_of(gpus).set(1, clocks_event_reasons=0x40)
    gpus.wait_for("GPUOverheating", "True", "HwThermalSlowdown")
    (fault,) = faults(gpus)
    assert (fault.pci, fault.subcode, fault.sources) == (
        gpus.machine.gpus[1],
        "hw-thermal",
        ("nvml",),
    )
    assert fault.gpu == driver_of(gpus).uuid(1)


def test_a_recovery_action_is_read_and_its_end_is_a_reset(gpus: Setup) -> None:
    gpus.machine.xid(119, "Timeout after 6s of waiting for RPC response from GPU0 GSP!")
    driver_of(gpus).field(0, 230, 1)
    gpus.wait_for("GPURecoveryActionRequired", "True", "GPUReset")
    assert gpus.conditions()["GPUXidError"] == ("True", "Xid119")
    driver_of(gpus).field(0, 230, 0)
    gpus.wait_for("GPUXidError", "False")
    gpus.wait_for("GPURecoveryActionRequired", "False")


def test_a_hanging_call_is_named_and_everything_else_goes_on(gpus: Setup) -> None:
    driver_of(gpus).hang("nvmlDeviceGetTemperatureV", gpu=1)
    driver_of(gpus).hang("nvmlDeviceGetTemperature", gpu=1)
    gpus.wait_for("GPUDriverUnresponsive", "True", "NVMLTimeout")
    message = next(
        c["message"] for c in gpus.raw_conditions() if c["type"] == "GPUDriverUnresponsive"
    )
    assert "nvmlDeviceGetTemperature" in message
    assert gpus.conditions()["GPUOverheating"][0] == "Unknown"
    gpus.machine.xid(79, "GPU has fallen off the bus.")
    gpus.wait_for("GPUXidError", "True", "Xid79")
    assert any(name.startswith("DCGM_FI_DEV_GPU_TEMP{") for name in gpus.agent.metrics())
    driver_of(gpus).hang("nvmlDeviceGetTemperatureV", gpu=1, hangs=False)
    driver_of(gpus).hang("nvmlDeviceGetTemperature", gpu=1, hangs=False)
    assert gpus.agent.release("0s").returncode == 0  # ends the growing pause between children
    gpus.wait_for("GPUOverheating", "False")  # each call answers again


def test_a_lost_gpu_is_lost_and_has_a_series(gpus: Setup) -> None:
    driver_of(gpus).lose(1)
    gpus.wait_for("GPULost", "True", "DeviceLost")
    metrics = gpus.agent.metrics()
    uuid = driver_of(gpus).uuid(1)
    assert [v for k, v in metrics.items() if k.startswith("gpu_device_lost{") and uuid in k] == [1]


def test_one_fault_of_three_sources_is_one_with_what_all_know(
    cluster: Cluster, make_setup: MakeSetup
) -> None:
    setup = make_setup(cluster, gpus=2, model="H200")
    pipe = setup.machine.install_tracepoints()
    writer = os.open(pipe, os.O_RDWR)  # as the kernel, which is always there
    try:
        setup.agent.start()
        pci = setup.machine.gpus[0].removesuffix(".0")
        line = (
            f"          <idle>-0       [003] d.h1.    12.345678: nvidia_dev_xid: Xid (PCI:{pci}): "
        )
        os.write(writer, f"{line}31, MMU Fault\n".encode())
        setup.cluster.wait_for(lambda: faults(setup), what="the tracepoint's fault")
        setup.machine.xid(31, "Ch 00000008, intr 00000000. MMU Fault", pid="4242")
        driver_of(setup).event(0, data=31)

        def merged() -> bool:
            return any(len(f.sources) == 3 for f in faults(setup))

        setup.cluster.wait_for(merged, what=f"all sources; {faults(setup)}")
        (fault,) = faults(setup)
        assert (fault.code, fault.count, fault.lines, fault.pid) == (31, 1, 1, 4242)
        assert fault.sources[0] == "tracepoint"
        assert set(fault.sources) == {"tracepoint", "kernel-log", "nvml"}
        metrics = setup.agent.metrics()
        assert [v for k, v in metrics.items() if k.startswith("gpu_xid_errors_total{")] == [1]
        assert metrics['gpu_fault_source_first_total{source="tracepoint"}'] == 1
    finally:
        os.close(writer)


def test_nvml_alone_is_enough_for_an_xid(cluster: Cluster, make_setup: MakeSetup) -> None:
    setup = make_setup(cluster, gpus=2, model="H200", kernel_log="kmsg", kmsg_path="/no/such/kmsg")
    setup.agent.start()
    assert setup.conditions()["GPUXidError"] == ("Unknown", "NotChecked")
    driver_of(setup).event(0, data=48)
    setup.wait_for("GPUXidError", "True", "Xid48")
    setup.wait_for("GPUMemoryDegraded", "True", "UncorrectableECC")


def test_the_pods_of_a_fault_are_in_the_annotation_and_the_event(
    cluster: Cluster, make_setup: MakeSetup
) -> None:
    setup = make_setup(cluster, gpus=2, model="H200")
    with KubeletSocket(setup.machine.kubelet) as kubelet:
        kubelet.pods = [pod("train-0", [driver_of(setup).uuid(1)])]
        setup.agent.start()
        setup.cluster.wait_for(
            lambda: setup.agent.metrics()['gpu_agent_view_up{view="pod_resources"}'],
            what="the kubelet's answer",
        )
        setup.machine.xid(48, "An uncorrectable double bit error (DBE)", gpu=1)
        setup.wait_for("GPUXidError", "True", "Xid48")
        (fault,) = faults(setup)
        assert fault.pods == ("ml/train-0",)

        def told() -> bool:
            return any("ml/train-0" in e["message"] for e in setup.cluster.events(setup.node))

        setup.cluster.wait_for(told, what="an Event with the pod")


def test_released_gpus_have_no_process_of_ours_and_come_back(gpus: Setup) -> None:
    closed = driver_of(gpus).shutdowns
    done = gpus.agent.release("10m")
    assert (done.returncode, done.stdout) == (0, "released for 600 s\n")
    assert driver_of(gpus).shutdowns == closed + 1
    gpus.wait_for("GPUOverheating", "Unknown")
    assert "released" in checks(gpus)["nvml"]["detail"]
    assert any(name.startswith("DCGM_FI_DEV_GPU_TEMP{") for name in gpus.agent.metrics())
    assert gpus.agent.release("0s").returncode == 0
    gpus.wait_for("GPUOverheating", "False")


def test_sigterm_closes_the_handles(gpus: Setup) -> None:
    closed = driver_of(gpus).shutdowns
    gpus.agent.stop()
    assert driver_of(gpus).shutdowns == closed + 1


def test_check_shows_the_agents_views(gpus: Setup) -> None:
    found = checks(gpus)
    assert found["nvml"]["state"] == "on"
    assert "2 GPUs" in found["nvml"]["detail"]
    assert found["tracepoint"]["state"] == "absent"
    assert found["pod_resources"]["state"] == "off"
    assert "kubelet_folder" in found["pod_resources"]["grants"]
    assert found["api_server"]["state"] == "on"


def test_check_looks_for_itself_without_an_agent(gpus: Setup) -> None:
    gpus.agent.stop()
    found = checks(gpus)
    assert found["nvml"]["state"] == "on"
    assert found["kernel_log"]["state"] == "on"
    assert found["local_socket"]["state"] == "off"


def test_faults_shows_what_stands_on_the_node(gpus: Setup) -> None:
    gpus.machine.xid(79, "GPU has fallen off the bus.")
    gpus.wait_for("GPULost", "True")
    done = gpus.agent.show("faults")
    assert done.returncode == 0, done.stderr
    assert "Xid 79" in done.stdout
    assert "RESTART_BM" in done.stdout
    shown = json.loads(gpus.agent.show("faults", "-o", "json").stdout)
    assert {c["type"] for c in shown["conditions"]} == set(ConditionType)
    assert [f["code"] for f in shown["report"]["faults"]] == [79]
