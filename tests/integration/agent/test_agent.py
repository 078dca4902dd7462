"""The whole agent on a real API server, with its own token, through its admission policies."""

import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from node_agent.contract import (
    FAULTS_ANNOTATION,
    SET_HEALTHY_ANNOTATION,
    FaultReport,
    decode_report,
)
from remediator.decide.match import match
from testbed.api import Json
from testbed.cluster import Cluster
from testbed.gpunode import xid_line
from tests.integration.agent.conftest import MakeSetup, Setup
from tests.unit.agent.health.builders import RESET_DONE, RESET_WANTED
from tests.unit.decide.build import node, policy


pytestmark = pytest.mark.cluster

WELL = {
    "GPUXidError": ("False", "NoFault"),
    "GPURecoveryActionRequired": ("False", "NoFault"),
    "GPULost": ("False", "NoFault"),
    "GPUMemoryDegraded": ("False", "NoFault"),
    "GPUInterconnectDegraded": ("False", "NoFault"),
}


def later(**delta: float) -> str:
    return (datetime.now(tz=UTC) + timedelta(**delta)).strftime("%Y-%m-%dT%H:%M:%SZ")


def patches(setup: Setup) -> list[Json]:
    """The status patches of this node so far, from the server's audit log."""
    return [
        entry["requestObject"]
        for entry in setup.cluster.plane.audit_entries()
        if entry["verb"] == "patch"
        and entry.get("objectRef", {}).get("name") == setup.node
        and entry["objectRef"].get("subresource") == "status"
        and "node-agent" in entry["user"]["username"]
        and entry["responseStatus"]["code"] < 300
    ]


def report(setup: Setup) -> FaultReport:
    text = setup.cluster.node(setup.node)["metadata"]["annotations"][FAULTS_ANNOTATION]
    return decode_report(text)


def faults(setup: Setup) -> list[Any]:
    return list(report(setup).faults)


def test_a_well_node_is_said_to_be_well_in_one_patch(setup: Setup) -> None:
    assert setup.conditions() == WELL
    assert len(patches(setup)) == 1
    assert faults(setup) == []
    foreign = {c["type"] for c in setup.raw_conditions()} - WELL.keys()
    assert foreign == {"Ready", "MemoryPressure", "DiskPressure"}


def test_an_xid_79_raises_both_conditions_in_one_patch_and_an_event(setup: Setup) -> None:
    setup.machine.xid(79, "GPU has fallen off the bus.", gpu=3)
    setup.wait_for("GPUXidError", "True", "Xid79")
    assert setup.conditions()["GPULost"] == ("True", "FallenOffBus")
    assert len(patches(setup)) == 2
    (fault,) = faults(setup)
    assert (fault.code, fault.pci, fault.action) == (79, setup.machine.gpus[3], "RESTART_BM")
    events = setup.cluster.wait_for(setup.events, what="an Event")
    assert events == [("Xid79", "Warning")]
    metrics = setup.agent.metrics()
    assert [v for k, v in metrics.items() if k.startswith("gpu_xid_errors_total")] == [1]
    assert metrics['gpu_condition_status{type="GPULost",status="True"}'] == 1


def test_application_errors_raise_no_condition_and_are_in_the_annotation(setup: Setup) -> None:
    setup.machine.xid(31, "Ch 00000008, intr 00000000. MMU Fault", pid="42")
    setup.cluster.wait_for(lambda: faults(setup), what="the fault in the annotation")
    assert [(fault.code, fault.severity) for fault in faults(setup)] == [(31, "info")]
    assert setup.conditions() == WELL
    assert setup.events() == []


def test_a_storm_of_one_code_costs_few_patches_and_counts_every_line(
    cluster: Cluster, make_setup: MakeSetup
) -> None:
    setup = make_setup(cluster, counts_interval="1s")
    setup.agent.start()
    line = xid_line(setup.machine.gpus[0], 45, "Ch 00000001", pid="7")
    for _ in range(10):
        setup.machine.log(*([line] * 10_000))
    setup.cluster.wait_for(
        lambda: sum(fault.lines for fault in faults(setup)) == 100_000,
        what=f"all lines counted; {faults(setup)}",
    )
    assert len(faults(setup)) == 1
    assert faults(setup)[0].count == 1
    # The first check, the new fault, and one each second while only counts change.
    assert len(patches(setup)) <= 5


def test_killed_and_started_again_it_counts_nothing_twice_and_forgets_nothing(
    setup: Setup,
) -> None:
    setup.machine.xid(95, "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No", gpu=1)
    setup.wait_for("GPUMemoryDegraded", "True", "UncorrectableECC")
    setup.cluster.wait_for(
        lambda: setup.machine.state_file.exists() and "95" in setup.machine.state_file.read_text(),
        what="the fault in the state file",
    )
    before = setup.raw_conditions()
    setup.agent.kill()
    setup.machine.xid(119, "Timeout waiting for RPC from GSP!", gpu=2)
    setup.agent.start()
    setup.cluster.wait_for(lambda: len(faults(setup)) == 2, what="the fault of the gap")
    assert {(f.code, f.count, f.lines) for f in faults(setup)} == {(95, 1, 1), (119, 1, 1)}
    since = {c["type"]: c["lastTransitionTime"] for c in before}
    assert {c["type"]: c["lastTransitionTime"] for c in setup.raw_conditions()} == since
    metrics = setup.agent.metrics()
    assert sum(v for k, v in metrics.items() if k.startswith("gpu_xid_errors_total")) == 2


def test_a_reboot_clears_only_when_the_kubelet_confirms_it(setup: Setup) -> None:
    setup.machine.xid(79, "GPU has fallen off the bus.")
    setup.machine.xid(64, "Row Remapper: Failed to remap", gpu=1)
    setup.wait_for("GPUMemoryDegraded", "True", "RowRemapFailure")
    setup.agent.stop()
    boot = setup.machine.reboot()
    setup.agent.start()
    assert setup.conditions()["GPULost"][0] == "True"
    setup.cluster.set_boot_id(setup.node, boot)
    setup.wait_for("GPULost", "False")
    assert setup.conditions()["GPUXidError"] == ("True", "Xid64")
    assert setup.conditions()["GPUMemoryDegraded"] == ("True", "RowRemapFailure")


def test_what_a_reset_cleared_is_counted_on_over_restart_and_reboot(setup: Setup) -> None:
    """Three times the same fault and the same reset: the third is not the first."""
    for _ in range(2):
        setup.machine.xid(94, "Contained: CE User Channel (0x9). RST: No, D-RST: No")
        setup.wait_for("GPUXidError", "True", "Xid94")
        setup.machine.xid(154, RESET_WANTED)
        setup.wait_for("GPURecoveryActionRequired", "True", "GPUReset")
        setup.machine.xid(154, RESET_DONE)
        setup.wait_for("GPUXidError", "False")
        assert faults(setup) == []
    setup.agent.kill()
    boot = setup.machine.reboot()
    setup.cluster.set_boot_id(setup.node, boot)
    setup.agent.start()
    assert setup.conditions() == WELL
    assert {one.code: len(one.times) for one in report(setup).past} == {94: 2, 154: 2}
    setup.machine.xid(94, "Contained: CE User Channel (0x9). RST: No, D-RST: No")
    setup.wait_for("GPUXidError", "True", "Xid94")
    assert [(fault.code, fault.count) for fault in faults(setup)] == [(94, 1)]
    facts = node(faults=report(setup).faults, past=report(setup).past)
    three = policy(when=[{"count": {"xid": [94], "atLeast": 3}}])
    four = policy(when=[{"count": {"xid": [94], "atLeast": 4}}])
    assert (match(three, facts, 0.0).holds, match(four, facts, 0.0).holds) == (True, False)


def test_a_node_that_comes_back_with_seven_of_eight_gpus_is_not_well(setup: Setup) -> None:
    setup.machine.xid(79, "GPU has fallen off the bus.")
    setup.wait_for("GPULost", "True", "FallenOffBus")
    setup.agent.stop()
    setup.machine.unplug(setup.machine.gpus[0])
    setup.cluster.set_boot_id(setup.node, setup.machine.reboot())
    setup.agent.start()
    assert setup.conditions()["GPULost"][0] == "True"
    assert setup.conditions()["GPUXidError"] == ("True", "Xid79")
    assert {(f.kind.value, f.subcode) for f in faults(setup)} == {("xid", ""), ("lost", "absent")}
    setup.machine.plug(setup.machine.gpus[0])
    setup.wait_for("GPULost", "False")
    assert setup.conditions() == WELL


def test_a_gpu_that_vanishes_without_an_xid_is_lost_and_found(setup: Setup) -> None:
    setup.machine.unplug(setup.machine.gpus[5])
    setup.wait_for("GPULost", "True", "CountMismatch")
    assert setup.agent.metrics()['gpu_devices_lost{class="gpu"}'] == 1
    setup.machine.plug(setup.machine.gpus[5])
    setup.wait_for("GPULost", "False")


def test_a_verified_reset_clears_what_a_reset_mends(setup: Setup) -> None:
    setup.machine.xid(95, "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No")
    action = "GPU recovery action changed from 0x{} ({}) to 0x{} ({})"
    setup.machine.xid(154, action.format(0, "None", 1, "GPU Reset Required"))
    setup.wait_for("GPURecoveryActionRequired", "True", "GPUReset")
    setup.machine.xid(154, action.format(1, "GPU Reset Required", 0, "None"))
    setup.wait_for("GPURecoveryActionRequired", "False")
    assert setup.conditions() == WELL


def test_an_operator_clears_by_annotation_and_not_for_the_future(setup: Setup) -> None:
    setup.machine.xid(64, "Row Remapper: Failed to remap")
    setup.wait_for("GPUMemoryDegraded", "True")
    setup.cluster.annotate(setup.node, {SET_HEALTHY_ANNOTATION: later(hours=1)})
    setup.cluster.wait_for(
        lambda: ("SetHealthyRefused", "Warning") in setup.events(), what="the refusal"
    )
    assert setup.conditions()["GPUMemoryDegraded"][0] == "True"
    setup.cluster.annotate(setup.node, {SET_HEALTHY_ANNOTATION: later(seconds=1)})
    setup.wait_for("GPUMemoryDegraded", "False")
    setup.agent.kill()
    setup.machine.state_file.unlink()  # the whole log of this boot is replayed
    setup.agent.start()
    setup.wait_for("GPUMemoryDegraded", "False")


def test_an_operator_clears_by_the_local_socket(setup: Setup) -> None:
    setup.machine.xid(64, "Row Remapper: Failed to remap")
    setup.wait_for("GPUMemoryDegraded", "True")
    future = setup.agent.set_healthy(later(hours=1))
    assert future.returncode == 1
    assert "in the future" in future.stderr
    early = setup.agent.set_healthy("2020-01-01T00:00:00Z")
    assert (early.returncode, early.stdout) == (0, "nothing to clear\n")
    assert setup.conditions()["GPUMemoryDegraded"][0] == "True"
    done = setup.agent.set_healthy()
    assert done.stdout.startswith("cleared: Xid 64 on ")
    setup.wait_for("GPUMemoryDegraded", "False")


def test_a_corrupt_state_file_is_made_good_from_the_annotation(setup: Setup) -> None:
    setup.machine.xid(64, "Row Remapper: Failed to remap")
    setup.wait_for("GPUMemoryDegraded", "True")
    setup.agent.stop()
    setup.machine.state_file.write_text("{broken")
    setup.cluster.set_boot_id(setup.node, setup.machine.reboot())
    setup.agent.start()
    assert setup.conditions()["GPUMemoryDegraded"] == ("True", "RowRemapFailure")
    assert setup.machine.state_file.with_name("node-agent.json.corrupt").exists()


def test_a_corrupt_state_file_without_an_annotation_leaves_nothing_called_fine(
    setup: Setup,
) -> None:
    setup.agent.stop()
    setup.machine.state_file.write_text("{broken")
    setup.cluster.annotate(setup.node, {FAULTS_ANNOTATION: None})
    setup.agent.start()
    assert {status for status, _ in setup.conditions().values()} == {"Unknown"}
    setup.agent.set_healthy()
    setup.wait_for("GPUXidError", "False")
    assert setup.conditions() == WELL


def test_conditions_that_someone_removed_come_back(setup: Setup) -> None:
    setup.machine.xid(119, "Timeout waiting for RPC from GSP!")
    setup.wait_for("GPUXidError", "True")
    gone = {"$patch": "delete", "type": "GPUXidError"}
    setup.cluster.patch_node_status(setup.node, {"status": {"conditions": [gone]}})
    setup.wait_for("GPUXidError", "True")


def test_without_any_source_but_pci_the_rest_is_not_written(
    cluster: Cluster, make_setup: MakeSetup
) -> None:
    setup = make_setup(
        cluster, kernel_log="kmsg", kmsg_path="/no/such/kmsg", socket="/proc/no/agent.sock"
    )
    setup.agent.start()
    assert setup.conditions() == {"GPULost": ("False", "NoFault")}

    def up() -> set[str]:
        found = setup.agent.metrics().items()
        return {k for k, v in found if k.startswith("gpu_agent_view_up") and v}

    wanted = {f'gpu_agent_view_up{{view="{view}"}}' for view in ("pci", "boot_id", "state_file")}
    # The state file is written a moment after the first check.
    setup.cluster.wait_for(lambda: up() == wanted, what=f"{wanted}; {up()}")
    said = [json.loads(line) for line in setup.agent.log_text.splitlines()]
    off = [each["view"] for each in said if each["event"].startswith("a view is off")]
    assert sorted(off) == ["kernel_log", "local_socket", "pod_resources"]


def test_a_log_that_appears_later_is_read(cluster: Cluster, make_setup: MakeSetup) -> None:
    setup = make_setup(cluster)
    setup.machine.kernel_log.unlink()
    setup.agent.start()
    assert "GPUXidError" not in setup.conditions()
    setup.machine.xid(79, "GPU has fallen off the bus.")
    setup.wait_for("GPUXidError", "True", "Xid79")


def test_sigterm_ends_it_well_and_the_last_word_is_written(setup: Setup) -> None:
    setup.machine.xid(119, "Timeout waiting for RPC from GSP!")
    setup.wait_for("GPUXidError", "True")
    setup.agent.signal(signal.SIGTERM)
    setup.cluster.wait_for(lambda: not setup.agent.process.running, what="its end")
    assert '"event": "stopping"' in setup.agent.log_text
    assert not setup.machine.socket.exists()
    assert "119" in setup.machine.state_file.read_text()


def test_the_api_server_away_and_back_nothing_is_lost(
    own_cluster: Cluster, make_setup: MakeSetup
) -> None:
    setup = make_setup(own_cluster, request_timeout="1s")
    setup.agent.start()
    own_cluster.plane.stop_apiserver()
    setup.machine.xid(119, "Timeout waiting for RPC from GSP!", gpu=1)
    setup.machine.xid(79, "GPU has fallen off the bus.", gpu=2)
    setup.cluster.wait_for(lambda: "cannot publish" in setup.agent.log_text, what="a failure")
    assert setup.agent.get("/healthz")[0] == 200
    own_cluster.plane.start_apiserver()
    setup.wait_for("GPULost", "True", "FallenOffBus")
    assert {fault.code for fault in faults(setup)} == {119, 79}


def test_an_agent_that_starts_without_an_api_server_waits_for_it(
    own_cluster: Cluster, make_setup: MakeSetup
) -> None:
    setup = make_setup(own_cluster, request_timeout="1s")
    own_cluster.plane.pause_apiserver()
    try:
        setup.agent.start(wait=False)
        setup.cluster.wait_for(lambda: "no answer within" in setup.agent.log_text, what="a try")
        assert setup.agent.get("/readyz") == (503, "nothing is published yet\n")
    finally:
        own_cluster.plane.resume_apiserver()
    setup.wait_for("GPUXidError", "False")


def test_outside_a_cluster_a_kubeconfig_is_enough(
    cluster: Cluster, make_setup: MakeSetup, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    setup = make_setup(cluster, kubeconfig=str(path))
    cluster.plane.kubeconfig(path, token=cluster.agent_token(setup.node))
    (setup.agent.account / "token").unlink()
    setup.agent.start()
    assert setup.conditions() == WELL


def test_a_token_without_rights_is_said_in_one_sentence(
    cluster: Cluster, make_setup: MakeSetup
) -> None:
    setup = make_setup(cluster)
    (setup.agent.account / "token").write_text(cluster.agent_token(None))
    setup.agent.start(wait=False)
    setup.cluster.wait_for(lambda: "cannot publish" in setup.agent.log_text, what="a refusal")
    assert "the verb `patch` on `nodes/status`" in setup.agent.log_text
    # The kubelet rotates the token: the new one is taken without a restart.
    (setup.agent.account / "token").write_text(cluster.agent_token(setup.node))
    setup.wait_for("GPUXidError", "False")
