"""What evidence does to the state: what opens a fault, what ends it, and what does not."""

import msgspec
import pytest

from node_agent.contract import Severity, Truncated, decode_report, encode_report
from node_agent.health.faults import Seen
from node_agent.health.fold import (
    Evidence,
    identify,
    missing_devices,
    next_look,
    observe,
    restore,
    scanned,
    settle,
)
from node_agent.health.rules import ABSENT, NO_ANSWER, TOO_FEW
from node_agent.health.state import MAX_FAULTS, NodeHealth
from node_agent.sources.pci_sysfs import Device, DeviceClass
from node_agent.xid.episodes import FaultKey
from tests.unit.agent.health.builders import (
    GPU,
    OTHER_GPU,
    RESET_DONE,
    RESET_WANTED,
    SWITCH,
    sxid,
    xid,
    xid_report,
)


HOUR = 3600.0
WELL = Evidence("boot-2", "boot-2", replayed=True, all_present=True)


def seen(*lines: Seen, boot_id: str = "boot-1") -> NodeHealth:
    return observe(NodeHealth(boot_id=boot_id), lines, boot_id=boot_id)


def codes(health: NodeHealth) -> list[int | None]:
    return sorted((fault.code for fault in health.faults.values()), key=lambda c: c or 0)


def devices(*pcis: str, silent: str = "") -> list[Device]:
    return [Device(pci, DeviceClass.GPU, pci != silent) for pci in pcis]


def test_lines_of_one_fault_are_one_fault_with_its_counts() -> None:
    health = seen(
        xid(119, 100.0, lines=3),
        xid(119, 105.0, lines=1000, new=False),
        xid(119, 900.0, lines=2),
    )
    (fault,) = health.faults.values()
    assert (fault.count, fault.lines, fault.times) == (2, 1005, (100.0, 900.0))
    assert (fault.first_seen, fault.last_seen) == (100.0, 900.0)


def test_lines_right_after_a_restart_belong_to_the_episode_that_was_running() -> None:
    before = seen(xid(119, 100.0))
    after = observe(before, [xid(119, 110.0)], boot_id="boot-1")
    assert [f.count for f in after.faults.values()] == [1]


def test_the_same_code_on_two_gpus_is_two_faults() -> None:
    health = seen(xid(48, 1.0), xid(48, 1.0, pci=OTHER_GPU))
    assert {f.pci for f in health.faults.values()} == {GPU, OTHER_GPU}


def test_text_beside_an_xid_79_is_counted_with_it() -> None:
    text = msgspec.structs.replace(xid(48, 2.0), key=FaultKey.of(xid_report(79)))
    health = seen(xid(79, 1.0), text)
    assert codes(health) == [79]


def test_a_reboot_clears_what_was_not_seen_again() -> None:
    health = seen(xid(79, 1.0), xid(48, 1.0, pci=OTHER_GPU))
    health = observe(health, [xid(48, 50.0, pci=OTHER_GPU)], boot_id="boot-2")
    assert codes(settle(health, WELL, now=60.0, info_age=HOUR)) == [48]


@pytest.mark.parametrize(
    "evidence",
    [
        pytest.param(WELL._replace(kubelet_boot_id="boot-1"), id="kubelet-still-of-the-old-boot"),
        pytest.param(WELL._replace(kubelet_boot_id=""), id="kubelet-unknown"),
        pytest.param(WELL._replace(replayed=False), id="log-not-read-to-its-end"),
        pytest.param(WELL._replace(all_present=False), id="a-device-is-missing"),
        pytest.param(WELL._replace(all_present=None), id="devices-cannot-be-checked"),
        pytest.param(WELL._replace(boot_id="", kubelet_boot_id=""), id="boot-unknown"),
        pytest.param(WELL._replace(boot_id="boot-1", kubelet_boot_id="boot-1"), id="same-boot"),
    ],
)
def test_without_full_evidence_of_a_reboot_nothing_clears(evidence: Evidence) -> None:
    health = seen(xid(79, 1.0))
    assert settle(health, evidence, now=60.0, info_age=HOUR) is health


def test_a_row_remap_failure_outlives_a_reboot_and_a_reset() -> None:
    health = seen(xid(64, 1.0), xid(63, 1.0), xid(154, 2.0, RESET_WANTED))
    health = observe(health, [xid(154, 3.0, RESET_DONE)], boot_id="boot-1")
    assert codes(settle(health, WELL, now=60.0, info_age=HOUR)) == [64]


def test_a_verified_reset_clears_what_a_reset_mends_on_that_gpu_only() -> None:
    health = seen(
        xid(95, 1.0),
        xid(79, 1.0),
        xid(154, 1.5, RESET_WANTED),
        xid(95, 1.0, pci=OTHER_GPU),
        xid(154, 2.0, RESET_DONE),
    )
    assert {(f.pci, f.code) for f in health.faults.values()} == {(GPU, 79), (OTHER_GPU, 95)}


@pytest.mark.parametrize("action", ["0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)"])
def test_any_action_is_over_when_the_driver_takes_it_back(action: str) -> None:
    text = "GPU recovery action changed from {} to {}"
    asked = xid(154, 1.0, text.format("0x0 (None)", action))
    taken_back = xid(154, 2.0, text.format(action, "0x0 (None)"))
    assert codes(seen(asked)) == [154]
    assert codes(seen(asked, taken_back)) == []


def test_an_unreadable_recovery_action_is_not_none() -> None:
    health = seen(xid(95, 1.0), xid(154, 2.0, "GPU recovery action changed to something new"))
    assert codes(health) == [95, 154]


def test_a_fault_after_the_reset_stays() -> None:
    health = seen(xid(154, 1.0, RESET_DONE), xid(95, 2.0))
    assert codes(health) == [95]


def test_the_latest_recovery_action_is_the_one_that_counts() -> None:
    later = "GPU recovery action changed from 0x1 (x) to 0x2 (Node Reboot Required)"
    (fault,) = seen(xid(154, 1.0, RESET_WANTED), xid(154, 2.0, later)).faults.values()
    assert (fault.reason, fault.action) == ("NodeReboot", "RESTART_BM")


def test_information_is_forgotten_after_its_age_and_not_before() -> None:
    health = seen(xid(31, 100.0), xid(79, 100.0))
    assert next_look(health, info_age=HOUR) == 100.0 + HOUR
    nothing = Evidence("boot-1", "", replayed=False, all_present=None)
    assert settle(health, nothing, now=99.0 + HOUR, info_age=HOUR) is health
    assert codes(settle(health, nothing, now=100.0 + HOUR, info_age=HOUR)) == [79]


def test_a_device_that_is_gone_is_lost_and_found_again() -> None:
    health = scanned(NodeHealth(), devices(GPU, OTHER_GPU), expected_gpus=0, now=1.0)
    assert missing_devices(health) == []
    health = scanned(health, devices(GPU), expected_gpus=0, now=2.0)
    assert [(f.pci, f.subcode) for f in missing_devices(health)] == [(OTHER_GPU, ABSENT)]
    again = scanned(health, devices(GPU), expected_gpus=0, now=9.0)
    assert again is health  # the same trouble is not a new fault
    health = scanned(health, devices(GPU, OTHER_GPU), expected_gpus=0, now=10.0)
    assert missing_devices(health) == []


def test_a_device_that_reads_as_ones_does_not_answer() -> None:
    health = scanned(NodeHealth(), devices(GPU, silent=GPU), expected_gpus=0, now=1.0)
    assert [f.subcode for f in missing_devices(health)] == [NO_ANSWER]


def test_fewer_gpus_than_the_setting_says_is_a_fault_from_the_first_day() -> None:
    health = scanned(NodeHealth(), devices(GPU), expected_gpus=2, now=1.0)
    assert [f.subcode for f in missing_devices(health)] == [TOO_FEW]
    assert not missing_devices(scanned(health, devices(GPU), expected_gpus=1, now=1.0))


def test_a_storm_of_distinct_faults_keeps_the_worst_and_is_bounded() -> None:
    many = [xid(13, float(n), f"word {n}", pci=GPU) for n in range(3)]
    wide = [xid(1000 + n, float(n)) for n in range(3 * MAX_FAULTS)]
    health = seen(xid(79, 0.0), *many, *wide)
    assert len(health.faults) == MAX_FAULTS
    assert 79 in codes(health)
    assert not health.of_severity(Severity.INFO)


def test_what_was_too_much_is_said_until_the_device_is_well() -> None:
    wide = [xid(1000 + n, float(n)) for n in range(MAX_FAULTS + 3)]
    health = seen(*wide)
    assert health.truncated == Truncated(warning=3)
    report = decode_report(
        encode_report(
            tuple(f.published() for f in health.worst_first()),
            boot_id="b",
            left_out=health.truncated,
        )
    )
    assert report.truncated is not None
    assert report.truncated.warning >= 3
    assert health.with_faults({}).truncated == Truncated()


def test_a_fatal_fault_is_never_one_too_many() -> None:
    health = seen(xid(79, 1.0))
    (fault,) = health.faults.values()
    many = [msgspec.structs.replace(fault, subcode=str(n)) for n in range(2 * MAX_FAULTS)]
    assert len(health.with_faults({f.key: f for f in many}).faults) == 2 * MAX_FAULTS


def test_switch_faults_are_of_the_switch() -> None:
    (fault,) = seen(sxid(20034, 1.0)).faults.values()
    assert (fault.pci, fault.kind, fault.severity) == (SWITCH, "sxid", Severity.FATAL)


def test_a_uuid_that_the_log_names_later_is_added_to_open_faults() -> None:
    health = identify(seen(xid(79, 1.0)), [(GPU, "GPU-1")])
    assert [f.gpu for f in health.faults.values()] == ["GPU-1"]
    assert identify(health, [(GPU, "GPU-1")]) is health


@pytest.mark.parametrize("named_first", [True, False])
def test_an_application_error_hits_the_pod_of_its_process_alone(*, named_first: bool) -> None:
    everyone, owner = ("ml/a", "ml/b"), ("ml/b",)
    unnamed = msgspec.structs.replace(xid(13, 0.0, "Graphics Exception: ESR"), pods=everyone)
    named = msgspec.structs.replace(xid(13, 0.0, "pid=7, name=train, Graphics"), pods=owner)
    first, second = (named, unnamed) if named_first else (unnamed, named)
    later = msgspec.structs.replace(second, new_episode=False)
    (fault,) = seen(first, later).faults.values()
    assert fault.pods == owner
    (fault,) = seen(first, later, unnamed).faults.values()
    assert set(fault.pods) == set(everyone), "another episode, of nobody knows whom"


def test_a_lost_state_comes_back_from_the_annotation() -> None:
    before = seen(xid(79, 1.0), xid(154, 1.0, RESET_WANTED), xid(64, 1.0))
    annotation = encode_report(
        tuple(f.published() for f in before.faults.values()), boot_id="boot-1"
    )
    forgotten = NodeHealth(boot_id="boot-2", forgotten=True)
    after = restore(forgotten, decode_report(annotation))
    assert codes(after) == [64, 79, 154]
    assert not after.forgotten
    assert [f.reason for f in after.faults.values() if f.code == 154] == ["GPUReset"]


def test_what_the_replay_found_wins_over_the_annotation() -> None:
    annotation = encode_report(
        (*(f.published() for f in seen(xid(79, 1.0)).faults.values()),), boot_id=""
    )
    replayed = seen(xid(79, 1.0), xid(79, 100.0))
    assert restore(replayed, decode_report(annotation)).faults == replayed.faults
