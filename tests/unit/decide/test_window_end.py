"""A drain that is under way when its policy's windows close: it finishes, or waits, as it says."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.decide.core import World
from remediator.decide.decision import Outcome
from tests.unit.decide.build import Bench, ledger, node, policies, policy, xid


MINUTE = 60.0
CLOSES = 1_000_800.0
"""1970-01-12 14:00 UTC."""
UNTIL_TWO: list[dict[str, Any]] = [{"start": "09:00", "end": "14:00"}]
OPENS = CLOSES + 19 * 60 * MINUTE
PAUSE = {"drain": {"onWindowEnd": "pause"}, "timeout": "30m"}


def draining(step: dict[str, Any], *, world: World = World.REAL, **spec: Any) -> Bench:
    """A node on which a drain is under way, begun within the windows."""
    spec = {"steps": [{"cordon": {}}, step], "windows": UNTIL_TWO} | spec
    made = Bench(
        guards=ledger(
            budgets=[{"maxUnavailable": "100%", "per": "cluster"}],
            rates=dict.fromkeys(("cordon", "drain"), "100/1m"),
        )
    )
    made.world = world
    made.policies = policies(policy(mode="DryRun" if world is World.VIRTUAL else "Enforce", **spec))
    made.see(node(faults=(xid(),)))
    made.now = CLOSES - 5.0
    while not made.works:
        assert made.now < CLOSES, "no drain began"
        made.one(seconds=1.0)
    return made


def suspended(made: Bench) -> bool:
    return made.works["drain"].suspended


@pytest.mark.parametrize("world", World)
def test_it_evicts_nothing_more_until_they_open_and_its_deadline_does_not_run(world: World) -> None:
    made = draining(PAUSE, world=world)
    before = made.works["drain"]
    assert made.one().next_look == CLOSES, "the minute in which it has to stop"
    assert not suspended(made)
    made.now = CLOSES
    (hold,) = made.one().holds
    assert suspended(made)
    assert hold.guard == "windows"
    assert hold.reason == (
        "no further eviction, outside its windows; opens Tue 1970-01-13 09:00 UTC"
    )
    assert hold.look_again == OPENS
    made.now = OPENS
    assert not made.one().holds
    after = made.works["drain"]
    assert (after.suspended, after.key) == (False, before.key)
    assert after.deadline == pytest.approx(before.deadline + OPENS - CLOSES)


@pytest.mark.parametrize(
    ("drain", "spec"),
    [
        ({}, {}),
        ({"onWindowEnd": "finish"}, {}),
        ({"onWindowEnd": "pause"}, {"emergency": True}),
        ({"onWindowEnd": "pause"}, {"windows": []}),
        ({"onWindowEnd": "pause"}, {"windows": [{}]}),
    ],
    ids=["not said", "finish", "an emergency passes windows", "no windows", "all day"],
)
def test_it_goes_on_past_them(drain: dict[str, Any], spec: dict[str, Any]) -> None:
    made = draining({"drain": drain, "timeout": "30m"}, **spec)
    made.now = CLOSES + 5 * MINUTE
    assert not made.one().holds
    assert not suspended(made)


def test_a_blackout_that_begins_pauses_it_too() -> None:
    blackout = {"blackout": True, "start": "14:00", "end": "15:00"}
    made = draining(PAUSE, windows=[blackout])
    made.now = CLOSES
    (hold,) = made.one().holds
    assert hold.reason.startswith("no further eviction, in the blackout 14:00-15:00 UTC; opens")
    assert suspended(made)


def test_the_windows_of_the_policys_new_text_count() -> None:
    made = draining(PAUSE)
    longer = [{"start": "09:00", "end": "20:00"}]
    made.policies = policies(policy(steps=[{"cordon": {}}, PAUSE], windows=longer))
    made.now = CLOSES
    assert not made.one().holds
    assert not suspended(made)


def test_what_ended_before_they_closed_is_recorded_and_recovery_does_not_wait() -> None:
    made = draining(PAUSE, recover={"for": "1m"})
    key = made.works["drain"].key
    made.outcomes[key] = Outcome(key=key, delivered=True)
    made.now = CLOSES
    made.one()
    assert [one.result.value for one in made.session().holds[0].results] == ["done", "done"]
    for _ in range(2):
        made.now += MINUTE
        made.fault()
        made.one()
    assert not made.cordoned()


def test_paused_it_stops_when_its_fault_clears() -> None:
    made = draining(PAUSE, recover={"for": "1m"})
    made.now = CLOSES
    made.one()
    for _ in range(2):
        made.now += MINUTE
        made.fault()
        made.one()
    assert not made.cordoned()
    assert made.nodes["n1"].session is None
