"""What comes by itself is said with its exact time, for each policy of a node."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.decide.decision import Due
from remediator.decide.requests import Request, Verb
from tests.unit.decide.build import START, Bench, condition, node, policy, xid


def bench(*steps: dict[str, Any], **spec: Any) -> Bench:
    made = Bench(policy(steps=[{"cordon": {}}, *steps], **spec))
    made.see(node(faults=(xid(),)))
    return made


@pytest.mark.parametrize(
    ("step", "what", "seconds"),
    [
        ({"wait": {"for": "7m"}}, "the wait is over", 420.0),
        (
            {"wait": {"condition": {"type": "Reset"}}, "timeout": "5m"},
            "no Reset=True in time",
            300.0,
        ),
        (
            {"notify": {"to": ["log"]}, "onFailure": "hold", "timeout": "4m"},
            "no answer to notify in time",
            240.0,
        ),
    ],
)
def test_a_step_that_waits(step: dict[str, Any], what: str, seconds: float) -> None:
    decision = bench(step).one()
    assert decision.dues == (Due("bus", what, START + seconds),)
    assert decision.next_look == START + seconds


def test_a_condition_that_has_to_last() -> None:
    made = bench({"wait": {"condition": {"type": "Reset", "for": "1m"}}, "timeout": "5m"})
    known = made.nodes["n1"].conditions
    made.change(conditions={**known, "Reset": condition("Reset", "True", now=START)})
    dues = made.one().dues
    assert Due("bus", "Reset=True has lasted long enough", START + 60.0) in dues


def test_each_policy_says_its_own() -> None:
    hot = policy("hot", when=[{"condition": {"type": "Hot", "for": "3m"}}])
    made = Bench(policy(steps=[{"cordon": {}}, {"wait": {"for": "7m"}}]), hot)
    facts = node(faults=(xid(),))
    hot_now = {"Hot": condition("Hot", "True", now=START)}
    made.see(node(faults=(xid(),), conditions={**facts.conditions, **hot_now}))
    assert set(made.one().dues) == {
        Due("hot", "the fault has lasted long enough", START + 180.0),
        Due("bus", "the wait is over", START + 420.0),
    }


def test_a_reminder() -> None:
    made = bench()
    made.one()
    made.change(request=Request(verb=Verb.CANCEL, by="ann", at="now"))
    made.one()
    assert Due("bus", "people are reminded", START + 3600.0) in made.one().dues
