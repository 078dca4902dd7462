"""A status that comes and goes: `clearFor` says when its `for` begins anew."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from remediator.decide.facts import NodeFacts
from remediator.decide.match import Answer, match
from remediator.kube.objects import Condition
from remediator.policy.cluster import ClusterSpec
from remediator.policy.when import ConditionClause
from remediator.signals.nodes import MAX_EARLIER, Observation, observe, restart_ages
from tests.unit.decide.build import policy
from tests.unit.kube.build import bare_node


HOT = "Hot"
MINUTE = 60.0
Times = list[tuple[float, str]]


def seen(times: Times, reasons: dict[float, str] | None = None) -> NodeFacts:
    """Return a node whose condition had these statuses from these times on."""
    found: Observation | None = None
    for now, status in times:
        said = Condition(HOT, status, (reasons or {}).get(now, "Fan"), "")
        found = observe(found, bare_node(conditions=(said,)), cluster=ClusterSpec(), now=now)
    assert found is not None
    return found.facts


def answer(facts: NodeFacts, now: float, **clause: Any) -> tuple[Answer, float | None]:
    asked = {"type": HOT, "for": "5m", "clearFor": "1m"} | clause
    found = match(policy(when=[{"condition": asked}]), facts, now)
    return found.answer, found.next_look


FLAPS: Times = [(0.0, "True"), (200.0, "False"), (230.0, "True")]


def test_a_short_break_does_not_begin_anew() -> None:
    facts = seen(FLAPS)
    assert answer(facts, 299.0) == (Answer.PENDING, 300.0)
    assert answer(facts, 300.0)[0] is Answer.HOLDS
    assert answer(facts, 300.0, clearFor="0s") == (Answer.PENDING, 530.0)
    assert answer(facts, 300.0, clearFor="30s") == (Answer.PENDING, 530.0), "as long is too long"


def test_while_it_is_otherwise_it_does_not_hold() -> None:
    assert answer(seen(FLAPS[:2]), 400.0)[0] is Answer.CLEAR


@pytest.mark.parametrize(
    ("times", "due"),
    [
        ([(0.0, "True"), (100.0, "False"), (160.0, "True")], 460.0),
        ([(0.0, "True"), (100.0, "Unknown"), (130.0, "False"), (159.0, "True")], 300.0),
        ([(0.0, "True"), (100.0, "Unknown"), (130.0, "False"), (160.0, "True")], 460.0),
        ([*FLAPS, (240.0, "False"), (250.0, "True")], 300.0),
        (
            [(0.0, "True"), (10.0, "False"), (90.0, "True"), (100.0, "False"), (120.0, "True")],
            390.0,
        ),
    ],
    ids=["a minute", "in two parts", "together a minute", "twice", "a long one before"],
)
def test_how_long_a_break_may_be(times: Times, due: float) -> None:
    assert answer(seen(times), times[-1][0]) == (Answer.PENDING, due)


def test_of_reasons_the_first_of_them_counts() -> None:
    facts = seen(FLAPS, {0.0: "Dust", 230.0: "Fan"})
    assert answer(facts, 240.0, reasons=["Fan"]) == (Answer.PENDING, 530.0)
    assert answer(facts, 240.0, reasons=["Dust", "Fan"]) == (Answer.PENDING, 300.0)


def test_after_a_gap_of_our_watch_nothing_of_before_counts() -> None:
    facts = restart_ages(seen(FLAPS), now=250.0, blind_since=240.0)
    assert answer(facts, 260.0) == (Answer.PENDING, 550.0)


def test_what_is_remembered_is_bounded() -> None:
    often = [(float(at), ("True", "False")[at % 2]) for at in range(101)]
    assert len(seen(often).conditions[HOT].earlier) == MAX_EARLIER
    assert all(not one.earlier for one in seen(often).conditions[HOT].earlier)


def test_it_stands_beside_for() -> None:
    with pytest.raises(ValidationError, match="write `for`, too"):
        ConditionClause.model_validate({"type": HOT, "clearFor": "1m"})
