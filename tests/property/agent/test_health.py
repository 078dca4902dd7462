"""Whatever the order of evidence: no fault vanishes without cause, none haunts, counts grow."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from node_agent.contract import MAX_TIMES, ConditionStatus, Severity, decode_report
from node_agent.health.conditions import View, ViewState, desired
from node_agent.health.faults import Seen
from node_agent.health.fold import Evidence, missing_devices, observe, scanned, settle
from node_agent.health.operator import set_healthy
from node_agent.health.past import MAX_PAST
from node_agent.health.state import MAX_FAULTS, NodeHealth
from node_agent.sources.pci_sysfs import Device, DeviceClass
from tests.unit.agent.health.builders import GPU, OTHER_GPU, RESET_DONE, RESET_WANTED, xid


HOUR = 3600.0
CODES = st.sampled_from([13, 31, 43, 48, 63, 64, 74, 79, 95, 109, 119, 140, 154, 777])
PCIS = st.sampled_from([GPU, OTHER_GPU])
VIEWS = dict.fromkeys(View, ViewState(up=True))


def line(code: int, at: float, pci: str, lines: int = 1) -> Seen:
    return xid(code, at, RESET_WANTED if code == 154 else "", pci=pci, lines=lines)


class AnyHistory(RuleBasedStateMachine):
    """Lines, scans, reboots, restarts of the agent and operators, in any order."""

    @initialize()
    def begin(self) -> None:
        self.now = 1000.0
        self.boots = 1
        self.kubelet = "boot-1"
        self.on_pci = {GPU, OTHER_GPU}
        self.health = NodeHealth(boot_id="boot-1")
        self.episodes: dict[str, int] = {}
        self.log: list[Seen] = []
        self.scan()

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    @rule(code=CODES, pci=PCIS, lines=st.integers(1, 100_000), wait=st.floats(0, 100))
    def a_fault_is_logged(self, code: int, pci: str, lines: int, wait: float) -> None:
        self.now += wait
        seen = line(code, self.now, pci, lines)
        self.log.append(seen)
        self.health = observe(self.health, [seen], boot_id=self.boot_id)
        assert any(f.code == code and f.pci == pci for f in self.health.faults.values())

    @rule(pci=PCIS, wait=st.floats(0.1, 100))
    def the_driver_asks_for_nothing_more(self, pci: str, wait: float) -> None:
        self.now += wait
        seen = xid(154, self.now, RESET_DONE, pci=pci)
        self.log.append(seen)
        self.health = observe(self.health, [seen], boot_id=self.boot_id)

    @rule()
    def the_log_of_this_boot_is_replayed_after_an_operator(self) -> None:
        self.now += 1.0
        answer = set_healthy(self.health, self.now, now=self.now)
        assert not answer.refusal
        self.health = observe(answer.health, self.log, boot_id=self.boot_id)
        assert all(f.pci == "" or f.kind == "lost" for f in self.health.faults.values())
        assert not self.health.past

    @rule(wait=st.floats(0, 2 * HOUR))
    def time_passes(self, wait: float) -> None:
        self.now += wait
        serious = {k for k, f in self.health.faults.items() if f.severity is not Severity.INFO}
        self.settle()
        assert serious <= self.health.faults.keys() or self.boot_id == self.kubelet

    @rule(back=st.booleans())
    def the_node_reboots(self, back: bool) -> None:  # noqa: FBT001
        self.boots += 1
        self.now += 1.0
        self.log = []
        self.health = msgspec.structs.replace(self.health, boot_id=self.boot_id)
        if not back:
            self.on_pci = {GPU}
        self.scan()

    @rule()
    def the_kubelet_comes_up(self) -> None:
        self.kubelet = self.boot_id
        before = self.health
        self.settle()
        if missing_devices(before):
            # A node that comes back with seven of eight GPUs is not well.
            lost = before.faults.keys() - self.health.faults.keys()
            assert all(before.faults[key].severity is Severity.INFO for key in lost)
        assert {k for k, f in before.faults.items() if f.code == 64} <= self.health.faults.keys()

    @rule()
    def the_device_is_plugged_in_again(self) -> None:
        self.on_pci = {GPU, OTHER_GPU}
        self.scan()
        assert not missing_devices(self.health)

    @rule()
    def the_agent_is_restarted(self) -> None:
        self.health = msgspec.json.decode(msgspec.json.encode(self.health), type=NodeHealth)

    @invariant()
    def a_condition_is_true_exactly_when_a_fault_is_behind_it(self) -> None:
        wanted = desired(self.health, VIEWS, written=(), indexes={})
        raised = {r.type for f in self.health.faults.values() for r in f.rule.raises}
        true = {c.type for c in wanted.conditions if c.status is ConditionStatus.TRUE}
        assert true == raised
        assert len(decode_report(wanted.annotation).faults) <= len(self.health.faults)

    @invariant()
    def counts_never_fall(self) -> None:
        now = {key: total.episodes for key, total in self.health.totals.items()}
        assert all(now.get(key, 0) >= count for key, count in self.episodes.items())
        self.episodes = now

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.health.faults) <= MAX_FAULTS * 3
        assert len(self.health.past) <= MAX_PAST

    @invariant()
    def what_is_over_is_kept_apart_from_what_is_there(self) -> None:
        there = {(f.kind, f.pci, f.code): f.times for f in self.health.faults.values()}
        for one in self.health.past.values():
            assert 1 <= len(one.times) <= MAX_TIMES
            assert list(one.times) == sorted(one.times)
            assert not set(one.times) & set(there.get((one.kind, one.pci, one.code), ()))

    def scan(self) -> None:
        devices = [Device(pci, DeviceClass.GPU, answers=True) for pci in sorted(self.on_pci)]
        self.health = scanned(self.health, devices, expected_gpus=0, now=self.now)

    def settle(self) -> None:
        evidence = Evidence(
            self.boot_id, self.kubelet, replayed=True, all_present=not missing_devices(self.health)
        )
        self.health = settle(self.health, evidence, now=self.now, info_age=HOUR)


TestAnyHistory = AnyHistory.TestCase


@given(
    st.lists(st.tuples(CODES, PCIS, st.integers(1, 1000)), min_size=1, max_size=30),
    st.integers(0, 29),
)
def test_a_restart_between_any_two_lines_changes_nothing(
    lines: list[tuple[int, str, int]], cut: int
) -> None:
    seen = [line(code, 100.0 * n, pci, count) for n, (code, pci, count) in enumerate(lines)]
    whole = observe(NodeHealth(), seen, boot_id="b")
    half = observe(NodeHealth(), seen[:cut], boot_id="b")
    stored = msgspec.json.decode(msgspec.json.encode(half), type=NodeHealth)
    assert observe(stored, seen[cut:], boot_id="b") == whole
