"""What NVML's readings raise and end, and what they leave alone."""

from collections.abc import Mapping

import msgspec
import pytest

from node_agent.contract import ConditionType, Severity
from node_agent.health.fold import observe
from node_agent.health.levels import NODE_ROWS, LevelJudge, is_level
from node_agent.health.operator import set_healthy
from node_agent.health.rules import LEVEL_SUBCODES, Level, rule_for
from node_agent.health.signals import SIGNALS
from node_agent.health.state import NodeHealth
from node_agent.nvml.model import NvmlState, NvmlView
from node_agent.sources.pci_sysfs import Device as PciDevice
from node_agent.sources.pci_sysfs import DeviceClass
from tests.unit.agent.health.builders import CATALOGUE, GPU, OTHER_GPU, RESET_WANTED, xid
from tests.unit.agent.health.nvml_builders import (
    ON_PCI,
    OTHER_UUID,
    UUID,
    WELL,
    device,
    view,
)


class Node:
    """A state, and what NVML shows of it every five seconds."""

    def __init__(self, health: NodeHealth | None = None) -> None:
        self.health = health or NodeHealth(boot_id="boot-1")
        self.judge = LevelJudge(catalogue=CATALOGUE)
        self.now = 1000.0
        self.on_pci: tuple[PciDevice, ...] = ON_PCI
        self.others: Mapping[str, float] = WELL

    def reads(self, seconds: float = 0.0, **differs: float) -> set[str]:
        """The first GPU reads as a well one, but for this, for so many seconds."""
        end = self.now + seconds
        while True:
            self.now += 5.0
            self.shows(view(self.now, {**WELL, **differs}, others=self.others))
            if self.now >= end:
                return self.faults

    def lacks(self, *quantities: str) -> set[str]:
        self.now += 5.0
        values = {k: v for k, v in WELL.items() if k not in quantities}
        shown = view(self.now, values)
        errors = dict.fromkeys(quantities, "Unknown Error")
        first = msgspec.structs.replace(shown.readings[UUID], errors=errors)
        self.shows(msgspec.structs.replace(shown, readings={**shown.readings, UUID: first}))
        return self.faults

    def shows(self, shown: NvmlView) -> set[str]:
        self.health = self.judge.take(self.health, shown, on_pci=self.on_pci, now=self.now)
        return self.faults

    def logs(self, code: int, text: str = "") -> None:
        seen = [xid(code, self.now, text)]
        self.health = observe(self.health, seen, boot_id="boot-1")

    @property
    def faults(self) -> set[str]:
        return {f.subcode or str(f.code) for f in self.health.faults.values()}

    def restarts(self) -> None:
        """The agent, not the machine."""
        stored = msgspec.json.decode(msgspec.json.encode(self.health), type=NodeHealth)
        self.health, self.judge = stored, LevelJudge(catalogue=CATALOGUE)


@pytest.fixture
def node() -> Node:
    made = Node()
    assert made.reads() == set()
    return made


def test_a_well_gpu_raises_nothing_for_ever(node: Node) -> None:
    assert node.reads(1000) == set()


BAD = [
    # signal, what it reads, seconds until it counts, seconds until it is over
    (Level.REMAP_PENDING, {"remap_pending": 1}, 0, 10),
    (Level.REMAP_EXHAUSTED, {"remap_bank_none": 2}, 0, 10),
    (Level.SRAM_THRESHOLD, {"sram_threshold_exceeded": 1}, 0, 10),
    (Level.HW_THERMAL, {"clocks_event_reasons": 0x40}, 5, 60),
    (Level.HW_THERMAL, {"clocks_event_reasons": 0x08}, 5, 60),
    (Level.SW_THERMAL, {"clocks_event_reasons": 0x20}, 60, 60),
    (Level.POWER_BRAKE, {"clocks_event_reasons": 0x88}, 10, 60),
    (Level.OVER_LIMIT, {"gpu_temp_c": 90}, 5, 30),
    (Level.MEMORY_OVER_LIMIT, {"memory_temp_c": 95}, 5, 30),
    (Level.PCIE_LINK, {"pcie_width": 8}, 60, 30),
    (Level.PCIE_LINK, {"pcie_gen": 1}, 60, 30),
    (Level.NVLINK_DOWN, {"nvlink_up": 17}, 10, 30),
    (Level.FABRIC, {"fabric_state": 2}, 300, 30),
    (Level.FABRIC, {"fabric_status": 999}, 300, 30),
    (Level.FABRIC, {"fabric_health_mask": 0b01_10_01_10_10}, 300, 30),
    (Level.FABRIC, {"fabric_health_mask": 0b101_10_10_10_10}, 300, 30),
    (Level.PERSISTENCE_OFF, {"persistence_mode": 0}, 60, 0),
    (Level.INFOROM, {"inforom_valid": 0}, 0, 0),
    (Level.RECOVERY_ACTION, {"recovery_action": 1}, 0, 10),
]


@pytest.mark.parametrize(("level", "values", "hold", "release"), BAD)
def test_it_begins_after_its_time_and_ends_after_its_time(
    node: Node, level: Level, values: dict[str, float], hold: float, release: float
) -> None:
    if hold:
        assert node.reads(hold - 5, **values) == set()
    assert node.reads(hold, **values) == {level}
    assert node.reads(1000, **values) == {level}
    if release:
        assert node.reads(release - 5) == {level}
    node.reads(release)
    assert node.faults == set()


@pytest.mark.parametrize(("level", "values", "hold", "release"), BAD)
def test_a_value_that_is_gone_ends_nothing(
    node: Node, level: Level, values: dict[str, float], hold: float, release: float
) -> None:
    assert node.reads(hold + 5, **values) == {level}
    for _ in range(int(release / 5) + 10):
        assert node.lacks(*values) == {level}


@pytest.mark.parametrize(
    "values",
    [
        {"clocks_event_reasons": 0x88},
        {"clocks_event_reasons": 0x04},
        {"pcie_gen": 1, "gpu_util_pct": 0},
        {"ecc_sbe_vol": 9},
        {"pcie_replay": 20},
        {"nvlink_crc_flit_errors": 1000},
        {"fabric_state": 0},
        {"fabric_state": 1},
    ],
)
def test_what_is_normal_raises_no_condition(node: Node, values: dict[str, float]) -> None:
    node.reads(1000, **values)
    assert not node.health.has_serious_faults


def test_between_two_limits_what_was_said_stays(node: Node) -> None:
    assert node.reads(1000, gpu_temp_c=87) == set()
    assert node.reads(10, gpu_temp_c=91) == {Level.OVER_LIMIT}
    assert node.reads(1000, gpu_temp_c=87) == {Level.OVER_LIMIT}
    assert node.reads(35, gpu_temp_c=80) == set()


def test_the_margin_counts_where_a_device_has_one(node: Node) -> None:
    limits = {"tlimit_slowdown_c": -2.0}
    tight = (msgspec.structs.replace(device(), limits=limits),)
    for at in (5, 10, 15):
        node.shows(view(node.now + at, {"margin_temp_c": -2.0}, devices=tight))
    assert node.faults == {Level.OVER_LIMIT}


@pytest.mark.parametrize("quantity", ["remap_failure", "unrepairable_memory"])
def test_what_no_reset_mends_ends_with_another_board_or_an_operator(quantity: str) -> None:
    node = Node()
    node.reads(10, **{quantity: 1})
    (fault,) = node.health.faults.values()
    assert fault.severity is Severity.FATAL
    assert {r.type for r in fault.rule.raises} == {ConditionType.MEMORY_DEGRADED}
    node.reads(1000)
    assert len(node.health.faults) == 1
    kept = node.health
    assert not set_healthy(node.health, node.now, now=node.now).health.faults
    other = device("GPU-other", GPU)
    for _ in range(3):
        node.now += 5
        shown = view(node.now, devices=(device(OTHER_UUID, OTHER_GPU),))
        readings = {"GPU-other": msgspec.structs.replace(shown.readings[OTHER_UUID])}
        readings["GPU-other"] = msgspec.structs.replace(readings["GPU-other"], uuid="GPU-other")
        node.shows(msgspec.structs.replace(shown, devices=(other,), readings=readings))
    assert not node.health.faults
    assert kept.faults


# -- the recovery action ---------------------------------------------------------------------


def test_the_action_is_the_reason_and_may_change(node: Node) -> None:
    node.reads(recovery_action=1)
    (fault,) = node.health.faults.values()
    assert (fault.reason, fault.action, fault.severity) == ("GPUReset", "RESET_GPU", "fatal")
    node.reads(recovery_action=2)
    (fault,) = node.health.faults.values()
    assert (fault.reason, fault.action) == ("NodeReboot", "RESTART_BM")


def test_an_action_that_is_taken_back_is_a_reset_and_ends_what_a_reset_mends(node: Node) -> None:
    for code in (119, 79, 64):
        node.logs(code)
    node.reads(recovery_action=1)
    assert node.reads(10) == {"119", "79", "64", Level.RECOVERY_ACTION}
    assert node.reads(5) == {"79", "64"}
    assert {one.code for one in node.health.past.values()} == {119}, "counted on"


def test_a_level_that_was_none_all_along_proves_no_reset(node: Node) -> None:
    node.logs(119)
    assert node.reads(1000) == {"119"}


def test_the_level_ends_an_xid_154_that_the_log_never_took_back(node: Node) -> None:
    node.logs(119)
    node.logs(154, RESET_WANTED)
    assert node.reads(1000, recovery_action=1) == {"119", "154", Level.RECOVERY_ACTION}
    assert node.reads(15) == set()


def test_while_a_remap_is_pending_no_reset_has_been(node: Node) -> None:
    node.logs(119)
    node.reads(10, recovery_action=1)
    assert "119" in node.reads(100, remap_pending=1)
    assert node.reads(15) == set()


def test_a_fault_after_the_reset_stays(node: Node) -> None:
    node.reads(10, recovery_action=1)
    node.reads()
    node.now += 1
    node.logs(119)
    assert node.reads(100) == {"119"}


def test_a_remap_that_is_done_ends_the_xid_that_announced_it(node: Node) -> None:
    node.logs(63)
    node.reads(10, remap_pending=1)
    assert node.reads(15) == set()
    assert {one.code for one in node.health.past.values()} == {63}


# -- counters --------------------------------------------------------------------------------


def test_uncorrected_errors_that_no_xid_explains_are_a_fault(node: Node) -> None:
    assert node.reads(ecc_dbe_vol=1, ecc_dbe_agg=3) == set()
    assert node.reads(15, ecc_dbe_vol=1, ecc_dbe_agg=3) == {Level.ECC_UNCORRECTED}
    assert node.reads(1000, ecc_dbe_vol=1, ecc_dbe_agg=3) == {Level.ECC_UNCORRECTED}
    assert node.reads(15, ecc_dbe_agg=3) == set()  # the driver was loaded anew


@pytest.mark.parametrize("code", [48, 94, 95, 140])
@pytest.mark.parametrize("xid_first", [True, False])
def test_an_xid_that_explains_them_speaks_for_them(
    node: Node,
    code: int,
    xid_first: bool,  # noqa: FBT001
) -> None:
    if xid_first:
        node.logs(code)
    node.reads(ecc_dbe_vol=1, ecc_dbe_agg=3)
    if not xid_first:
        node.logs(code)
    assert node.reads(1000, ecc_dbe_vol=1, ecc_dbe_agg=3) == {str(code)}


def test_errors_that_came_while_no_agent_ran_count(node: Node) -> None:
    node.restarts()
    assert node.reads(20, ecc_dbe_agg=5) == {Level.ECC_UNCORRECTED}


def test_errors_of_before_the_first_look_do_not() -> None:
    assert Node().reads(100, ecc_dbe_vol=3, ecc_dbe_agg=9, pcie_replay=9999) == set()


def test_a_replay_does_not_bring_back_what_an_operator_cleared(node: Node) -> None:
    node.reads(20, ecc_dbe_vol=1, ecc_dbe_agg=3)
    answer = set_healthy(node.health, node.now + 1, now=node.now + 1)
    node.health = answer.health
    assert node.reads(100, ecc_dbe_vol=1, ecc_dbe_agg=3) == set()


@pytest.mark.parametrize(
    ("level", "values"),
    [
        (Level.PCIE_ERRORS, {"pcie_replay": 50}),
        (Level.PCIE_ERRORS, {"pcie_count_fatal_error": 2}),
        (Level.NVLINK_ERRORS, {"nvlink_replay_errors": 2}),
        (Level.NVLINK_ERRORS, {"nvlink_crc_flit_errors": 40_000}),
        (Level.NVLINK_ERRORS, {"nvlink5_recovery_failed": 2}),
        (Level.ECC_CORRECTED, {"ecc_sbe_vol": 10}),
    ],
)
def test_growth_is_a_fault_and_rest_ends_it(
    node: Node, level: Level, values: dict[str, float]
) -> None:
    assert node.reads(**values) == {level}
    assert node.reads(290, **values) == {level}
    assert node.reads(400, **values) == set()


def test_a_counter_that_fell_began_anew(node: Node) -> None:
    node.reads(pcie_replay=0)
    assert node.reads(pcie_replay=30) == set()
    assert node.reads(pcie_replay=60) == {Level.PCIE_ERRORS}


# -- links -----------------------------------------------------------------------------------


def test_links_that_were_never_up_are_no_fault() -> None:
    node = Node()
    node.others = {**WELL, "nvlink_up": 0.0}
    assert node.reads(100, nvlink_up=0) == set()


def test_a_link_that_is_down_from_the_first_day_shows_against_its_like() -> None:
    assert Node().reads(20, nvlink_up=17) == {Level.NVLINK_DOWN}


def test_a_link_that_was_up_before_a_reboot_is_still_expected(node: Node) -> None:
    node.restarts()
    node.others = {**WELL, "nvlink_up": 17.0}
    assert node.reads(20, nvlink_up=17) == {Level.NVLINK_DOWN}


def test_an_operator_who_calls_it_well_is_not_told_again(node: Node) -> None:
    node.others = {**WELL, "nvlink_up": 17.0}
    node.reads(20, nvlink_up=17)
    node.health = set_healthy(node.health, node.now + 1, now=node.now + 1).health
    assert node.reads(1000, nvlink_up=17) == set()


# -- the node --------------------------------------------------------------------------------


def test_a_gpu_that_nvml_lost_is_lost_and_comes_back(node: Node) -> None:
    for _ in range(3):
        node.now += 5
        node.shows(view(node.now, lost=(UUID,)))
    (fault,) = node.health.faults.values()
    assert (fault.pci, fault.gpu, fault.subcode) == (GPU, UUID, Level.NVML_LOST)
    assert {r.type for r in fault.rule.raises} == {ConditionType.LOST}
    assert node.reads(30) == {Level.NVML_LOST}
    assert node.reads(5) == set()


def test_a_gpu_that_was_given_to_another_driver_is_not_lost(node: Node) -> None:
    node.on_pci = (PciDevice(GPU, DeviceClass.GPU, answers=True, driver="vfio-pci"), ON_PCI[1])
    for _ in range(3):
        node.now += 5
        node.shows(view(node.now, lost=(UUID,)))
    assert node.faults == {Level.UNBOUND}
    assert not node.health.has_serious_faults


@pytest.mark.parametrize(
    ("state", "level", "hold"),
    [
        (NvmlState.HUNG, Level.NVML_TIMEOUT, 0),
        (NvmlState.DRIVER_NOT_LOADED, Level.DRIVER_NOT_LOADED, 60),
        (NvmlState.VERSION_MISMATCH, Level.VERSION_MISMATCH, 10),
    ],
)
def test_a_driver_that_does_not_answer(
    node: Node, state: NvmlState, level: Level, hold: float
) -> None:
    begun = node.now + 5
    while node.now < begun + hold:
        assert node.faults == set()
        node.now += 5
        node.shows(view(node.now, state=state, hung_call="nvmlDeviceGetTemperature 0"))
    assert node.faults == {level}
    if state is NvmlState.HUNG:
        (fault,) = node.health.faults.values()
        assert "nvmlDeviceGetTemperature 0" in fault.message
    node.now += 5
    node.shows(view(node.now, state=NvmlState.RESTARTING))
    assert node.faults == {level}
    assert node.reads(40) == set()


def test_no_driver_and_no_gpu_is_no_fault(node: Node) -> None:
    node.on_pci = ()
    for _ in range(20):
        node.now += 5
        assert node.shows(view(node.now, state=NvmlState.DRIVER_NOT_LOADED)) == set()


@pytest.mark.parametrize(
    "state",
    [
        NvmlState.NO_LIBRARY,
        NvmlState.NO_ACCESS,
        NvmlState.RELEASED,
        NvmlState.RESTARTING,
        NvmlState.STARTING,
    ],
)
def test_a_view_that_is_away_neither_raises_nor_ends(node: Node, state: NvmlState) -> None:
    node.reads(100, gpu_temp_c=95)
    for _ in range(20):
        node.now += 5
        assert node.shows(view(node.now, state=state)) == {Level.OVER_LIMIT}


def test_a_reading_that_is_not_renewed_ages_no_signal(node: Node) -> None:
    node.reads(gpu_temp_c=95)
    stale = view(node.now, {**WELL, "gpu_temp_c": 95.0})
    for _ in range(20):
        node.now += 5
        assert node.shows(stale) == set()


def test_an_unchanged_node_is_the_same_object(node: Node) -> None:
    before = node.health
    node.reads(20)
    assert node.health is before


def test_every_level_has_its_rule_and_its_row() -> None:
    rows = [(row.level, row.kind, row.severity) for row in SIGNALS]
    rows += [(row.level, row.kind, row.severity) for row in NODE_ROWS]
    assert {str(level) for level, *_ in rows} == LEVEL_SUBCODES
    for level, kind, severity in rows:
        rule = rule_for(kind=kind, code=None, subcode=level, severity=severity)
        assert level in rule.subcodes
        assert bool(rule.raises) == (severity is not Severity.INFO)


def test_levels_are_told_from_other_faults(node: Node) -> None:
    node.logs(79)
    node.reads(100, gpu_temp_c=95)
    found = {f.subcode: is_level(f) for f in node.health.faults.values()}
    assert found == {"": False, Level.OVER_LIMIT: True}
