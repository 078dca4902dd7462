"""Which nodes take a place in the budget though nothing keeps pods away from them."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.decide.decision import NodePhase, Outcome
from remediator.decide.ledger import Scope
from tests.unit.decide.build import Bench, ledger, node, policy, xid


CLUSTER = Scope("cluster", "")
DRAIN = {"drain": {}, "timeout": "30m"}
JOB = {"job": {"template": "reset", "maxAttempts": 2}}
HOOK = {"webhook": {"to": "tickets"}}


def bench(*steps: dict[str, Any], **spec: Any) -> Bench:
    """Two nodes of which one is faulty, and one place for both."""
    guards = ledger(
        budgets=[{"maxUnavailable": 1, "per": "cluster"}],
        rates=dict.fromkeys(("cordon", "drain", "job"), "100/1m"),
    )
    made = Bench(policy(steps=list(steps), **spec), guards=guards)
    made.see(node("n1", faults=(xid(),)), node("n2"))
    made.decide()
    return made


def end(made: Bench, action: str, *, well: bool) -> None:
    key = made.works[action].key
    made.outcomes[key] = Outcome(key=key, delivered=well)
    made.now += 1.0
    made.decide()


def taken(made: Bench) -> int:
    return made.ledger.unavailable[CLUSTER]


def is_held(made: Bench) -> str:
    """Let the other node fail, too, and return why nothing is done there."""
    made.now += 1.0
    made.fault(xid(), name="n2")
    decision = made.decide()[1]
    assert "n2" not in {one.node for one in made.works.values()}
    return next(one.reason for one in decision.holds if one.guard == "budget")


@pytest.mark.parametrize("then", ["escalate", "hold"])
def test_a_node_whose_drain_failed_keeps_its_place_without_a_cordon(then: str) -> None:
    made = bench({**DRAIN, "onFailure": then})
    end(made, "drain", well=False)
    assert not made.nodes["n1"].unschedulable
    assert taken(made) == 1
    why = is_held(made)
    assert "1 of 1 nodes that may be unavailable" in why
    assert ("escalated and waiting for people: n1" in why) is (then == "escalate")


def test_a_node_keeps_its_place_between_two_attempts() -> None:
    made = bench(JOB)
    key = made.works["job"].key
    made.outcomes[key] = Outcome(key=key, delivered=False)
    made.fault(xid(), name="n2")
    for _ in range(5):
        made.now += 1.0
        made.decide()
        assert {one.node for one in made.works.values()} <= {"n1"}
        assert taken(made) == 1


def test_a_node_whose_attempts_are_used_up_keeps_its_place() -> None:
    made = bench(DRAIN, limits={"maxAttempts": 1})
    end(made, "drain", well=True)
    for _ in range(4):
        made.fault(name="n1")
        made.now += 301.0
        made.decide()
    assert made.nodes["n1"].session is None
    made.fault(xid(), name="n1")
    assert made.decide()[0].phase is NodePhase.ESCALATED
    assert taken(made) == 1
    assert "escalated and waiting for people: n1" in is_held(made)


@pytest.mark.parametrize("steps", [[DRAIN], [HOOK], [HOOK, {"event": {}}]])
def test_the_place_is_free_when_the_steps_are_done_and_the_node_serves(
    steps: list[dict[str, Any]],
) -> None:
    made = bench(*steps)
    assert taken(made) == 1
    end(made, next(iter(steps[0])), well=True)
    assert made.nodes["n1"].session is not None
    assert taken(made) == 0


def test_what_only_tells_takes_no_place_even_if_it_escalates() -> None:
    made = bench({"notify": {"to": ["log"]}, "onFailure": "escalate", "timeout": "1m"})
    made.now += 61.0
    assert made.decide()[0].phase is NodePhase.ESCALATED
    assert taken(made) == 0
