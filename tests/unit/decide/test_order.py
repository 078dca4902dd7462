"""Who comes first when places are few: the longest unhealthy, also after a restart."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from remediator.decide.facts import NodeFacts
from remediator.decide.instances import unhealthy_since
from tests.unit.decide.build import (
    START,
    Bench,
    alert,
    condition,
    ledger,
    node,
    policy,
    query_fact,
    xid,
)


CODE = policy()
LOST = policy(when=[{"condition": {"type": "GPULost"}}])
FELL = policy(when=[{"alert": {"name": "GpuFell"}}])


def at(ago: float) -> datetime:
    return datetime.fromtimestamp(START - ago, UTC)


def coded(name: str, ago: float, **more: Any) -> NodeFacts:
    """Return a node whose agent saw its fault first so long ago."""
    return node(name, faults=(replace(xid(), first_seen=at(ago)),), **more)


def lost(name: str, ago: float) -> NodeFacts:
    facts = {"GPULost": condition("GPULost", "True")}
    return coded(name, ago, conditions={**coded(name, ago).conditions, **facts})


def fell(name: str, ago: float) -> NodeFacts:
    return node(name, alerts=(alert(starts_at=START - ago),))


def first_served(made: Bench) -> str:
    made.decide()
    (name,) = [name for name, one in made.nodes.items() if one.unschedulable]
    return name


@pytest.mark.parametrize(
    ("given", "sick"), [(CODE, coded), (LOST, lost), (FELL, fell)], ids=["code", "own", "alert"]
)
def test_a_new_controller_serves_the_longest_unhealthy_first(given: Any, sick: Any) -> None:
    made = Bench(given, guards=ledger(budgets=[{"maxUnavailable": 1, "per": "cluster"}]))
    made.see(sick("a", 60.0), sick("b", 3600.0), sick("c", 600.0))
    assert first_served(made) == "b"


@pytest.mark.parametrize(
    ("ago", "created", "since"),
    [
        (60.0, START - 500.0, START - 60.0),
        (-3600.0, START - 500.0, START),
        (1e9, START - 500.0, START - 500.0),
        (60.0, START + 5.0, START),
    ],
    ids=["told", "a clock that runs ahead", "a clock that is far behind", "created since"],
)
def test_a_time_of_another_clock_is_not_believed_too_far(
    ago: float, created: float, since: float
) -> None:
    facts = coded("n", ago, created=created)
    assert unhealthy_since(("xid:79:0000:9b:00.0:boot-1",), facts, START) == since


@pytest.mark.parametrize(
    "instance",
    ["query:abc", "condition:KernelDeadlock=True", "xid:48:0000:9b:00.0:boot-1", "alert:main/X:0"],
)
def test_what_nobody_dates_counts_from_when_we_saw_it(instance: str) -> None:
    facts = node(faults=(xid(),), queries={"abc": query_fact(holds=True)}, alerts=(alert(),))
    assert unhealthy_since((instance,), facts, START) == START


def test_severity_still_comes_before_age() -> None:
    mild = policy("mild", when=[{"condition": {"type": "KernelDeadlock"}}])
    made = Bench(CODE, mild, guards=ledger(budgets=[{"maxUnavailable": 1, "per": "cluster"}]))
    made.see(coded("z", 1.0))
    stated = {"KernelDeadlock": condition("KernelDeadlock", "True", now=START - 9000.0)}
    made.see(node("a", conditions={**node("a").conditions, **stated}))
    assert first_served(made) == "z"
