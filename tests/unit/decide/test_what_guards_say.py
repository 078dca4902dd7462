"""Each guard that holds says whose step, which guard, why in words, and when to look again.

And the small print of guards: whom they count, whom they forget.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as msgspec_replace

from remediator.decide.answer import CLEAR
from remediator.decide.candidate import ActivePolicy
from remediator.decide.decision import Hold
from remediator.decide.facts import ClusterFacts, NodeMode, SourceFact
from remediator.decide.guards.breaker import is_forgotten, leave, note
from remediator.decide.ledger import Pause
from remediator.decide.session import HoldState
from tests.unit.decide.build import (
    GPU,
    START,
    Bench,
    alert,
    alive,
    ledger,
    node,
    policy,
    query_fact,
    xid,
)


WIDE = [{"maxUnavailable": "100%", "per": "cluster"}]
FAILING = SourceFact(ok=False, since=0.0, why="connection refused")


def bench_of(count: int = 1, **spec: Any) -> Bench:
    bench = Bench(policy(**spec))
    bench.see(*(node(f"n{number}", faults=(xid(),)) for number in range(count)))
    return bench


def only_hold(bench: Bench, name: str = "n0") -> Hold:
    decision = next(one for one in bench.decide() if one.node == name)
    assert not bench.cordoned(name)
    (hold,) = decision.holds
    assert hold.policy == "bus"
    return hold


# -- what is said --------------------------------------------------------------------------


def paused(reason: str) -> Bench:
    bench = bench_of()
    bench.ledger.pause = Pause(by="alice", at="noon", reason=reason)
    return bench


def settling() -> Bench:
    bench = bench_of()
    bench.ledger = ledger(started=START - 10, settling="1m")
    bench.see(*bench.nodes.values())
    return bench


def opted_out() -> Bench:
    bench = bench_of()  # with nobody to tell, there is no session to begin
    bench.change("n0", mode=NodeMode.NOTIFY_ONLY)
    return bench


def silenced() -> Bench:
    bench = bench_of(when=[{"alert": {"name": "GpuFell"}}])
    bench.known = alive()
    bench.change("n0", faults=(), alerts=(replace(alert(), suppressed=True),))
    return bench


def distrusted() -> Bench:
    bench = bench_of()
    bench.known = ClusterFacts(sources={"watch": FAILING})
    return bench


def spoken_for(**known: object) -> Bench:
    bench = bench_of(unless=[{"alert": {"labels": {"job": "x", "team": "y"}}}])
    bench.known = ClusterFacts(**known)  # type: ignore[arg-type]
    return bench


def asked(source: str = "") -> Bench:
    query = {"promql": "up  ==\n 0", **({"source": source} if source else {})}
    bench = bench_of(unless=[{"query": query}])
    bench.known = ClusterFacts(
        sources={"prometheus/a": FAILING, "prometheus/b": SourceFact(ok=True, since=0.0)}
    )
    return bench


def broken() -> Bench:
    bench = bench_of()
    bench.ledger.open_breaker("bus", "too many", START)
    return bench


def dropped() -> Bench:
    bench = bench_of()
    bench.ledger.storms.drop("bus", {"uid-n0"})
    return bench


def overdrawn() -> Bench:
    bench = bench_of(limits={"budget": {"maxUnavailable": 0, "per": "cluster"}})
    bench.ledger = ledger(budgets=WIDE)
    bench.see(*bench.nodes.values())
    return bench


@pytest.mark.parametrize(
    ("made", "guard", "words", "again"),
    [
        (lambda: paused("upgrade"), "pause", "paused by alice at noon: upgrade", None),
        (lambda: paused(""), "pause", "paused by alice at noon", None),
        (opted_out, "opt-out", "the node says gpu-remediator.io/mode: notify-only", None),
        (settling, "settling", "the controller took over less than 1m ago", START + 50),
        (silenced, "silence", "is silenced or inhibited in main: the node stays as it is", None),
        (distrusted, "sources", "our watch of the nodes: connection refused", START + 60),
        (
            lambda: spoken_for(sources={"alertmanager/main": FAILING}),
            "unless",
            "cannot be told: whether alert job=x, team=y fires: connection refused",
            START + 60,
        ),
        (
            lambda: asked("a"),
            "unless",
            "cannot be told: query up == 0: prometheus/a: connection refused",
            START + 60,
        ),
        (
            lambda: asked("b"),
            "unless",
            "cannot be told: query up == 0: it has not been answered",
            START + 60,
        ),
        (
            broken,
            "breaker",
            "breaker open: too many; `remediator breaker reset bus` closes it",
            None,
        ),
        (
            dropped,
            "breaker",
            "left alone by a breaker reset until its fault clears and returns",
            None,
        ),
        (
            overdrawn,
            "budget",
            "0 of 0 nodes that may be unavailable in the cluster are (maxUnavailable: 0)",
            None,
        ),
    ],
)
def test_a_hold_says_who_what_why_and_when(
    made: Callable[[], Bench], guard: str, words: str, again: float | None
) -> None:
    hold = only_hold(made())
    assert hold.guard == guard
    assert hold.reason.endswith(words)
    assert hold.look_again == again


@pytest.mark.parametrize(
    ("limits", "cluster", "whose"),
    [
        ({"rate": {"cordon": "1/10m"}}, {"cordon": "9/10m"}, "the policy's"),
        ({}, {"cordon": "1/10m"}, "the cluster's"),
    ],
)
def test_a_rate_says_whose_it_is(
    limits: dict[str, object], cluster: dict[str, str], whose: str
) -> None:
    bench = bench_of(2, limits=limits)
    bench.ledger = ledger(budgets=WIDE, rates=cluster)
    bench.see(*bench.nodes.values())
    decisions = {one.node: one for one in bench.decide()}
    (hold,) = decisions["n1"].holds
    assert (hold.policy, hold.guard) == ("bus", "rate")
    assert hold.reason == f"{whose} rate of 1/10m cordons per pool is used up"
    assert hold.look_again == START + 600


def test_escalated_nodes_that_use_up_a_budget_are_named_up_to_three() -> None:
    bench = Bench(policy(), guards=ledger(budgets=[{"maxUnavailable": 4, "per": "cluster"}]))
    bench.see(*(node(f"n{number}", faults=(xid(),)) for number in range(4)))
    bench.decide()
    for number in range(4):
        session = bench.session(f"n{number}")
        stuck = tuple(msgspec_replace(one, state=HoldState.ESCALATED) for one in session.holds)
        bench.change(f"n{number}", session=msgspec_replace(session, holds=stuck))
    bench.see(node("n4", faults=(xid(),)))
    hold = only_hold(bench, "n4")
    assert hold.reason == (
        "4 of 4 nodes that may be unavailable in the cluster are (maxUnavailable: 4)"
        "; escalated and waiting for people: n0, n1, n2"
    )


# -- whom the breaker counts ---------------------------------------------------------------


def test_nodes_out_of_scope_do_not_dilute_the_breaker() -> None:
    """Of 4 GPU nodes half are believable, however many others the cluster has."""
    bench = Bench(policy(), guards=ledger(budgets=WIDE, breaker={"minNodes": 1, "percent": 50}))
    bench.see(*(node(f"n{number}") for number in range(4)))
    bench.see(*(node(f"cpu{number}", gpu=False) for number in range(96)))
    bench.decide()
    bench.now += 10
    for number in range(3):
        bench.fault(xid(), name=f"n{number}")
    bench.decide()
    opened = bench.ledger.breakers["bus"]
    assert opened.why == "3 nodes newly matched within 5m, 2 of 4 are believable"


def test_a_node_that_leaves_is_not_counted_any_more() -> None:
    bench = Bench(policy(), guards=ledger(budgets=WIDE, breaker={"minNodes": 1, "percent": 50}))
    bench.see(*(node(f"n{number}") for number in range(4)))
    bench.decide()
    active = bench.policies.active["bus"]
    for number in (2, 3):
        leave(active, f"uid-n{number}", bench.ledger)
    assert bench.ledger.watches["bus"].scope == {"uid-n0", "uid-n1"}
    leave(ActivePolicy(policy("other"), 0.0), "uid-n0", bench.ledger)  # never looked at: no matter


def test_a_well_node_is_forgotten_only_when_nothing_is_left_to_note() -> None:
    bench = bench_of(0)
    bench.see(node("n0"), node("n1", faults=(xid(),)))
    active = bench.policies.active["bus"]
    assert not is_forgotten(active, "uid-n0", bench.ledger)
    bench.decide()
    assert is_forgotten(active, "uid-n0", bench.ledger)
    assert not is_forgotten(active, "uid-n1", bench.ledger)
    assert not is_forgotten(active, "uid-else", bench.ledger)
    assert not is_forgotten(ActivePolicy(active.policy, 5.0), "uid-n0", bench.ledger)
    bench.ledger.storms.drop("bus", {"uid-n0"})
    assert not is_forgotten(active, "uid-n0", bench.ledger)
    bench.ledger.storms.undrop("bus", "uid-n0")
    bench.ledger.storms.drop("other", {"uid-n0"})
    assert is_forgotten(active, "uid-n0", bench.ledger)


def test_a_backlog_is_over_when_its_fault_clears_once() -> None:
    bench = bench_of(1)
    bench.decide()
    active = bench.policies.active["bus"]
    assert "uid-n0" in bench.ledger.watches["bus"].backlog
    bench.now += 10
    bench.fault(name="n0")
    bench.decide()
    assert bench.ledger.watches["bus"].backlog == set()
    assert bench.ledger.watches["bus"].matching == {}
    assert is_forgotten(active, "uid-n0", bench.ledger)


# -- a cordon of a node that is gone anyway ------------------------------------------------


def test_a_held_node_is_looked_at_when_it_will_have_been_gone_for_long() -> None:
    bench = bench_of(0)
    bench.ledger = ledger(budgets=[{"maxUnavailable": 0, "per": "cluster"}])
    bench.see(node("n0", faults=(xid(),), ready=False, unavailable_since=START - 100))
    hold = only_hold(bench)
    assert hold.look_again == START + 200


def test_an_answered_query_is_no_doubt() -> None:
    bench = asked()
    key = bench.policies.active["bus"].policy.spec.unless[0].query
    assert key is not None
    bench.known = replace(bench.known, queries={key.key: False})
    bench.change("n0", queries={key.key: query_fact(holds=False)})
    bench.decide()
    assert bench.cordoned("n0")


def test_where_there_is_nothing_to_note_noting_it_changes_nothing() -> None:
    bench = Bench(policy())
    bench.see(*(node(f"n{at}") for at in range(4)))
    steps: list[Callable[[], object]] = [
        lambda: bench.fault(xid(), name="n1"),
        lambda: bench.fault(name="n1"),
        lambda: bench.change("n2", labels={}),
        lambda: bench.change("n2", labels=GPU),
        lambda: bench.ledger.open_breaker("bus", "a storm", bench.now),
        lambda: bench.fault(xid(), name="n3"),
        lambda: bench.ledger.reset_breaker("bus", keep=False),
        lambda: bench.fault(name="n3"),
        lambda: bench.ledger.forget("uid-n0"),
    ]
    known = 0
    for step in steps:
        step()
        bench.decide()
        for facts in bench.nodes.values():
            active = bench.policies.active["bus"]
            if not is_forgotten(active, facts.uid, bench.ledger):
                continue
            known += 1
            before = deepcopy(bench.ledger.storms.watches), deepcopy(bench.ledger.dropped)
            bench.ledger.take_changed()
            assert note(active, facts, CLEAR, bench.ledger, bench.now) == (bench.now, ())
            assert (bench.ledger.storms.watches, bench.ledger.dropped) == before
            assert not bench.ledger.take_changed()
    assert known > len(steps)
