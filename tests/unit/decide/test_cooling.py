"""A breaker with a cooldown closes by itself when its storm is over, and not before."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.decide.decision import SendMessage
from tests.unit.decide.build import START, Bench, ledger, node, policy, xid


LIMITS = {"minNodes": 3, "percent": 1, "window": "5m", "cooldown": "10m"}
NAMES = [f"n{i}" for i in range(10)]


def fleet(**limits: Any) -> Bench:
    guards = ledger(
        budgets=[{"maxUnavailable": 100, "per": "cluster"}],
        rates={"cordon": "1000/1s"},
        breaker=LIMITS | limits,
    )
    made = Bench(policy(), guards=guards)
    made.see(*(node(name) for name in NAMES))
    made.decide()
    return made


def set_faulty(made: Bench, *names: str) -> None:
    """Have agents report that exactly these nodes are faulty, now."""
    for name in NAMES:
        made.fault(*((xid(),) if name in names else ()), name=name)
    made.decide()


def storm(made: Bench) -> None:
    set_faulty(made, *NAMES[:8])
    assert "bus" in made.ledger.breakers


def later(made: Bench, seconds: float, *names: str) -> bool:
    """Tell whether the breaker is open after a time in which these stayed faulty."""
    made.now += seconds
    set_faulty(made, *names)
    return "bus" in made.ledger.breakers


def cordoned(made: Bench) -> list[str]:
    return [name for name, one in made.nodes.items() if one.unschedulable]


def test_without_one_only_people_close_it() -> None:
    made = fleet(cooldown=None)
    storm(made)
    assert later(made, 1.0)
    assert later(made, 1e6)


def test_it_closes_when_the_storm_has_been_over_for_so_long_and_people_are_told() -> None:
    made = fleet()
    storm(made)
    assert later(made, 60.0)
    assert later(made, 599.0)
    assert not later(made, 1.0)
    (key,) = [key for key in made.sent if key.endswith("/over")]
    said = made.sent[key]
    assert isinstance(said, SendMessage)
    assert key == f"breaker/bus/{START:.0f}/over"
    assert said.resolves
    assert said.text == "No more nodes turned bad for 10m."
    later(made, 1.0, "n9")
    assert cordoned(made) == ["n9"]


def test_it_stays_open_while_the_storms_faults_are_there() -> None:
    made = fleet()
    storm(made)
    for _ in range(5):
        assert later(made, 601.0, *NAMES[:8])
    assert cordoned(made) == []


def test_what_is_left_is_dealt_with_when_it_closes() -> None:
    made = fleet()
    storm(made)
    assert later(made, 60.0, "n0", "n1")
    assert not later(made, 600.0, "n0", "n1")
    assert {"n0", "n1"} <= made.ledger.take_woken() | set(cordoned(made))
    made.decide()
    assert cordoned(made) == ["n0", "n1"]
    assert "Still faulty, and dealt with now: n0, n1." in made.texts()


def test_one_more_node_begins_the_cooldown_anew() -> None:
    made = fleet()
    storm(made)
    assert later(made, 60.0, "n0")
    assert later(made, 500.0, "n0", "n9")
    assert later(made, 500.0, "n0", "n9")
    assert not later(made, 100.0, "n0")


def test_a_fault_that_clears_and_returns_begins_it_anew_too() -> None:
    made = fleet()
    storm(made)
    assert later(made, 60.0, "n0")
    assert later(made, 300.0)
    assert later(made, 299.0, "n0")
    assert later(made, 599.0)
    assert not later(made, 1.0)


def test_some_node_is_looked_at_when_it_is_due() -> None:
    made = fleet()
    storm(made)
    made.now += 60.0
    for name in NAMES:
        made.fault(name=name)
    looks = [one.next_look for one in made.decide()]
    assert made.now + 600.0 in looks


def test_a_breaker_of_a_source_cools_down_as_well() -> None:
    made = fleet()
    made.ledger.open_breaker("agents/all", "a storm", made.now)
    set_faulty(made, *NAMES[:4])
    made.now += 1e4
    set_faulty(made, *NAMES[:4])
    assert "agents/all" in made.ledger.breakers
    set_faulty(made)
    made.now += 600.0
    set_faulty(made)
    assert made.ledger.breakers == {}


def test_nodes_that_we_took_out_of_service_are_no_storm() -> None:
    made = fleet()
    set_faulty(made, *NAMES[:3])
    assert len(cordoned(made)) == 3
    set_faulty(made, *NAMES[:6])
    assert "bus" in made.ledger.breakers
    assert later(made, 60.0, *NAMES[:5])
    assert not later(made, 600.0, *NAMES[:5])
    made.decide()
    assert len(cordoned(made)) == 5


@pytest.mark.parametrize("text", ["0s", "59s"])
def test_a_shorter_one_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write 1m or more"):
        fleet(cooldown=text)
