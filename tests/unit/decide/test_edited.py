"""What has begun goes on as it began: whatever its policy's text, or the node's labels, become."""

from __future__ import annotations

from typing import Any

import pytest

from node_agent.contract import Severity
from remediator.decide.decision import Decision
from remediator.decide.facts import ClusterFacts, SourceFact
from remediator.decide.instances import instance_answer, still_there
from remediator.decide.match import Answer
from remediator.decide.session import HoldState
from remediator.policy.when import QueryClause
from tests.unit.decide.build import (
    GPU,
    START,
    Bench,
    alert,
    alive,
    condition,
    ledger,
    node,
    policies,
    policy,
    query_fact,
    xid,
)
from tests.unit.decide.test_work import DRAIN, bench, end, hold, results, until


MINUTE = 60.0
RECOVER: dict[str, Any] = {"recover": {"for": "1m"}}
STEPS: tuple[dict[str, Any], ...] = ({"cordon": {}}, {"wait": {"for": "10m"}}, DRAIN)


def begun(*steps: dict[str, Any], **spec: Any) -> Bench:
    """One node that is cordoned, and waits before it is drained."""
    made = bench(*(steps or STEPS), **RECOVER, **spec)
    made.one()
    assert made.cordoned()
    return made


def edit(made: Bench, *steps: dict[str, Any], **spec: Any) -> Decision:
    """Load another text of the same policy, and look at the node with it."""
    edited = policy(steps=list(steps or STEPS), **RECOVER, **spec)
    made.policies = policies(edited, loaded_at=made.now)
    return made.one(seconds=1.0)


def seen_through(made: Bench) -> None:
    """Play the rest: the node is drained while the fault is there, and returns when it is gone."""
    made.now += 10 * MINUTE
    made.fault(xid())
    until(made, "drain")
    end(made, "drain")
    assert hold(made).state is HoldState.DONE
    assert results(made) == [("cordon", "done"), ("wait", "done"), ("drain", "done")]
    recovered(made)


def recovered(made: Bench) -> None:
    for _ in range(3):
        made.now += MINUTE
        made.fault()
        made.decide()
    assert not made.cordoned()
    assert made.nodes["n1"].session is None


@pytest.mark.parametrize(
    "when",
    [
        [{"xid": {"codes": [79, 48]}}],
        [{"xid": {"codes": [48]}}],
        [{"xid": {"codes": [79]}, "condition": {"type": "GPULost"}}],
        [{"condition": {"type": "GPUXidError", "for": "1d"}}],
        [{"alert": {"name": "GpuFell"}}],
    ],
)
def test_an_edit_of_when_stops_nothing_that_has_begun(when: list[dict[str, Any]]) -> None:
    made = begun()
    decision = edit(made, when=when)
    assert "policy" not in {one.guard for one in decision.holds}
    assert decision.steps == ("bus: 2/3 wait, begun before its edit",)
    if when != [{"condition": {"type": "GPUXidError", "for": "1d"}}]:
        assert hold(made).instances == ("xid:79:0000:9b:00.0:boot-1",)
    seen_through(made)
    assert "orphaned" not in made.texts()


def test_what_the_edited_policy_asks_for_begins_nothing_anew_on_that_ground() -> None:
    made = begun()
    edit(made, when=[{"xid": {"codes": [48]}}])
    seen_through(made)
    made.fault(xid())
    made.one()
    assert made.nodes["n1"].session is None, "the new text does not ask for Xid 79"


def test_a_policy_that_was_not_edited_is_measured_by_its_whole_when() -> None:
    """Both keys of its entry: one that is left is not what the policy asked for."""
    both = [{"xid": {"codes": [79]}, "condition": {"type": "Busy"}}]
    made = bench({"cordon": {}}, DRAIN, when=both)
    busy = {**made.nodes["n1"].conditions, "Busy": condition("Busy", "True")}
    made.change(conditions=busy)
    made.one()
    assert made.cordoned()
    made.change(conditions={**busy, "Busy": condition("Busy", "False")})
    decision = made.one(seconds=1.0)
    assert not made.works
    assert [one.guard for one in decision.holds] == ["facts"]


def test_an_edit_that_never_asked_for_it_does_not_keep_the_node() -> None:
    made = begun()
    edit(made, when=[{"xid": {"codes": [48]}}])
    recovered(made)


# -- selectors -----------------------------------------------------------------------------


TIER: dict[str, Any] = {"nodes": {"selector": {"matchLabels": {"tier": "a"}}}}


def test_an_edited_selector_stops_nothing_that_has_begun() -> None:
    made = begun()
    assert edit(made, **TIER).matched == ("bus",)
    seen_through(made)
    assert "orphaned" not in made.texts()
    made.fault(xid())
    made.one()
    assert not made.cordoned(), "it begins nothing where it does not select"


def of_tier(*steps: dict[str, Any]) -> Bench:
    """A policy of nodes of tier a, and one of them."""
    made = bench(*steps, **RECOVER, **TIER)
    made.change(labels={**GPU, "tier": "a"})
    made.one()
    return made


def test_a_step_that_takes_the_node_out_of_its_own_selector_stops_nothing() -> None:
    made = of_tier({"label": {"set": {"tier": "broken"}}}, *STEPS)
    assert made.nodes["n1"].labels["tier"] == "broken"
    assert made.one(seconds=1.0).matched == ("bus",)
    made.now += 10 * MINUTE
    made.fault(xid())
    until(made, "drain")
    end(made, "drain")
    recovered(made)
    assert made.nodes["n1"].labels["tier"] == "a"
    assert "orphaned" not in made.texts()


def test_a_label_that_people_change_stops_nothing_either() -> None:
    made = of_tier(*STEPS)
    made.change(labels=GPU)
    seen_through(made)


def test_a_node_that_is_not_selected_any_more_counts_for_no_breaker() -> None:
    """Since when a guard holds it is remembered: people hear of it."""
    made = of_tier(*STEPS)
    assert made.ledger.watches["bus"].scope == {"uid-n1"}
    made.policies = policies(
        policy(steps=list(STEPS), **RECOVER, **TIER, unless=[{"condition": {"type": "Busy"}}])
    )
    busy = {**made.nodes["n1"].conditions, "Busy": condition("Busy", "True")}
    made.change(labels=GPU, conditions=busy)
    made.one(seconds=1.0)
    assert made.ledger.watches["bus"].scope == set()
    made.one(seconds=10 * MINUTE)
    made.one(seconds=1.0)
    since = made.ledger.held_since["uid-n1"]["bus"]
    made.one(seconds=MINUTE)
    made.one(seconds=1.0)
    assert made.ledger.held_since["uid-n1"]["bus"] == since
    assert f"held/uid-n1/bus/{since:.0f}" in made.sent


def test_whoever_is_held_longest_goes_first_selected_or_not() -> None:
    """By the time that the session remembers: over a restart, too."""
    drained = policy(steps=list(STEPS), **RECOVER, **TIER, limits={"rate": {"drain": "1/1h"}})
    made = Bench(drained, guards=ledger(budgets=[{"maxUnavailable": "100%", "per": "cluster"}]))
    mine = {**GPU, "tier": "a"}
    made.see(node("n2", faults=(xid(),), labels=mine), node("n1", labels=mine))
    made.decide()
    made.now += MINUTE
    made.fault(xid(), name="n1")
    made.decide()
    made.change("n2", labels=GPU)
    made.ledger = ledger(budgets=[{"maxUnavailable": "100%", "per": "cluster"}])
    made.now += 10 * MINUTE
    for name in ("n1", "n2"):
        made.fault(xid(), name=name)
    made.decide()
    made.decide()
    assert made.works["drain"].node == "n2"


def test_a_node_that_is_no_gpu_node_any_more_recovers_and_gets_no_further_step() -> None:
    made = begun({"cordon": {}}, DRAIN)
    made.change(gpu=False)
    decision = made.one(seconds=1.0)
    assert [one.guard for one in decision.holds] == ["scope"]
    assert not made.works
    recovered(made)


# -- what is still there of the faults ----------------------------------------------------


QUERY = QueryClause.model_validate({"promql": "up == 0"})
INSTANCES = (
    "xid:79:0000:9b:00.0:boot-1",
    "condition:GPULost=True",
    alert().instance,
    f"query:{QUERY.key}",
)


@pytest.mark.parametrize("instance", INSTANCES)
@pytest.mark.parametrize("there", [True, False])
def test_a_fault_is_there_by_both_ways_to_ask_or_by_none(instance: str, *, there: bool) -> None:
    lost = condition("GPULost", "True" if there else "False")
    facts = node(
        faults=(xid(), xid(48)) if there else (xid(48),),
        alerts=(alert(),) if there else (alert("Other"),),
        queries={QUERY.key: query_fact(holds=there)},
        conditions={"GPUXidError": condition("GPUXidError", "True"), "GPULost": lost},
    )
    found = still_there([instance], facts, START, alive())
    answer = instance_answer(instance, facts, START, alive())
    assert found.holds is there is (answer is Answer.HOLDS)
    assert found.instances == ((instance,) if there else ())


def test_an_unknown_kind_is_not_there() -> None:
    for one in ("new:thing", "condition:nonsense", "query:other", "xid:79:elsewhere:boot-1"):
        assert not still_there([one], node(faults=(xid(),)), START, ClusterFacts()).holds


def test_what_is_still_there_tells_how_bad_it_is_and_whether_to_trust_it() -> None:
    failing = SourceFact(ok=False, since=0.0, why="connection refused")
    known = ClusterFacts(sources={"alertmanager/main": failing, "prometheus/main": failing})
    facts = node(
        faults=(xid(severity=Severity.FATAL),),
        alerts=(alert(),),
        queries={QUERY.key: query_fact(holds=True, source="main")},
    )
    by_log = still_there([INSTANCES[0]], facts, START, known)
    assert (by_log.severity, by_log.doubt, by_log.fresh) == (Severity.FATAL, "", True)
    assert not still_there([INSTANCES[0]], facts, START + 1e5, known).fresh
    assert "alertmanager/main" in still_there([INSTANCES[2]], facts, START, known).doubt
    assert "prometheus/main" in still_there([INSTANCES[3]], facts, START, known).doubt
    assert not still_there([INSTANCES[3]], facts, START + 1e5, known).fresh
    together = still_there(INSTANCES, facts, START, known)
    assert together.doubt == "", "one that can be trusted is enough"


def test_a_query_that_the_edited_policy_asks_no_more_is_left_to_people() -> None:
    made = Bench(policy(when=[{"query": {"promql": "up == 0"}}], **RECOVER))
    made.see(node(queries={QUERY.key: query_fact(holds=True)}))
    made.one()
    assert made.cordoned()
    made.policies = policies(policy(when=[{"query": {"promql": "up == 1"}}], **RECOVER))
    made.change(queries={})
    for _ in range(2):
        made.one(seconds=MINUTE)
    decision = made.one(seconds=MINUTE)
    assert "the edited policy asks for it no more" in decision.holds[0].reason
    assert "ends by hand" in made.texts()
    assert made.cordoned()
