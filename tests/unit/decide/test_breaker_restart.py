"""What breakers remember over a restart: a controller that restarts in a storm counts on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from remediator.decide.core import World
from remediator.decide.ledger import Ledger, LedgerState
from remediator.decide.storms import MAX_REMEMBERED, Recent, Storms
from tests.unit.decide.build import START, Bench, ledger, node, policies, policy, xid


WORLDS = {World.REAL: "Enforce", World.VIRTUAL: "DryRun"}


def wide(started: float, **more: Any) -> Ledger:
    budgets = [{"maxUnavailable": 100, "per": "cluster"}]
    return ledger(started=started, budgets=budgets, rates={"cordon": "1000/1s"}, **more)


def restarted(made: Bench) -> Bench:
    """Let another controller take over, which knows the nodes and what was saved."""
    saved = msgspec.json.encode(made.ledger.state())
    after = Bench(guards=wide(made.now))
    after.world, after.now = made.world, made.now
    after.policies = policies(
        *(one.policy for one in made.policies.active.values()), loaded_at=made.now
    )
    after.ledger.restore(msgspec.json.decode(saved, type=LedgerState))
    after.see(*made.nodes.values())
    after.decide()
    return after


def storm(made: Bench, numbers: range, *codes: int) -> None:
    for at, i in enumerate(numbers):
        made.fault(xid((codes or (79,))[at % len(codes or (79,))]), name=f"n{i}")
    made.decide()


def fleet(world: World, *codes: int) -> Bench:
    given = [
        policy(f"xid-{code}", mode=WORLDS[world], when=[{"xid": {"codes": [code]}}])
        for code in codes
    ]
    made = Bench(*given, guards=wide(START))
    made.world = world
    made.see(*(node(f"n{i}") for i in range(10)))
    made.decide()
    return made


@pytest.mark.parametrize("world", World)
def test_a_restart_after_every_third_node_hides_no_storm(world: World) -> None:
    made = fleet(world, 79)
    for at in (0, 3, 6):
        storm(made, range(at, at + 3))
        made.now += 10.0
        made = restarted(made)
    assert "xid-79" in made.ledger.breakers
    assert sum(one.unschedulable for one in made.nodes.values()) == 3


@pytest.mark.parametrize("world", World)
def test_nor_one_that_is_spread_over_policies(world: World) -> None:
    made = fleet(world, 79, 48, 119)
    for at in (0, 3, 6):
        storm(made, range(at, at + 3), 79, 48, 119)
        made.now += 10.0
        made = restarted(made)
    assert set(made.ledger.breakers) == {"agents/all"}


def test_what_was_counted_before_the_window_is_forgotten_over_restarts_too() -> None:
    made = fleet(World.REAL, 79)
    for at in (0, 3, 6):
        storm(made, range(at, at + 3))
        made.now += 301.0
        made = restarted(made)
    assert not made.ledger.breakers


def test_new_matches_are_saved() -> None:
    made = fleet(World.REAL, 79)
    made.ledger.take_changed()
    storm(made, range(2))
    assert made.ledger.take_changed()
    saved = made.ledger.state().recent["xid-79"]
    assert saved["uid-n0"] == Recent(made.now, ("agents/all",))
    storm(made, range(2, 6))
    assert len(made.ledger.state().recent["xid-79"]) == 6
    assert "xid-79" in made.ledger.state().breakers


def test_no_more_is_saved_than_its_bound_and_the_newest_stay() -> None:
    storms = Storms()
    for policy_ in ("a", "b", "c"):
        watch = storms.watch(policy_, 0.0)
        for i in range(MAX_REMEMBERED // 2):
            storms.count(watch, f"u{i}", Recent(float(i), ()))
    saved = storms.recent()
    assert sum(map(len, saved.values())) == MAX_REMEMBERED
    one_more = storms.watches["a"]
    for i in range(MAX_REMEMBERED):
        storms.count(one_more, f"v{i}", Recent(1e6 + i, ()))
    assert f"v{MAX_REMEMBERED - 1}" in storms.recent()["a"]
    assert "u0" not in storms.recent()["a"]


def test_of_dry_run_only_what_breakers_remember_is_saved() -> None:
    made = fleet(World.VIRTUAL, 79)
    storm(made, range(2))
    assert made.ledger.state().starts
    of_breakers = made.ledger.state().of_breakers
    assert of_breakers.starts == {}
    assert of_breakers.recent == made.ledger.state().recent
