"""What counts as an attempt to remedy a node: only what took capacity away, or worked."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.decide.answer import Answer
from remediator.decide.decision import NodePhase
from remediator.decide.match import match
from remediator.decide.session import (
    MAX_REMEDIES_SIZE,
    History,
    Remedy,
    decode_history,
    encode,
)
from tests.unit.decide.build import START, Bench, node, policy, xid
from tests.unit.decide.test_work import DRAIN, JOB, bench, end, until


EVENT: dict[str, Any] = {"event": {}}
LOG = {"notify": {"to": ["log"]}}
MARK = {"annotate": {"set": {"example.com/a": "b"}}}


def come_and_go(made: Bench, code: int, times: int) -> None:
    """Have a fault come, be dealt with, and clear for good, so often."""
    for _ in range(times):
        made.fault(xid(code))
        made.one(seconds=1.0)
        for _ in range(10):
            made.fault()
            made.one(seconds=301.0)
        assert made.nodes["n1"].session is None


@pytest.mark.parametrize("steps", [[EVENT], [LOG, EVENT], [MARK]])
def test_sessions_that_only_tell_or_mark_use_no_attempt_up(steps: list[dict[str, Any]]) -> None:
    made = Bench(policy(), policy("told", when=[{"xid": {"codes": [13]}}], steps=steps))
    made.see(node())
    come_and_go(made, 13, 5)
    assert made.nodes["n1"].history.attempts == ()
    made.fault(xid())
    assert made.one(seconds=1.0).phase is NodePhase.IN_SESSION
    assert made.session().attempt == 1


def test_a_policy_that_only_tells_goes_on_when_the_attempts_of_others_are_used_up() -> None:
    told = policy("told", when=[{"xid": {"codes": [13]}}], steps=[EVENT])
    made = Bench(policy(limits={"maxAttempts": 3}), told)
    made.see(node())
    come_and_go(made, 79, 3)
    made.sent.clear()
    made.fault(xid(13))
    decision = made.one(seconds=1.0)
    assert decision.phase is NodePhase.IN_SESSION
    assert "escalated" not in made.texts()
    assert any("/told/0" in key for key in made.sent)


def test_a_node_that_somebody_else_had_cordoned_was_not_remedied() -> None:
    made = Bench(policy())
    made.see(node(unschedulable=True, unavailable_since=START))
    come_and_go(made, 79, 2)
    assert made.nodes["n1"].history.attempts == ()


def test_a_hold_that_came_and_went_beside_another_counts_only_if_it_did_something() -> None:
    told = policy("told", when=[{"xid": {"codes": [13]}}], steps=[EVENT], limits={"maxAttempts": 1})
    made = Bench(policy(recover={"when": "manual"}), told)
    made.see(node())
    for _ in range(3):
        made.fault(xid(), xid(13))
        made.one(seconds=1.0)
        assert made.session().hold("told") is not None
        for _ in range(4):
            made.fault(xid())
            made.one(seconds=301.0)
        assert made.session().hold("told") is None
    assert "escalated" not in made.texts()


def test_the_history_says_which_policy_did_what() -> None:
    made = bench({"cordon": {}}, DRAIN, JOB)
    for action in ("drain", "job"):
        until(made, action)
        end(made, action)
    for _ in range(4):
        made.fault()
        made.one(seconds=301.0)
    history = decode_history(encode(made.nodes["n1"].history), node_uid="uid-n1")
    assert len(history.attempts) == 1
    (remedy,) = history.remedies
    assert remedy.at == history.attempts[0]
    assert remedy.did == {"bus": ("cordon", "drain", "job/reset")}


def test_a_hold_that_let_go_before_the_end_is_in_the_history_too() -> None:
    other = policy("ecc", when=[{"xid": {"codes": [48]}}], steps=[{"taint": {}}])
    made = Bench(policy(), other)
    made.see(node(faults=(xid(), xid(48))))
    made.one()
    for _ in range(4):
        made.fault(xid())
        made.one(seconds=301.0)
    assert made.session().hold("ecc") is None
    for _ in range(4):
        made.fault()
        made.one(seconds=301.0)
    (remedy,) = made.nodes["n1"].history.remedies
    assert remedy.did == {"bus": ("cordon",), "ecc": ("taint",)}


# -- the filter ------------------------------------------------------------------------------


RESETS = History(
    attempts=(START - 900.0, START - 600.0, START - 300.0),
    remedies=(
        Remedy(START - 600.0, {"bus": ("cordon", "job/gpu-reset")}),
        Remedy(START - 300.0, {"hot": ("taint",), "ecc": ("cordon", "job/gpu-reset-all")}),
    ),
)


@pytest.mark.parametrize(
    ("asked", "holds"),
    [
        ({"atLeast": 3}, True),
        ({"atLeast": 2, "steps": ["job"]}, True),
        ({"atLeast": 2, "steps": ["job/gpu-reset"]}, False),
        ({"atLeast": 1, "steps": ["job/gpu-reset"]}, True),
        ({"atLeast": 1, "steps": ["job/gpu-reset"], "within": "5m"}, False),
        ({"atLeast": 1, "steps": ["drain"]}, False),
        ({"atLeast": 2, "steps": ["drain", "taint", "job/gpu-reset"]}, True),
        ({"atLeast": 1, "policies": ["bus"]}, True),
        ({"atLeast": 2, "policies": ["bus"]}, False),
        ({"atLeast": 2, "policies": ["bus", "hot"]}, True),
        ({"atLeast": 1, "policies": ["hot"], "steps": ["job"]}, False),
    ],
)
def test_the_filter_counts_those_in_which_a_policy_began_a_step(
    asked: dict[str, Any],
    holds: bool,  # noqa: FBT001 - of the table
) -> None:
    one = policy(when=[{"xid": {"codes": [79]}, "attempts": asked}])
    found = match(one, node(faults=(xid(),), history=RESETS), START)
    assert found.answer is (Answer.HOLDS if holds else Answer.CLEAR)


def test_a_history_of_an_earlier_version_is_read_and_counts() -> None:
    history = decode_history('{"attempts":[1.5,2],"waivers":[],"last":"recovered"}', node_uid="u")
    assert history.attempts == (1.5, 2.0)
    assert history.remedies == ()


def test_remedies_fill_no_more_than_their_part_of_the_annotation() -> None:
    long = tuple(f"job/{'x' * 60}{n:02}" for n in range(20))
    history = History()
    for n in range(60):
        history = history.with_attempt(START + n, {f"{'p' * 50}-{m}": long for m in range(3)})
    assert len(encode(History(remedies=history.remedies))) < MAX_REMEDIES_SIZE + 100
    assert history.remedies[-1].at == START + 59
    assert len(history.attempts) == 60
