"""The view of all nodes: own writes are known at once, and nothing goes back in time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from remediator.decide.facts import NodeFacts
from remediator.kube.objects import Condition, Node
from remediator.policy.cluster import ClusterSpec
from remediator.signals.fleet import Fleet
from tests.unit.kube.build import bare_node


class SetClock:
    """Tells what it was set to."""

    time = 100.0

    def now(self) -> float:
        return self.time


def node(version: int, **changes: Any) -> Node:
    base = bare_node(
        resource_version=str(version),
        conditions=(Condition(type="Ready", status="True"),),
    )
    return msgspec.structs.replace(base, **changes)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def fleet(clock: SetClock) -> Fleet:
    made = Fleet(cluster=ClusterSpec(), clock=clock)
    made.heard = []  # type: ignore[attr-defined]
    made.on_change = lambda facts: heard(made).append(("changed", facts))
    made.on_gone = lambda facts: heard(made).append(("gone", facts))
    return made


def heard(fleet: Fleet) -> list[tuple[str, NodeFacts]]:
    found: list[tuple[str, NodeFacts]] = fleet.heard  # type: ignore[attr-defined]
    return found


def told(fleet: Fleet) -> list[str]:
    return [what for what, _ in heard(fleet)]


def test_our_write_is_known_before_the_watch_and_told_once(fleet: Fleet) -> None:
    fleet.on_event(None, node(1))
    fleet.wrote(node(5, unschedulable=True))
    assert (facts := fleet.get("n1")) is not None
    assert facts.unschedulable
    fleet.on_event(node(1), node(5, unschedulable=True))
    assert told(fleet) == ["changed", "changed"]


def test_an_older_version_of_the_watch_is_skipped(fleet: Fleet) -> None:
    fleet.on_event(None, node(1))
    fleet.wrote(node(10, unschedulable=True))
    fleet.on_event(node(1), node(9))
    assert (facts := fleet.get("n1")) is not None
    assert facts.unschedulable
    fleet.on_event(node(9), node(11))
    assert (facts := fleet.get("n1")) is not None
    assert not facts.unschedulable


def test_a_write_to_a_node_that_is_gone_or_another_one_is_not_taken_in(fleet: Fleet) -> None:
    fleet.wrote(node(5))
    assert fleet.get("n1") is None
    fleet.on_event(None, node(6, uid="u2"))
    fleet.wrote(node(7, unschedulable=True))
    assert (facts := fleet.get("n1")) is not None
    assert (facts.uid, facts.unschedulable) == ("u2", False)


def test_a_replaced_node_goes_and_another_comes(fleet: Fleet) -> None:
    fleet.on_event(None, node(1))
    fleet.on_event(node(1), node(2, uid="u2"))
    assert told(fleet) == ["changed", "gone", "changed"]
    fleet.on_event(node(2, uid="u2"), None)
    assert told(fleet)[-1] == "gone"
    assert len(fleet) == 0


def test_a_heartbeat_is_not_told(fleet: Fleet) -> None:
    fleet.on_event(None, node(1))
    beat = Condition(type="Ready", status="True", last_heartbeat_time="2")
    fleet.on_event(node(1), node(2, conditions=(beat,)))
    assert told(fleet) == ["changed"]
    assert (facts := fleet.get("n1")) is not None
    assert facts.resource_version == "2"


def test_a_heartbeat_that_says_well_is_told_of_a_node_in_a_session_of_dry_run(
    fleet: Fleet, clock: SetClock
) -> None:
    """Recovery rests on what is said after the last step, and that session is on no node."""

    def beat(at: str) -> tuple[Condition, ...]:
        return (Condition(type="GPULost", status="False", last_heartbeat_time=at),)

    fleet.on_event(None, node(1, conditions=beat("1")))
    fleet.on_event(None, node(2, conditions=beat("2")))
    assert told(fleet) == ["changed"]
    clock.time += 300.0
    fleet.follows = lambda facts: facts.name == "n1"
    fleet.on_event(None, node(3, conditions=beat("3")))
    assert told(fleet) == ["changed", "changed"]


def test_after_a_gap_all_ages_begin_anew(fleet: Fleet, clock: SetClock) -> None:
    fleet.on_event(None, node(1))
    clock.time = 500.0
    fleet.blind(60.0)
    assert (facts := fleet.get("n1")) is not None
    assert facts.conditions["Ready"].since == 500.0
    assert told(fleet) == ["changed", "changed"]
