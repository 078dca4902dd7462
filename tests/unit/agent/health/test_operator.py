"""An operator's word clears what is older than it, once, and never the future."""

import pytest

from node_agent.health.fold import missing_devices, observe, scanned
from node_agent.health.operator import TimeError, parse_time, set_healthy
from node_agent.health.state import NodeHealth
from node_agent.sources.pci_sysfs import Device, DeviceClass
from tests.unit.agent.health.builders import GPU, OTHER_GPU, xid


def test_only_faults_older_than_the_time_are_cleared() -> None:
    health = observe(NodeHealth(), [xid(64, 10.0), xid(79, 30.0)], boot_id="b")
    answer = set_healthy(health, 20.0, now=40.0)
    assert [f.code for f in answer.cleared] == [64]
    assert [f.code for f in answer.health.faults.values()] == [79]


def test_a_time_in_the_future_is_refused_and_changes_nothing() -> None:
    health = observe(NodeHealth(), [xid(79, 10.0)], boot_id="b")
    answer = set_healthy(health, 100.0, now=40.0)
    assert answer.refusal == "the time lies 60 s in the future"
    assert answer.health is health


def test_a_replay_does_not_bring_a_cleared_fault_back() -> None:
    line = xid(79, 10.0)
    health = set_healthy(observe(NodeHealth(), [line], boot_id="b"), 20.0, now=20.0).health
    assert observe(health, [line], boot_id="b").faults == {}
    assert observe(health, [xid(79, 21.0)], boot_id="b").faults != {}


def test_the_same_word_twice_changes_nothing_the_second_time() -> None:
    first = set_healthy(NodeHealth(), 20.0, now=20.0).health
    assert set_healthy(first, 20.0, now=25.0).health is first


def test_a_device_that_was_taken_out_is_no_longer_expected() -> None:
    both = [Device(pci, DeviceClass.GPU, answers=True) for pci in (GPU, OTHER_GPU)]
    health = scanned(NodeHealth(), both, expected_gpus=0, now=1.0)
    health = scanned(health, both[:1], expected_gpus=0, now=2.0)
    health = set_healthy(health, 3.0, now=3.0).health
    assert not missing_devices(scanned(health, both[:1], expected_gpus=0, now=4.0))


def test_a_word_ends_the_doubt_after_a_lost_state_file() -> None:
    assert not set_healthy(NodeHealth(forgotten=True), 1.0, now=2.0).health.forgotten


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00"])
def test_times_are_read_with_their_zone(text: str) -> None:
    assert parse_time(text) == 1769860800.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("yesterday", "is not an RFC 3339 time"),
        ("2026-01-31T12:00:00", "has no time zone"),
        ("", "is not an RFC 3339 time"),
    ],
)
def test_other_texts_are_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(TimeError, match=says):
        parse_time(text)
