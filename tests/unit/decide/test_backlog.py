"""The backlog: what was there before anybody looked is no storm, however late its source speaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remediator.decide.facts import ClusterFacts
from tests.unit.decide.build import START, Bench, alert, ledger, node, policy, query_fact


QUERY: dict[str, Any] = {"promql": "bad == 1", "nodeFrom": ["node"]}
ALERT = {"name": "GpuFell"}
WHENS: dict[str, dict[str, Any]] = {
    "query": {"query": QUERY},
    "alert": {"alert": ALERT},
    "query for a while": {"query": {**QUERY, "for": "2m"}},
    "alert or code": {"any": [{"alert": ALERT}, {"xid": {"codes": [79]}}]},
}


def fleet(when: dict[str, Any]) -> Bench:
    """Ten nodes, and a policy whose source has said nothing yet."""
    guards = ledger(
        budgets=[{"maxUnavailable": 100, "per": "cluster"}], rates={"cordon": "1000/1s"}
    )
    made = Bench(policy(when=[when]), guards=guards)
    made.see(*(node(f"n{i}") for i in range(10)))
    made.decide()
    return made


def hear(made: Bench, at: float | None) -> None:
    """Note when the sources first answered; None: not yet."""
    key = query_key(made)
    known = {} if at is None else {"alertmanager/main": at, f"query:{key}": at}
    made.known = ClusterFacts(heard=known)


def query_key(made: Bench) -> str:
    clause = made.policies.active["bus"].policy.spec.when[0].query
    return clause.key if clause is not None else ""


def names_nodes(made: Bench, numbers: range) -> None:
    """Have the source speak of these nodes from now on."""
    for i in numbers:
        if query_key(made):
            said = query_fact(holds=True, since=made.now, source="main")
            made.change(f"n{i}", queries={query_key(made): said})
        else:
            made.change(f"n{i}", alerts=(alert(since=made.now),))


def cordoned(made: Bench) -> list[str]:
    return [name for name, one in made.nodes.items() if one.unschedulable]


@pytest.mark.parametrize("kind", WHENS)
def test_what_a_source_says_in_its_first_answer_is_a_backlog_however_late(kind: str) -> None:
    made = fleet(WHENS[kind])
    made.now += 40.0
    hear(made, made.now)
    names_nodes(made, range(8))
    made.decide()
    made.now += 130.0
    for one in [one for one in made.nodes.values() if one.queries]:
        fresh = {
            key: replace(fact, seen=made.now, fresh_until=made.now + 90.0)
            for key, fact in one.queries.items()
        }
        made.change(one.name, queries=fresh)
    made.decide()
    assert not made.ledger.breakers
    assert len(made.ledger.watches["bus"].backlog) == 8
    assert len(cordoned(made)) == 8


@pytest.mark.parametrize("kind", ["query", "alert", "alert or code"])
@pytest.mark.parametrize("heard", [None, START - 300.0, START + 39.0])
def test_what_a_source_says_anew_is_a_storm(kind: str, heard: float | None) -> None:
    made = fleet(WHENS[kind])
    hear(made, heard)
    made.decide()
    made.now += 40.0
    names_nodes(made, range(8))
    made.decide()
    assert "bus" in made.ledger.breakers
    assert made.ledger.watches["bus"].backlog == set()


def test_a_node_of_the_first_answer_that_comes_back_counts() -> None:
    made = fleet(WHENS["alert"])
    hear(made, made.now)
    names_nodes(made, range(3))
    made.decide()
    assert len(made.ledger.watches["bus"].backlog) == 3
    made.ledger.watches["bus"].recent.clear()
    made.change("n0", alerts=(), session=None)
    made.decide()
    made.now += 600.0
    names_nodes(made, range(1))
    made.decide()
    assert set(made.ledger.watches["bus"].recent) == {"uid-n0"}
