"""The order of evidence: nothing is said before the first full check is over."""

from collections.abc import Callable

import pytest
import structlog

from node_agent.contract import FAULTS_ANNOTATION, SET_HEALTHY_ANNOTATION, encode_report
from node_agent.health.conditions import View
from node_agent.health.state import NodeHealth
from node_agent.health.store import Loaded
from node_agent.monitor import Monitor
from node_agent.nvml.model import NvmlState, NvmlView
from node_agent.publish.node_api import NodeView
from node_agent.sources.kernel_log import Batch, Sighting, SourceState
from node_agent.sources.pci_sysfs import Device, DeviceClass
from tests.unit.agent.health.builders import CATALOGUE, GPU, xid_report


NOW = 10_000.0
DEVICES = (Device(GPU, DeviceClass.GPU, answers=True),)
NO_LIBRARY = NvmlView(state=NvmlState.NO_LIBRARY)
NOTHING = Batch((), (), None, caught_up=True)
WORKS = SourceState("file", working=True)


class Said(list[tuple[str, str, str]]):
    def __call__(self, kind: str, reason: str, message: str) -> None:
        self.append((kind, reason, message))


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def make(said: Said) -> Callable[..., Monitor]:
    def make(loaded: Loaded | None = None) -> Monitor:
        monitor = Monitor(
            loaded=loaded or Loaded(NodeHealth()),
            boot_id="boot-1",
            expected_gpus=0,
            info_age=3600.0,
            catalogue=CATALOGUE,
            wall=lambda: NOW,
            changed=lambda: None,
            say=said,
            log=structlog.wrap_logger(structlog.ReturnLogger(), processors=[]),
        )
        monitor.take_nvml(NO_LIBRARY)
        return monitor

    return make


def batch(*codes: int, at: float = NOW - 10, caught_up: bool = True) -> Batch:
    sightings = (Sighting(xid_report(code), 1, 5.0, 5.0, at, at) for code in codes)
    return Batch(tuple(sightings), (), None, caught_up=caught_up)


def node(boot_id: str = "boot-1", **annotations: str) -> NodeView:
    names = {"faults": FAULTS_ANNOTATION, "healthy": SET_HEALTHY_ANNOTATION}
    texts = {names[key]: text for key, text in annotations.items()}
    return NodeView(uid="uid", boot_id=boot_id, annotations=texts, conditions={})


def codes(monitor: Monitor) -> list[int]:
    return sorted(fault.code or 0 for fault in monitor.health.faults.values())


def test_half_a_replay_is_no_full_check(make: Callable[..., Monitor]) -> None:
    monitor = make()
    monitor.take_log_state(WORKS)
    monitor.take_scan(DEVICES)
    monitor.take_batch(batch(79, caught_up=False))
    assert not monitor.checked
    monitor.take_batch(NOTHING)
    assert monitor.checked


def test_a_log_that_cannot_be_read_does_not_hold_up_the_check(make: Callable[..., Monitor]) -> None:
    monitor = make()
    monitor.take_log_state(SourceState("kmsg", working=False, reason="no permission"))
    monitor.take_scan_failure("no sysfs")
    assert monitor.checked
    assert monitor.views[View.KERNEL_LOG].reason == "kmsg: no permission"


@pytest.mark.parametrize("node_first", [True, False])
def test_a_lost_state_comes_back_whichever_is_known_first(
    make: Callable[..., Monitor],
    node_first: bool,  # noqa: FBT001
) -> None:
    before = make()
    before.take_batch(batch(64))
    text = encode_report(
        tuple(f.published() for f in before.health.faults.values()), boot_id="boot-0"
    )
    monitor = make(Loaded(NodeHealth(forgotten=True), fresh=True, lost=True))
    monitor.take_log_state(WORKS)
    monitor.take_scan(DEVICES)
    if node_first:
        monitor.take_node(node(faults=text))
    monitor.take_batch(batch(79))
    monitor.take_node(node(faults=text))
    assert codes(monitor) == [64, 79]
    assert not monitor.health.forgotten


def test_a_refused_time_stays_refused_and_is_said_once(
    make: Callable[..., Monitor], said: Said
) -> None:
    monitor = make()
    monitor.take_log_state(WORKS)
    monitor.take_batch(batch(79))
    for _ in range(3):
        monitor.take_node(node(healthy="2030-01-01T00:00:00Z"))
    monitor.take_node(node(healthy="soon"))
    assert [reason for _, reason, _ in said] == ["SetHealthyRefused"] * 2
    assert codes(monitor) == [79]
    monitor.take_node(node(healthy="1970-01-01T02:46:40Z"))  # NOW
    assert codes(monitor) == []


def test_a_well_node_need_not_be_read(make: Callable[..., Monitor]) -> None:
    monitor = make()
    monitor.take_log_state(WORKS)
    monitor.take_batch(NOTHING)
    assert not monitor.wants_node
    monitor.take_batch(batch(31))
    monitor.take_node(node())
    assert not monitor.wants_node  # information needs no operator
    monitor.take_batch(batch(79))
    assert monitor.wants_node


def test_an_episode_is_counted_once_over_batches(make: Callable[..., Monitor]) -> None:
    monitor = make()
    for _ in range(3):
        monitor.take_batch(batch(119))
    assert [(f.count, f.lines) for f in monitor.health.faults.values()] == [(1, 3)]
