"""Every guard allows, or holds with a reason people can read; none stands in recovery's way."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from node_agent.contract import Severity
from remediator.decide.decision import NodePhase
from remediator.decide.facts import NodeFacts, NodeMode
from remediator.decide.ledger import FREE_AFTER, Ledger, Pause
from remediator.decide.session import HoldState, Session
from tests.unit.decide.build import START, Bench, cluster, ledger, node, patch_of, policy, xid


BAD = (xid(),)


def cordoned(bench: Bench) -> list[str]:
    return [name for name, facts in bench.nodes.items() if facts.unschedulable]


def guards_of(bench: Bench, name: str = "n1") -> list[str]:
    (found,) = [one for one in bench.decide() if one.node == name]
    return [hold.guard for hold in found.holds]


def fleet(size: int, bad: int, *, guards: Ledger, **more: Any) -> Bench:
    bench = Bench(policy(), guards=guards)
    bench.see(*(node(f"n{i}", faults=BAD if i < bad else (), **more) for i in range(size)))
    return bench


@pytest.mark.parametrize(
    ("amount", "limits"),
    [
        (0, [0, 0, 0, 0, 0, 0]),
        (1, [1, 1, 1, 1, 1, 1]),
        ("0%", [0, 0, 0, 0, 0, 0]),
        ("1%", [1, 1, 1, 1, 1, 1]),
        ("10%", [1, 1, 1, 1, 1, 10]),
        ("50%", [1, 1, 1, 2, 5, 50]),
        ("100%", [1, 2, 3, 4, 10, 100]),
    ],
)
@pytest.mark.parametrize("per", ["pool", "zone", "cluster"])
def test_budget_is_what_the_table_says(amount: int | str, limits: list[int], per: str) -> None:
    for size, limit in zip([1, 2, 3, 4, 10, 100], limits, strict=True):
        guards = ledger(
            budgets=[{"maxUnavailable": amount, "per": per}],
            breaker={"minNodes": 1000},
            rates={"cordon": "1000/1s"},
        )
        bench = fleet(size, size, guards=guards)
        bench.decide()
        assert len(cordoned(bench)) == limit, (size, amount)


def test_budgets_of_pools_are_apart_and_all_that_apply_must_allow() -> None:
    budgets = [{"maxUnavailable": 1, "per": "pool"}, {"maxUnavailable": 2, "per": "cluster"}]
    bench = Bench(policy(), guards=ledger(budgets=budgets))
    bench.see(*(node(f"{pool}{i}", faults=BAD, pool=pool) for pool in "abc" for i in "12"))
    bench.decide()
    assert cordoned(bench) == ["a1", "b1"]


def test_nothing_configured_is_one_per_pool_and_a_tenth_of_the_cluster() -> None:
    bench = Bench(policy(), guards=ledger())
    bench.see(*(node(f"{pool}{i}", faults=BAD, pool=pool) for pool in "ab" for i in range(10)))
    bench.decide()
    assert sorted(cordoned(bench)) == ["a0", "b0"]


@pytest.mark.parametrize("why", [{"unschedulable": True}, {"ready": False}])
def test_nodes_that_others_made_unavailable_count(why: dict[str, Any]) -> None:
    bench = Bench(policy(), guards=ledger(budgets=[{"maxUnavailable": 1}]))
    bench.see(node("other", unavailable_since=START, **why), node("n1", faults=BAD))
    assert guards_of(bench) == ["budget"]
    bench.change("other", unschedulable=False, ready=True, unavailable_since=None)
    assert bench.ledger.take_woken() == {"n1"}
    bench.decide()
    assert cordoned(bench) == ["n1"]


def test_a_node_that_is_long_gone_costs_nothing_more() -> None:
    bench = Bench(policy(), guards=ledger(budgets=[{"maxUnavailable": 1}]))
    bench.see(
        node("other", unschedulable=True, unavailable_since=START),
        node("n1", faults=BAD, ready=False, unavailable_since=START),
    )
    bench.now += FREE_AFTER - 1
    held = bench.decide()[1]
    assert held.next_look == START + FREE_AFTER
    assert "n1" not in cordoned(bench)
    bench.now += 1
    bench.decide()
    assert "n1" in cordoned(bench)


def test_a_bigger_fleet_wakes_who_waits() -> None:
    bench = Bench(policy(), guards=ledger(budgets=[{"maxUnavailable": "50%", "per": "cluster"}]))
    bench.see(node("a", faults=BAD), node("b", faults=BAD))
    bench.decide()
    assert cordoned(bench) == ["a"]
    bench.ledger.take_woken()
    bench.see(node("c"), node("d"))
    assert "b" in bench.ledger.take_woken()


def test_a_node_that_changes_its_pool_keeps_its_place() -> None:
    guards = ledger(budgets=[{"maxUnavailable": 1, "per": "cluster"}])
    bench = Bench(policy(), guards=guards)
    bench.see(node("a", faults=BAD), node("b", faults=BAD))
    bench.decide(write=False)
    bench.change("a", pool="other")
    bench.decide(write=False)
    assert not bench.ledger.nodes["uid-b"].reserved
    bench.ledger.refund("uid-a")
    assert set(bench.ledger.unavailable.values()) == {0}


def test_worst_first_then_longest_then_by_name() -> None:
    guards = ledger(budgets=[{"maxUnavailable": 1, "per": "cluster"}])
    urgent = policy("urgent", emergency=True, when=[{"xid": {"codes": [48]}}])
    bench = Bench(policy(), urgent, guards=guards)
    mild, first = (xid(severity=Severity.WARNING),), node("y", faults=BAD)
    bench.see(node("other", unschedulable=True, unavailable_since=START))
    bench.see(node("a", faults=mild), first)
    bench.decide()
    bench.now += 5
    bench.see(node("x", faults=BAD), node("z", faults=(xid(48, severity=Severity.WARNING),)))
    bench.decide()
    bench.change("other", unschedulable=False, unavailable_since=None)
    order = []
    for _ in range(4):
        bench.decide()
        (name,) = cordoned(bench)
        order.append(name)
        gone = bench.nodes.pop(name)
        bench.ledger.forget(gone.uid)
    assert order == ["z", "y", "x", "a"]


def test_rate_holds_until_its_window_has_passed() -> None:
    bench = fleet(3, 3, guards=ledger(budgets=[{"maxUnavailable": 3}], rates={"cordon": "2/10m"}))
    decisions = bench.decide()
    assert cordoned(bench) == ["n0", "n1"]
    assert decisions[2].holds[0].look_again == START + 600
    bench.now += 599
    bench.decide()
    assert len(cordoned(bench)) == 2
    bench.now += 1
    bench.decide()
    assert len(cordoned(bench)) == 3


def test_rate_and_open_breaker_survive_a_restart() -> None:
    spec: dict[str, Any] = {"budgets": [{"maxUnavailable": 9}], "rates": {"cordon": "1/10m"}}
    bench = fleet(1, 1, guards=ledger(**spec))
    bench.decide()
    bench.ledger.open_breaker("other", "a storm", START)
    after = Ledger(cluster=cluster(**spec), started=0.0)
    after.restore(bench.ledger.state())
    assert after.state() == bench.ledger.state()
    bench.ledger = after
    bench.see(node("n9", faults=BAD))
    assert guards_of(bench, "n9") == ["rate"]
    assert "other" in after.breakers


def test_a_rate_is_given_back_when_the_patch_was_not_written() -> None:
    bench = fleet(1, 1, guards=ledger(rates={"cordon": "1/10m"}))
    bench.decide(write=False)
    bench.ledger.refund("uid-n0")
    assert bench.ledger.state().starts == {}
    bench.decide()
    assert cordoned(bench) == ["n0"]


def storm(bench: Bench, names: range) -> None:
    for i in names:
        bench.fault(*BAD, name=f"n{i}")
    bench.decide()


def wide(**more: Any) -> Ledger:
    return ledger(
        budgets=[{"maxUnavailable": 100, "per": "cluster"}], rates={"cordon": "1000/1s"}, **more
    )


def test_breaker_opens_at_more_than_is_believable_and_says_so_once() -> None:
    bench = fleet(10, 0, guards=wide())
    bench.decide()
    storm(bench, range(3))
    assert len(cordoned(bench)) == 3
    storm(bench, range(3, 6))
    assert len(cordoned(bench)) == 3
    assert sum("breaker/" in key for key in bench.sent) == 1
    assert guards_of(bench, "n3") == ["breaker"]


def test_a_low_budget_does_not_hide_a_storm() -> None:
    bench = fleet(10, 0, guards=ledger(budgets=[{"maxUnavailable": 0}]))
    bench.decide()
    storm(bench, range(4))
    assert "bus" in bench.ledger.breakers


@pytest.mark.parametrize("slow", [True, False])
def test_the_breaker_counts_within_its_window(*, slow: bool) -> None:
    bench = fleet(10, 0, guards=wide())
    bench.decide()
    for i in range(8):
        bench.now += 150 if slow else 10
        storm(bench, range(i, i + 1))
    assert ("bus" in bench.ledger.breakers) is not slow


def test_old_faults_and_running_sessions_are_a_backlog() -> None:
    bench = fleet(10, 8, guards=wide())
    bench.decide()
    assert not bench.ledger.breakers
    assert len(cordoned(bench)) == 8
    after = Bench(policy(), guards=wide())
    after.see(*bench.nodes.values())
    after.decide()
    assert not after.ledger.breakers


def test_an_open_breaker_lets_recovery_through() -> None:
    bench = fleet(10, 0, guards=wide())
    bench.decide()
    storm(bench, range(2))
    storm(bench, range(2, 6))
    bench.now += 1
    bench.fault(name="n0")
    bench.decide()
    bench.now += 600
    bench.decide()
    assert cordoned(bench) == ["n1"]


def test_reset_drops_what_matches_now_until_it_returns() -> None:
    bench = fleet(10, 0, guards=wide())
    bench.decide()
    storm(bench, range(5))
    bench.ledger.reset_breaker("bus", keep=False)
    storm(bench, range(5, 6))
    assert cordoned(bench) == ["n5"]
    bench.fault(name="n0")
    bench.decide()
    storm(bench, range(1))
    assert cordoned(bench) == ["n0", "n5"]


def test_reset_that_keeps_acts_on_what_matches_now() -> None:
    bench = fleet(10, 0, guards=wide())
    bench.decide()
    storm(bench, range(5))
    bench.ledger.reset_breaker("bus", keep=True)
    bench.decide()
    assert len(cordoned(bench)) == 5


def test_reset_right_after_a_restart_drops_what_was_not_looked_at_yet() -> None:
    bench = fleet(10, 0, guards=wide())
    bench.decide()
    storm(bench, range(5))
    after = Bench(policy(), guards=wide())
    after.ledger.restore(bench.ledger.state())
    after.ledger.reset_breaker("bus", keep=False)
    after.see(*bench.nodes.values())
    after.decide()
    assert cordoned(after) == []


def test_a_deleted_node_is_not_remembered() -> None:
    bench = fleet(10, 0, guards=wide())
    bench.decide()
    storm(bench, range(5))
    bench.ledger.reset_breaker("bus", keep=False)
    for facts in bench.nodes.values():
        bench.ledger.forget(facts.uid)
    assert bench.ledger.state().dropped == {}
    assert set(bench.ledger.total.values()) == {0}


def test_settling_looks_before_it_touches() -> None:
    bench = Bench(policy(), guards=ledger(started=START, settling="60s"))
    bench.see(node(faults=BAD))
    assert bench.one().next_look == START + 60
    assert cordoned(bench) == []
    bench.one(seconds=60)
    assert cordoned(bench) == ["n1"]


def test_pause_stops_what_is_new_and_pause_all_every_write() -> None:
    bench = Bench(policy())
    bench.see(node(faults=BAD))
    bench.one()
    bench.ledger.pause = Pause(by="ann", at="now", reason="upgrade")
    bench.see(node("n2", faults=BAD))
    assert guards_of(bench, "n2") == ["pause"]
    bench.ledger.pause = Pause(by="ann", at="now", all=True)
    bench.now += 1
    bench.fault()
    bench.decide()
    bench.now += 600
    decisions = bench.decide()
    assert all(patch_of(one) is None for one in decisions)
    assert cordoned(bench) == ["n1"]
    bench.ledger.pause = Pause(by="ann", at="now")
    bench.decide()
    assert cordoned(bench) == []


@pytest.mark.parametrize("steps", [[{"cordon": {}}], [{"notify": {"to": ["log"]}}, {"cordon": {}}]])
def test_control_plane_nodes_are_left_alone_unless_named(steps: list[dict[str, Any]]) -> None:
    bench = Bench(policy(steps=steps))
    bench.see(node(faults=BAD, control_plane=True))
    decision = bench.one()
    assert [hold.guard for hold in decision.holds] == ["scope"]
    assert bench.nodes["n1"].session is None
    named = Bench(policy(nodes={"controlPlane": True}))
    named.see(node(faults=BAD, control_plane=True))
    named.one()
    assert cordoned(named) == ["n1"]


@pytest.mark.parametrize(
    "facts",
    [node(faults=BAD, gpu=False), node(faults=BAD, labels={"role": "web"})],
    ids=["no-gpu-node", "not-selected"],
)
def test_nodes_out_of_scope_are_well(facts: NodeFacts) -> None:
    rule = policy(nodes={"selector": {"matchLabels": {"nvidia.com/gpu.present": "true"}}})
    bench = Bench(rule)
    bench.see(facts)
    assert bench.one().phase is NodePhase.WELL


def test_disabled_node_is_left_alone_even_with_a_session() -> None:
    bench = Bench(policy())
    bench.see(node(faults=BAD))
    bench.one()
    bench.change(mode=NodeMode.DISABLED)
    bench.now += 1
    bench.fault()
    decision = bench.one(seconds=900)
    assert decision.phase is NodePhase.LEFT_ALONE
    assert decision.effects == ()


def test_notify_only_tells_and_does_not_cordon() -> None:
    bench = Bench(policy(steps=[{"cordon": {}}, {"notify": {"to": ["log"]}}]), policy("silent"))
    bench.see(node(faults=BAD, mode=NodeMode.NOTIFY_ONLY))
    decision = bench.one()
    assert cordoned(bench) == []
    assert [hold.policy for hold in bench.session().holds] == ["bus"]
    assert [result.result for result in bench.session().holds[0].results] == ["cancelled"]
    assert [(hold.policy, hold.guard) for hold in decision.holds] == [("silent", "opt-out")]
    assert "not cordoned" in bench.texts()


def test_an_unreadable_history_permits_no_new_session() -> None:
    bench = Bench(policy(steps=[{"notify": {"to": ["log"]}}]))
    bench.see(node(faults=BAD, mode=NodeMode.NOTIFY_ONLY, mode_note="read as notify-only: broken"))
    assert bench.one().effects == ()


def test_a_held_fatal_fault_is_told_once_and_again_when_it_stays_so() -> None:
    bench = Bench(policy(), guards=ledger(budgets=[{"maxUnavailable": 0}]))
    bench.see(node(faults=BAD))
    assert bench.one().next_look == START + 60
    assert bench.sent == {}
    assert bench.one(seconds=60).next_look == START + 900  # the report grows stale then
    bench.one(seconds=1)
    assert len(bench.sent) == 1
    bench.one(seconds=3600)
    bench.one(seconds=3600)
    assert len(bench.sent) == 2


def test_a_fault_that_returns_is_held_from_then_on() -> None:
    bench = Bench(policy(), guards=ledger(budgets=[{"maxUnavailable": 0}]))
    bench.see(node(faults=BAD))
    bench.one()
    bench.now += 30
    bench.fault()
    bench.one()
    bench.now += 86400
    bench.fault(*BAD)
    bench.one()
    assert bench.sent == {}


def test_a_held_cordon_after_a_message_is_told_too() -> None:
    steps = [{"notify": {"to": ["log"]}}, {"cordon": {}}]
    bench = Bench(policy(steps=steps), guards=ledger(budgets=[{"maxUnavailable": 0}]))
    bench.see(node(faults=BAD))
    bench.one()
    bench.one(seconds=1)
    bench.one(seconds=60)
    assert "is held by budget" in bench.texts()


def test_who_blocks_the_budget_is_named() -> None:
    bench = Bench(policy(limits={"maxAttempts": 1}), guards=ledger(budgets=[{"maxUnavailable": 1}]))
    bench.see(node("a", faults=BAD))
    bench.decide()
    session = bench.nodes["a"].session
    assert isinstance(session, Session)
    stuck = tuple(replace(hold, state=HoldState.ESCALATED) for hold in session.holds)
    bench.change("a", session=replace(session, holds=stuck))
    bench.see(node("b", faults=BAD))
    assert "waiting for people: a" in str(bench.decide()[1])
