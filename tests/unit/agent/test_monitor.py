"""The order of evidence: nothing is said before the first full check is over."""

from collections.abc import Callable

import msgspec
import pytest
import structlog

from node_agent.contract import FAULTS_ANNOTATION, SET_HEALTHY_ANNOTATION, encode_report
from node_agent.health.conditions import View, ViewState
from node_agent.health.merge import WAIT_SECONDS
from node_agent.health.state import NodeHealth
from node_agent.health.store import Loaded
from node_agent.monitor import NOT_YET, Monitor
from node_agent.nvml.model import NvmlEvent, NvmlState, NvmlView
from node_agent.publish.node_api import NodeView
from node_agent.sources.kernel_log import Batch, Sighting, SourceState
from node_agent.sources.pci_sysfs import Device, DeviceClass
from node_agent.xid.parse import XidReport
from tests.unit.agent.health.builders import CATALOGUE, GPU, xid_report
from tests.unit.agent.health.nvml_builders import ON_PCI, UUID, view


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
    def make(
        loaded: Loaded | None = None,
        pods_of: Callable[[XidReport], tuple[str, ...]] = lambda _: (),
        wall: Callable[[], float] = lambda: NOW,
    ) -> Monitor:
        monitor = Monitor(
            loaded=loaded or Loaded(NodeHealth()),
            boot_id="boot-1",
            expected_gpus=0,
            info_age=3600.0,
            catalogue=CATALOGUE,
            pods_of=pods_of,
            wall=wall,
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


def test_a_clock_a_little_fast_clears_nothing_that_comes_after(
    make: Callable[..., Monitor],
) -> None:
    now = NOW
    monitor = make(wall=lambda: now)
    monitor.take_log_state(WORKS)
    monitor.take_batch(batch(79, at=NOW - 1))
    fast = node(healthy="1970-01-01T02:46:44Z")  # NOW + 4
    monitor.take_node(fast)
    assert codes(monitor) == []
    monitor.take_batch(batch(48, at=NOW + 2))
    assert codes(monitor) == [48]
    now = NOW + 60
    monitor.take_node(fast)
    assert codes(monitor) == [48]


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


# -- NVML --------------------------------------------------------------------------------------


def ready(monitor: Monitor) -> Monitor:
    monitor.take_log_state(WORKS)
    monitor.take_batch(NOTHING)
    monitor.take_scan(ON_PCI)
    return monitor


def test_the_first_check_waits_for_nvml(make: Callable[..., Monitor]) -> None:
    monitor = make()
    monitor.views[View.NVML] = ViewState(up=False, reason=NOT_YET)
    ready(monitor)
    assert not monitor.checked
    monitor.take_nvml(NvmlView(state=NvmlState.STARTING))
    assert not monitor.checked
    monitor.take_nvml(view(NOW))
    assert monitor.checked


@pytest.mark.parametrize("state", [NvmlState.NO_LIBRARY, NvmlState.NO_ACCESS])
def test_nvml_that_was_never_there_is_absent_and_one_that_went_is_away(
    make: Callable[..., Monitor], state: NvmlState
) -> None:
    monitor = ready(make())
    monitor.take_nvml(NvmlView(state=state, why="because"))
    assert monitor.views[View.NVML] == ViewState(up=False, reason=f"{state}: because", absent=True)
    monitor.take_nvml(view(NOW))
    assert monitor.views[View.NVML].up
    monitor.take_nvml(NvmlView(state=state, why="because"))
    assert not monitor.views[View.NVML].absent


def test_a_child_that_is_replaced_in_a_moment_makes_no_noise(make: Callable[..., Monitor]) -> None:
    monitor = ready(make())
    monitor.take_nvml(view(NOW))
    monitor.take_nvml(view(NOW - 1, state=NvmlState.RESTARTING))
    assert monitor.views[View.NVML].up
    monitor.take_nvml(view(NOW - 60, state=NvmlState.RESTARTING))
    assert not monitor.views[View.NVML].up


def test_a_reboot_proves_nothing_while_nvml_is_away_or_has_lost_a_gpu(
    make: Callable[..., Monitor],
) -> None:
    monitor = make()
    monitor.take_batch(batch(79))
    monitor.take_nvml(view(NOW))
    rebooted = make(Loaded(msgspec.structs.replace(monitor.health, boot_id="boot-0")))
    old = {
        k: msgspec.structs.replace(f, boot_id="boot-0") for k, f in monitor.health.faults.items()
    }
    rebooted.health = msgspec.structs.replace(rebooted.health, faults=old)
    ready(rebooted)
    rebooted.take_nvml(view(NOW, state=NvmlState.HUNG))
    rebooted.take_node(node())
    assert 79 in codes(rebooted)
    rebooted.take_nvml(view(NOW))
    assert 79 not in codes(rebooted)


def event(code: int, **ids: int) -> NvmlEvent:
    return NvmlEvent(at=NOW, uuid=UUID, bits=0x8, data=code, **ids)


def test_an_event_of_nvml_opens_the_fault_at_once(make: Callable[..., Monitor]) -> None:
    monitor = ready(make())
    monitor.take_nvml(view(NOW))
    monitor.take_nvml_event(event(48))
    (fault,) = monitor.health.faults.values()
    assert (fault.code, fault.pci, fault.gpu, fault.sources) == (48, GPU, UUID, ("nvml",))
    monitor.take_batch(batch(48, at=NOW))
    (fault,) = monitor.health.faults.values()
    assert (fault.count, fault.lines, fault.sources) == (1, 1, ("nvml", "kernel-log"))


def test_events_that_are_no_xid_or_of_no_gpu_open_nothing(make: Callable[..., Monitor]) -> None:
    monitor = ready(make())
    monitor.take_nvml(view(NOW))
    monitor.take_nvml_event(NvmlEvent(at=NOW, uuid=UUID, bits=0x1, data=48))
    monitor.take_nvml_event(NvmlEvent(at=NOW, uuid="GPU-unknown", bits=0x8, data=48))
    monitor.take_nvml_event(event(0))
    monitor.take_nvml_event(event(154))  # the level is read, with the action
    assert not monitor.health.faults


def test_an_event_whose_text_decides_waits_for_the_log(make: Callable[..., Monitor]) -> None:
    monitor = ready(make())
    monitor.take_nvml(view(NOW))
    monitor.take_nvml_event(event(145))
    assert not monitor.health.faults
    assert monitor.next_look == NOW + WAIT_SECONDS
    monitor.take_log_state(SourceState("file", working=False, reason="gone"))
    monitor.look()
    assert codes(monitor) == [145]


def test_a_live_fault_is_told_its_pods_and_history_is_not(make: Callable[..., Monitor]) -> None:
    monitor = ready(make(pods_of=lambda report: (f"ml/of-{report.pid}",)))
    monitor.take_batch(batch(48, at=NOW - 1000))
    monitor.take_batch(batch(79, at=NOW - 1))
    assert {f.code: f.pods for f in monitor.health.faults.values()} == {48: (), 79: ("ml/of-None",)}


def test_after_an_operators_word_the_next_fault_is_counted_once(
    make: Callable[..., Monitor],
) -> None:
    monitor = make()
    monitor.take_log_state(WORKS)
    monitor.take_scan(DEVICES)

    def fault(pid: int, at: float) -> None:
        # As the driver prints an Xid 13: first without the process, then with it.
        for text in ("Graphics SM Warp Exception", f"pid={pid}, name=train, Graphics Exception"):
            one = Sighting(xid_report(13, text), 1, at, at, at, at)
            monitor.take_batch(Batch((one,), (), None, caught_up=True))

    fault(7, NOW - 10)
    monitor.set_healthy(NOW - 5)
    fault(8, NOW - 1)
    (open_fault,) = monitor.health.faults.values()
    assert (open_fault.count, open_fault.lines, open_fault.pid) == (1, 2, 8)
    (total,) = monitor.health.totals.values()
    assert (total.episodes, total.lines) == (2, 4)


@pytest.mark.parametrize(
    ("state", "reason", "hold"),
    [
        (NvmlState.VERSION_MISMATCH, "VersionMismatch", 10.0),
        (NvmlState.DRIVER_NOT_LOADED, "DriverNotLoaded", 60.0),
    ],
)
def test_a_driver_that_stays_away_is_a_fault_though_nobody_says_so_again(
    make: Callable[..., Monitor], state: NvmlState, reason: str, hold: float
) -> None:
    now = NOW
    monitor = make(wall=lambda: now)
    monitor.take_log_state(WORKS)
    monitor.take_scan(DEVICES)
    monitor.take_nvml(view(now))
    monitor.take_nvml(msgspec.structs.replace(view(now), state=state, why="x"))
    assert monitor.next_look == NOW + hold
    now = NOW + hold
    monitor.look()
    (fault,) = monitor.health.faults.values()
    assert [r.reason for r in fault.rule.raises] == [reason]
    assert [monitor.next_look] == [None]
    monitor.take_nvml(view(now))
    assert monitor.next_look == now + 10.0
    now += 10.0
    monitor.look()
    assert not monitor.health.faults
    assert [monitor.next_look] == [None]
