"""The whole agent while its GPUs change: partitioned, lost and back, added; the driver away."""

from __future__ import annotations

import json
import re

import pytest

from node_agent.contract import FAULTS_ANNOTATION, decode_report
from testbed.cluster import Cluster
from testbed.fake_nvml import FakeNvml
from tests.integration.agent.conftest import MakeSetup, Setup


pytestmark = pytest.mark.cluster

LABEL = re.compile(r'(\w+)="([^"]*)"')
NEVER = "10m"
VERSION_MISMATCH = 18


@pytest.fixture
def gpus(cluster: Cluster, make_setup: MakeSetup) -> Setup:
    made = make_setup(cluster, gpus=2, model="H200")
    made.agent.start()
    return made


def driver_of(setup: Setup) -> FakeNvml:
    assert setup.driver is not None
    return setup.driver


def rows(setup: Setup, family: str) -> list[dict[str, str]]:
    """The labels of each row of a family, with its value."""
    return [
        {**dict(LABEL.findall(name)), "value": f"{value:g}"}
        for name, value in setup.agent.metrics().items()
        if name.startswith(family + "{")
    ]


def events_logged(setup: Setup) -> list[str]:
    return [json.loads(line)["event"] for line in setup.agent.log_text.splitlines()]


def look_again(setup: Setup) -> None:
    """A fresh child, at once: by itself the agent enumerates twice a minute at most."""
    for time in ("1m", "0s"):
        assert setup.agent.release(time).returncode == 0


def test_an_event_of_the_driver_is_looked_into_at_once(
    cluster: Cluster, make_setup: MakeSetup
) -> None:
    setup = make_setup(cluster, gpus=2, model="H200", nvml_interval=NEVER, nvml_slow_interval=NEVER)
    setup.agent.start()
    driver_of(setup).field(1, 230, 4)
    driver_of(setup).event(1, bits=0x8000)
    setup.wait_for("GPURecoveryActionRequired", "True", "DrainAndReset")
    assert rows(setup, "gpu_nvml_events_total") == [{"event": "recovery_action", "value": "1"}]


def test_mig_is_switched_on_and_off_and_each_instance_has_its_rows(gpus: Setup) -> None:
    driver_of(gpus).set_mig(0, (1, 0, "4g.71gb"), (5, 0, "1g.18gb"))
    driver_of(gpus).set(0, **{"mig1.fb_used": 3 << 30})
    family = "DCGM_FI_DEV_FB_USED"

    def instances() -> dict[str, dict[str, str]]:
        found = rows(gpus, family)
        return {row["GPU_I_ID"]: row for row in found if "GPU_I_ID" in row}

    gpus.cluster.wait_for(lambda: len(instances()) == 2, what="rows of both instances")
    small = instances()["5"]
    assert (small["gpu"], small["GPU_I_PROFILE"], small["value"]) == ("0", "1g.18gb", "3072")
    whole = [row["gpu"] for row in rows(gpus, family) if "GPU_I_ID" not in row]
    assert whole == ["1"], "what instances have is not on the GPU as well"
    assert [row["gpu"] for row in rows(gpus, "DCGM_FI_DEV_GPU_UTIL")] == ["1"]
    driver_of(gpus).set_mig(0)
    look_again(gpus)
    gpus.cluster.wait_for(lambda: not instances(), what="whole GPUs again")
    gpus.cluster.wait_for(lambda: len(rows(gpus, family)) == 2, what="a row for each GPU")
    assert gpus.conditions()["GPULost"] == ("False", "NoFault")


def test_a_gpu_is_lost_and_comes_back_without_a_restart(gpus: Setup) -> None:
    pid = gpus.agent.process.pid
    driver_of(gpus).lose(1)
    gpus.wait_for("GPULost", "True", "DeviceLost")
    assert [row["value"] for row in rows(gpus, "gpu_device_lost")] == ["0", "1"]
    (fault,) = decode_report(
        gpus.cluster.node(gpus.node)["metadata"]["annotations"][FAULTS_ANNOTATION]
    ).faults
    assert (fault.pci, fault.gpu) == (gpus.machine.gpus[1], driver_of(gpus).uuid(1))
    driver_of(gpus).lose(1, lost=False)
    gpus.wait_for("GPULost", "False")
    assert [row["value"] for row in rows(gpus, "gpu_device_lost")] == ["0", "0"]
    assert gpus.agent.process.pid == pid


def test_a_driver_of_another_version_is_named_and_met_again_when_it_fits(gpus: Setup) -> None:
    driver_of(gpus).set(init=VERSION_MISMATCH)  # as an upgrade half done
    look_again(gpus)
    gpus.wait_for("GPUDriverUnresponsive", "True", "VersionMismatch")
    gpus.machine.xid(79, "GPU has fallen off the bus.")
    gpus.wait_for("GPUXidError", "True", "Xid79")
    driver_of(gpus).set(init=None)
    look_again(gpus)
    gpus.wait_for("GPUDriverUnresponsive", "False")


@pytest.mark.parametrize("restarts", [False, True], ids=["goes on", "restarts by setting"])
def test_a_gpu_without_a_device_node_here_is_said(
    cluster: Cluster,
    make_setup: MakeSetup,
    restarts: bool,  # noqa: FBT001 - parametrized
) -> None:
    setup = make_setup(
        cluster, gpus=2, model="H200", restart_for_new_gpu="true" if restarts else "false"
    )
    setup.agent.start()
    (driver_of(setup).proc / "driver" / "nvidia" / "gpus" / "0000:f0:00.0").mkdir()
    said = "the driver has GPUs that have no device node here"
    setup.cluster.wait_for(
        lambda: any(event.startswith(said) for event in events_logged(setup)), what=said
    )
    if restarts:
        setup.cluster.wait_for(lambda: not setup.agent.process.running, what="its end")
        assert driver_of(setup).shutdowns >= 1
    else:
        assert setup.agent.is_ready()
        assert setup.conditions()["GPULost"] == ("False", "NoFault")
