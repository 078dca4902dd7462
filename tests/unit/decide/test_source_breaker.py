"""A breaker of a source: few nodes under each of many policies are a storm, too."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.decide.instances import source_of
from remediator.decide.ledger import Ledger
from remediator.decide.session import Session
from tests.unit.decide.build import (
    START,
    Bench,
    alert,
    condition,
    ledger,
    node,
    policies,
    policy,
    query_fact,
    xid,
)


CODES = (79, 48, 119, 64)


def wide(**more: Any) -> Ledger:
    budgets = [{"maxUnavailable": 100, "per": "cluster"}]
    return ledger(**({"budgets": budgets, "rates": {"cordon": "1000/1s"}} | more))


def fleet(*more: Any, guards: Ledger | None = None) -> Bench:
    """Twenty well nodes, and a policy for each of four codes."""
    made = Bench(
        *(policy(f"xid-{code}", when=[{"xid": {"codes": [code]}}]) for code in CODES),
        *more,
        guards=guards or wide(),
    )
    made.see(*(node(f"n{i:02}") for i in range(20)))
    made.decide()
    return made


def spread(made: Bench, numbers: range) -> None:
    """Report a fault on each of these nodes, of another code than on its neighbours."""
    for i in numbers:
        made.fault(xid(CODES[i % len(CODES)]), name=f"n{i:02}")
    made.decide()


def in_session(made: Bench) -> list[str]:
    return [name for name, one in made.nodes.items() if isinstance(one.session, Session)]


def test_a_storm_that_is_spread_over_policies_opens_the_breaker_of_their_source() -> None:
    made = fleet()
    spread(made, range(12))
    assert set(made.ledger.breakers) == {"agents/all"}
    assert in_session(made) == []
    made.now += 1.0
    spread(made, range(12, 14))
    for i in range(14, 20):
        made.fault(xid(), name=f"n{i:02}")
    made.decide()
    assert in_session(made) == []
    assert set(made.ledger.breakers) == {"agents/all"}
    said = [key for key in made.sent if key.startswith("breaker/")]
    assert len(said) == 1
    holds = {one.guard: one.reason for one in made.decide()[0].holds}
    assert (
        "breaker of agents/all open: 5 nodes newly matched within 5m, 4 of 20" in holds["breaker"]
    )
    assert "breaker reset agents/all" in holds["breaker"]


def test_few_nodes_over_several_policies_and_many_over_time_open_none() -> None:
    made = fleet()
    for at in range(0, 16, 4):
        spread(made, range(at, at + 4))
        made.now += 301.0
    assert not made.ledger.breakers
    assert len(in_session(made)) == 16


def test_a_node_under_several_policies_is_one_node() -> None:
    made = fleet()
    for i in range(4):
        made.fault(*(xid(code) for code in CODES), name=f"n{i:02}")
    made.decide()
    assert not made.ledger.breakers


def test_a_storm_of_one_policy_opens_that_of_its_source_with_the_next_node_of_another() -> None:
    made = fleet()
    for i in range(8):
        made.fault(xid(), name=f"n{i:02}")
    made.decide()
    assert set(made.ledger.breakers) == {"xid-79"}
    made.fault(xid(48), name="n10")
    made.decide()
    assert set(made.ledger.breakers) == {"xid-79", "agents/all"}
    assert in_session(made) == []


def test_a_policy_that_only_tells_counts_for_itself_alone() -> None:
    told = policy("told", when=[{"xid": {"codes": [31]}}], steps=[{"event": {}}])
    made = fleet(told)
    for i in range(4):
        made.fault(xid(31), name=f"n{i:02}")
    made.decide()
    spread(made, range(10, 13))
    assert not made.ledger.breakers
    assert {"n10", "n11", "n12"} <= set(in_session(made))


def test_other_sources_are_not_stopped_by_it() -> None:
    fell = policy("fell", when=[{"alert": {"name": "GpuFell"}}])
    made = fleet(fell)
    spread(made, range(12))
    made.change("n19", alerts=(alert(since=made.now),))
    made.decide()
    assert in_session(made) == ["n19"]


@pytest.mark.parametrize(
    ("source", "names", "facts"),
    [
        ("alertmanager/main", "alert", {"alerts": True}),
        ("prometheus/main", "query", {"queries": True}),
    ],
)
def test_alerts_and_queries_are_sources_of_their_own(
    source: str, names: str, facts: dict[str, bool]
) -> None:
    if names == "alert":
        whens = [{"alert": {"name": "GpuFell", "labels": {"n": str(n)}}} for n in range(4)]
    else:
        whens = [{"query": {"promql": f"up == {n}", "nodeFrom": ["node"]}} for n in range(4)]
    given = [policy(f"p{n}", when=[one]) for n, one in enumerate(whens)]
    made = fleet(*given)
    for i in range(8):
        if "alerts" in facts:
            made.change(f"n{i:02}", alerts=(alert(since=made.now, n=str(i % 4)),))
        else:
            clause = given[i % 4].spec.when[0].query
            assert clause is not None
            said = {clause.key: query_fact(holds=True, source="main")}
            made.change(f"n{i:02}", queries=said)
    made.decide()
    assert set(made.ledger.breakers) == {source}


def test_reset_drops_what_matches_now_on_that_source_only() -> None:
    made = fleet(policy("fell", when=[{"alert": {"name": "GpuFell"}}]))
    spread(made, range(12))
    made.ledger.reset_breaker("agents/all", keep=False)
    made.now += 1.0
    made.change("n00", alerts=(alert(since=made.now),))
    spread(made, range(12, 14))
    assert in_session(made) == ["n00", "n12", "n13"]
    holds = [one.policy for one in made.session("n00").holds]
    assert holds[0] == "fell", "what was dropped may join it: it is cordoned already"
    made.fault(name="n05")
    made.decide()
    spread(made, range(5, 6))
    assert "n05" in in_session(made)


def test_reset_that_keeps_goes_on_with_what_matches_now() -> None:
    made = fleet()
    spread(made, range(12))
    made.ledger.reset_breaker("agents/all", keep=True)
    made.decide()
    assert len(in_session(made)) == 12


def test_reset_right_after_a_restart_drops_what_was_not_looked_at_yet() -> None:
    made = fleet(policy("fell", when=[{"alert": {"name": "GpuFell"}}]))
    spread(made, range(12))
    after = Bench(guards=wide())
    after.policies = made.policies
    after.ledger.restore(made.ledger.state())
    after.ledger.reset_breaker("agents/all", keep=False)
    after.see(*made.nodes.values())
    after.change("n19", alerts=(alert(),))
    after.decide()
    assert in_session(after) == ["n19"]


def test_backlogs_and_sessions_are_no_storm_of_a_source_either() -> None:
    made = fleet()
    spread(made, range(4))
    after = Bench(guards=wide())
    after.policies = policies(*(one.policy for one in made.policies.active.values()))
    after.see(*(node(f"n{i:02}", faults=(xid(CODES[i % 4]),)) for i in range(12)))
    after.decide()
    assert not after.ledger.breakers
    assert len(in_session(after)) == 12


@pytest.mark.parametrize(
    ("instance", "source"),
    [
        ("xid:79:0000:9b:00.0:boot-1", "agents/all"),
        ("sxid:20034:0000:9b:00.0:boot-1", "agents/all"),
        ("condition:GPULost=True", "agents/all"),
        ("condition:KernelDeadlock=True", ""),
        ("alert:main/GpuFell:5d41402a", "alertmanager/main"),
        ("query:abc", "prometheus/far"),
        ("query:unknown", ""),
    ],
)
def test_every_instance_names_its_source(instance: str, source: str) -> None:
    facts = node(queries={"abc": query_fact(holds=True, source="far")})
    assert source_of(instance, facts) == source


def test_conditions_of_others_have_no_common_source() -> None:
    whens = [{"condition": {"type": f"Trouble{n}"}} for n in range(4)]
    made = fleet(*(policy(f"p{n}", when=[one]) for n, one in enumerate(whens)))
    for i in range(12):
        stated = {f"Trouble{i % 4}": condition(f"Trouble{i % 4}", "True", now=START)}
        made.change(f"n{i:02}", conditions={**made.nodes[f"n{i:02}"].conditions, **stated})
    made.decide()
    assert not made.ledger.breakers
