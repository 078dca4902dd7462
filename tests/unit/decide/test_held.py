"""Unless, windows, silence, sources and the classes of rates: held, said, and never lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from remediator.decide.decision import Hold, Work
from remediator.decide.facts import NOTHING_KNOWN, ClusterFacts, NodeFacts, SourceFact
from remediator.decide.sanity import agents_now
from remediator.policy.cluster import Sanity
from remediator.policy.model import RemediationPolicy
from tests.unit.decide.build import (
    START,
    Bench,
    alert,
    alive,
    condition,
    ledger,
    node,
    policy,
    query_fact,
    xid,
)


BAD = (xid(),)
FAILING = SourceFact(ok=False, since=0.0, why="connection refused")


def bench_of(*facts: NodeFacts, known: ClusterFacts = NOTHING_KNOWN, **spec: Any) -> Bench:
    bench = Bench(policy(**spec))
    bench.known = known
    bench.see(*(facts or (node(faults=BAD),)))
    return bench


def held(bench: Bench) -> Hold | None:
    """Return what holds the first node; it must then not be cordoned."""
    decision = bench.decide()[0]
    assert bench.cordoned() is not bool(decision.holds)
    return next(iter(decision.holds), None)


# -- unless --------------------------------------------------------------------------------


MAINTENANCE = [{"alert": {"name": "Maintenance"}}]
QUERY = {"promql": "maintenance == 1"}


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (alive(), ""),
        (alive(alive=False), ""),
        (alive(alerts=(alert("Other"),)), ""),
        (alive(alerts=(alert("Maintenance"),)), "alert Maintenance fires"),
        (alive(alerts=(replace(alert("Maintenance"), suppressed=True),)), "fires"),
        (NOTHING_KNOWN, "cannot be told: no Alertmanager"),
        (ClusterFacts(sources={"alertmanager/main": FAILING}), "cannot be told: whether alert"),
        (
            ClusterFacts(sources={**alive().sources, "alertmanager/b": FAILING}),
            "connection refused",
        ),
    ],
)
def test_unless_an_alert_fires_anywhere(known: ClusterFacts, words: str) -> None:
    hold = held(bench_of(known=known, unless=MAINTENANCE))
    assert (hold is not None) is bool(words)
    if hold is not None:
        assert hold.guard == "unless"
        assert words in hold.reason
        assert hold.look_again == START + 60


def test_unless_waits_out_the_time_of_its_alert() -> None:
    bench = bench_of(
        known=alive(alerts=(alert("Maintenance", since=START - 59),)),
        unless=[{"alert": {"name": "Maintenance", "for": "1m"}}],
    )
    assert held(bench) is None


def key() -> str:
    return policy(unless=[{"query": QUERY}]).spec.unless[0].query.key  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("queries", "words"),
    [({key(): False}, ""), ({key(): True}, "maintenance == 1 has a result"), ({}, "not been")],
)
def test_unless_a_query_has_a_result(queries: dict[str, bool], words: str) -> None:
    hold = held(bench_of(known=ClusterFacts(queries=queries), unless=[{"query": QUERY}]))
    assert (hold is not None) is bool(words)
    assert hold is None or words in hold.reason


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        ("MaintenancePlanned", None, ""),
        ("MaintenancePlanned", "False", ""),
        ("MaintenancePlanned", "True", "MaintenancePlanned is True"),
        ("MaintenancePlanned", "Unknown", "cannot be told: MaintenancePlanned is Unknown"),
        ("GPULost", None, "cannot be told: GPULost is not stated"),
        ("GPULost", "False", ""),
        ("GPULost", "True", "GPULost is True"),
    ],
)
def test_unless_a_condition_of_the_node(kind: str, status: str | None, words: str) -> None:
    facts = node(faults=BAD)
    if status is not None:
        facts = replace(facts, conditions={**facts.conditions, kind: condition(kind, status)})
    hold = held(bench_of(facts, unless=[{"condition": {"type": kind}}]))
    assert (hold is not None) is bool(words)
    assert hold is None or words in hold.reason


def test_unless_a_condition_has_lasted() -> None:
    facts = node(faults=BAD)
    lost = condition("Busy", "True")
    facts = replace(facts, conditions={**facts.conditions, "Busy": lost})
    assert held(bench_of(facts, unless=[{"condition": {"type": "Busy", "for": "1m"}}])) is None
    reasons = [{"condition": {"type": "Busy", "reasons": ["Backup"]}}]
    assert held(bench_of(facts, unless=reasons)) is None


def test_unless_any_entry_and_within_an_entry_all_keys() -> None:
    both = [{"alert": {"name": "Maintenance"}, "condition": {"type": "Busy"}}]
    known = alive(alerts=(alert("Maintenance"),))
    assert held(bench_of(known=known, unless=both)) is None
    assert held(bench_of(known=known, unless=[{"condition": {"type": "Busy"}}, *MAINTENANCE]))


# -- windows -------------------------------------------------------------------------------


NIGHT = [{"days": ["Mon"], "start": "22:00", "end": "05:00", "timeZone": "Europe/Berlin"}]
BERLIN = ZoneInfo("Europe/Berlin")


def test_outside_its_windows_a_step_waits_for_the_minute_it_opens() -> None:
    bench = bench_of(windows=NIGHT)
    opens = datetime(1970, 1, 12, 22, tzinfo=BERLIN).timestamp()
    hold = held(bench)
    assert hold is not None
    assert hold.guard == "windows"
    assert hold.reason == "outside its windows; opens Mon 1970-01-12 22:00 Europe/Berlin"
    assert hold.look_again == opens
    bench.now = opens - 0.001
    bench.fault(*BAD)
    assert held(bench) is not None
    bench.now = opens
    assert held(bench) is None


def test_an_emergency_passes_windows_and_nothing_else() -> None:
    assert held(bench_of(windows=NIGHT, emergency=True)) is None
    assert held(bench_of(windows=NIGHT, emergency=True, unless=MAINTENANCE)) is not None


def test_a_blackout_holds_whatever_other_windows_say() -> None:
    blackout = {"blackout": True, "start": "13:00", "end": "14:00"}
    hold = held(bench_of(windows=[{"start": "00:00"}, blackout]))
    assert hold is not None
    assert hold.reason.startswith("in the blackout 13:00-14:00 UTC; opens Mon 1970-01-12 14:00 UTC")
    assert held(bench_of(windows=[{**blackout, "end": "13:30"}])) is None


def test_windows_that_never_open_again_say_so() -> None:
    hold = held(bench_of(windows=[{"until": "1970-01-01"}]))
    assert hold is not None
    assert hold.look_again is None
    assert "none opens" in hold.reason


def test_a_closed_window_holds_back_neither_undo_nor_messages() -> None:
    bench = bench_of(
        node(faults=BAD), steps=[{"notify": {"to": ["log"]}}, {"cordon": {}}], windows=NIGHT
    )
    bench.decide()
    assert not bench.cordoned()
    assert any("/0" in sent for sent in bench.sent)
    bench.now = datetime(1970, 1, 12, 22, tzinfo=BERLIN).timestamp()
    bench.decide()
    assert bench.cordoned()
    bench.now += 8 * 3600
    for _ in range(4):
        bench.now += 301
        bench.fault()
        bench.decide()
    assert not bench.cordoned()


# -- sources -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "known", "words"),
    [
        ({"xid": {"codes": [79]}}, {"agents": FAILING}, "agents: connection refused"),
        ({"xid": {"codes": [79]}}, {"alertmanager/main": FAILING}, ""),
        ({"xid": {"codes": [79]}}, {"watch": FAILING}, "our watch of the nodes"),
        ({"condition": {"type": "KernelDeadlock"}}, {"agents": FAILING}, ""),
        ({"condition": {"type": "GPUXidError"}}, {"agents": FAILING}, "agents"),
        ({"alert": {"name": "GpuFell"}}, {"agents": FAILING}, ""),
        ({"alert": {"name": "GpuFell"}}, {"alertmanager/main": FAILING}, "alertmanager/main"),
        ({"query": QUERY}, {"prometheus/main": FAILING}, "prometheus/main"),
        ({"xid": {"codes": [79]}}, {"agents": SourceFact(ok=True, since=0.0)}, ""),
    ],
)
def test_no_step_rests_on_a_source_that_fails(
    when: dict[str, Any], known: dict[str, SourceFact], words: str
) -> None:
    facts = node(
        faults=BAD, alerts=(alert(),), queries={key(): query_fact(holds=True, source="main")}
    )
    deadlock = condition("KernelDeadlock", "True")
    facts = replace(facts, conditions={**facts.conditions, "KernelDeadlock": deadlock})
    hold = held(bench_of(facts, known=ClusterFacts(sources=known), when=[when]))
    assert (hold is not None) is bool(words)
    if hold is not None:
        assert hold.guard == "sources"
        assert words in hold.reason


def test_one_entry_that_can_be_trusted_is_enough_and_all_of_one_must_be() -> None:
    facts = node(faults=BAD, alerts=(alert(),))
    known = ClusterFacts(sources={"alertmanager/main": FAILING})
    xid_, fell = {"xid": {"codes": [79]}}, {"alert": {"name": "GpuFell"}}
    assert held(bench_of(facts, known=known, when=[xid_, fell])) is None
    assert held(bench_of(facts, known=known, when=[{**xid_, **fell}])) is not None


@pytest.mark.parametrize(
    ("size", "silent", "ok"),
    [(1, 1, True), (3, 2, True), (3, 3, False), (100, 20, True), (100, 21, False), (0, 0, True)],
)
def test_agents_are_believed_until_very_many_are_silent(size: int, silent: int, ok: bool) -> None:  # noqa: FBT001
    nodes = [node(f"n{i}", now=START - 10_000 if i < silent else START) for i in range(size)]
    nodes.append(node("other", gpu=False, now=START - 10_000))
    nodes.append(node("without", conditions={}))
    found = agents_now(nodes, sanity=Sanity(), before=None, now=START)
    assert found.ok is ok
    assert ok or found.why.startswith(f"{silent} of {size} are silent")
    again = agents_now(nodes, sanity=Sanity(), before=found, now=START + 5)
    assert again.since == START


# -- silence -------------------------------------------------------------------------------


FELL = [{"alert": {"name": "GpuFell"}}]
SILENCED = replace(alert(), suppressed=True)


def test_a_silenced_alert_begins_nothing_and_is_shown() -> None:
    bench = bench_of(node(alerts=(SILENCED,)), known=alive(), when=FELL)
    hold = held(bench)
    assert hold is not None
    assert hold.guard == "silence"
    assert "silenced or inhibited in main" in hold.reason
    assert not bench.sent


def test_a_silence_freezes_step_and_undo_until_it_ends() -> None:
    steps: list[dict[str, Any]] = [{"cordon": {}}, {"drain": {}}]
    bench = bench_of(node(alerts=(alert(),)), known=alive(), when=FELL, steps=steps)
    bench.decide()
    (decision,) = bench.decide()
    assert [one.action for one in decision.effects if isinstance(one, Work)] == ["drain"]
    bench.change(alerts=(SILENCED,))
    bench.decide()
    bench.now += 1e5
    (decision,) = bench.decide()
    assert [one.guard for one in decision.holds] == ["silence"]
    assert [one.suspended for one in decision.effects if isinstance(one, Work)] == [True]
    assert bench.cordoned()
    bench.change(alerts=(alert(),))
    (decision,) = bench.decide()
    works = [one for one in decision.effects if isinstance(one, Work)]
    assert [one.suspended for one in works] == [False]
    assert works[0].deadline > bench.now, "the deadline does not run while it is frozen"
    bench.change(alerts=())
    for _ in range(3):
        bench.now += 400
        bench.decide()
    assert not bench.cordoned()


TELL = {"notify": {"to": ["log"]}}
NAMES_IT = policy("dry", mode="DryRun", when=[{"all": [{"alert": {"name": "GpuFell"}}]}])


def frozen_bench(*others: RemediationPolicy, **spec: Any) -> Bench:
    """A node with a fault of the agent and a silenced alert of which that knows nothing."""
    bench = Bench(policy(**spec), *others)
    bench.known = alive()
    bench.see(node(faults=BAD, alerts=(SILENCED,)))
    return bench


@pytest.mark.parametrize(
    ("other", "frozen"),
    [
        (NAMES_IT, True),
        (policy("off", mode="Disabled", when=FELL), False),
        (policy("other", when=[{"alert": {"name": "Other"}}]), False),
        (policy("passed-over", unless=FELL), False),
    ],
    ids=["named by a policy in dry-run", "by a disabled one", "by none", "in unless only"],
)
def test_a_silence_freezes_the_node_for_every_policy(
    other: RemediationPolicy, *, frozen: bool
) -> None:
    bench = frozen_bench(other)
    (decision,) = bench.decide()
    assert bench.cordoned() is not frozen
    said = [one.reason for one in decision.holds if one.guard == "silence"]
    assert said == (
        ["alert GpuFell is silenced or inhibited in main: the node stays as it is"] * frozen
    )


def test_a_silence_freezes_what_rests_on_another_fault() -> None:
    steps: list[dict[str, Any]] = [{"cordon": {}}, {"drain": {}}]
    bench = frozen_bench(NAMES_IT, steps=steps)
    bench.change(alerts=())
    bench.decide()
    bench.decide()
    bench.change(alerts=(SILENCED,))
    (decision,) = bench.decide()
    assert [one.suspended for one in decision.effects if isinstance(one, Work)] == [True]
    assert "GpuFell is silenced" in decision.holds[0].reason
    for _ in range(4):
        bench.now += 400
        bench.fault()
        bench.decide()
    assert bench.cordoned(), "the fault is over, and yet nothing is undone"
    bench.change(alerts=())
    for _ in range(4):
        bench.now += 400
        bench.fault()
        bench.decide()
    assert not bench.cordoned()


@pytest.mark.parametrize("steps", [[TELL], [{"cordon": {}}, TELL]])
def test_people_hear_of_a_fatal_fault_that_the_silence_of_another_alert_holds(
    steps: list[dict[str, Any]],
) -> None:
    bench = frozen_bench(NAMES_IT, steps=steps)
    bench.decide()
    assert not bench.sent
    bench.now += 61
    bench.decide()
    assert "held by silence: alert GpuFell" in bench.texts()
    assert bench.nodes["n1"].session is None


def test_silenced_nodes_are_no_storm() -> None:
    guards = ledger(breaker={"minNodes": 2, "percent": 1})
    bench = Bench(policy(when=FELL), guards=guards)
    bench.known = alive()
    bench.see(*(node(f"n{i}", created=START, alerts=(SILENCED,)) for i in range(9)))
    bench.decide()
    assert not guards.breakers


def test_an_alert_born_session_ends_by_hand_unless_its_source_is_alive() -> None:
    for known, ends in ((alive(), True), (alive(alive=False), False)):
        bench = bench_of(node(alerts=(alert(),)), known=known, when=FELL)
        bench.decide()
        bench.change(alerts=())
        for _ in range(4):
            bench.now += 400
            bench.decide()
        assert bench.cordoned() is not ends


def test_a_query_born_session_ends_by_what_clears_it_after_the_last_step() -> None:
    asked = {"promql": "bad == 1", "clearedBy": "good == 1"}
    rule = policy(when=[{"query": asked}])
    name = rule.spec.when[0].query.key  # type: ignore[union-attr]
    bench = Bench(rule)
    bench.see(node(queries={name: query_fact(holds=True)}))
    bench.now += 1
    bench.decide()
    bench.change(queries={name: query_fact(holds=False)})
    for _ in range(3):
        bench.now += 20
        bench.decide()
    assert bench.cordoned(), "said before the step"
    for _ in range(40):
        bench.change(queries={name: query_fact(holds=False, since=bench.now)})
        bench.now += 20
        bench.decide()
    assert not bench.cordoned()


# -- classes of rates ------------------------------------------------------------------------


def test_drains_have_a_rate_of_their_own_that_is_given_back_when_unwritten() -> None:
    guards = ledger(
        budgets=[{"maxUnavailable": "100%", "per": "cluster"}],
        rates={"cordon": "100/1m", "drain": "2/10m"},
        breaker={"minNodes": 100},
    )
    bench = Bench(policy(steps=[{"cordon": {}}, {"drain": {}}]), guards=guards)
    bench.see(*(node(f"n{i}", faults=BAD) for i in range(4)))
    bench.decide()
    assert all(bench.cordoned(f"n{i}") for i in range(4))
    for _ in range(5):
        bench.decide(write=False)
        for i in range(4):
            guards.refund(f"uid-n{i}")
    bench.decide()
    bench.decide()
    decisions = bench.decide()
    draining = [one.node for one in decisions for e in one.effects if isinstance(e, Work)]
    assert draining == ["n0", "n1"]
    holds = [hold for one in decisions for hold in one.holds]
    assert {hold.guard for hold in holds} == {"rate"}
    assert holds[0].reason == "the cluster's rate of 2/10m drains per pool is used up"
    assert holds[0].look_again == START + 600
    bench.now += 600
    for i in range(4):
        bench.fault(*BAD, name=f"n{i}")
    decisions = bench.decide()
    assert len([e for one in decisions for e in one.effects if isinstance(e, Work)]) == 4


def test_a_cordon_is_free_after_five_minutes_and_a_drain_is_charged_for_itself() -> None:
    guards = ledger(budgets=[{"maxUnavailable": 1, "per": "cluster"}])
    bench = Bench(policy(steps=[{"cordon": {}}, {"drain": {}}]), guards=guards)
    gone = START - 301
    bench.see(
        node("other", ready=False, unavailable_since=gone),
        node("n1", faults=BAD, ready=False, unavailable_since=gone),
    )
    bench.decide()
    assert bench.cordoned()
    assert [hold.guard for hold in bench.decide()[1].holds] == ["budget"]
    bench.change("other", ready=True, unavailable_since=None)
    assert "n1" in guards.take_woken()
    works = [one for one in bench.decide()[1].effects if isinstance(one, Work)]
    assert [one.action for one in works] == ["drain"]


def test_a_drain_without_a_cordon_takes_a_place_while_it_lasts() -> None:
    guards = ledger(budgets=[{"maxUnavailable": 1, "per": "cluster"}])
    bench = Bench(policy(steps=[{"drain": {}}]), guards=guards)
    bench.see(node("n1", faults=BAD), node("n2", faults=BAD))
    bench.decide()
    decisions = bench.decide()
    assert [len([e for e in one.effects if isinstance(e, Work)]) for one in decisions] == [1, 0]
    assert [hold.guard for hold in decisions[1].holds] == ["budget"]
