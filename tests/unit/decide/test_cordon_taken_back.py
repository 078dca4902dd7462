"""Cordons that a step took back are not wanted any more; those that were made anew are."""

from __future__ import annotations

from typing import Any

from tests.unit.decide.build import Bench, node, policy, xid


MINUTE = 60.0
WAIT: dict[str, Any] = {"wait": {"for": "1m"}}
THERE_AND_BACK = [{"cordon": {}}, WAIT, {"uncordon": {}}]


def bench(*given: Any, **more: Any) -> Bench:
    made = Bench(*given)
    made.see(node(faults=(xid(),), **more))
    return made


def pass_minutes(made: Bench, minutes: int, *, sick: bool = True) -> None:
    for _ in range(minutes):
        made.fault(*((xid(),) if sick else ()))
        made.one()
        made.one(seconds=MINUTE)
    made.one()


def test_the_cordon_that_it_made_anew_is_not_taken_by_another_policy() -> None:
    again = policy("again", steps=[*THERE_AND_BACK, WAIT, {"cordon": {}}])
    short = policy("short", steps=[{"cordon": {}}, {"wait": {"for": "5m"}}, {"uncordon": {}}])
    made = bench(again, short)
    pass_minutes(made, 8)
    results = {hold.policy: hold.results[-1] for hold in made.session().holds}
    assert results["again"].action == "cordon"
    assert results["short"].note == "another policy holds the cordon"
    assert made.cordoned()


def test_the_cordon_of_another_policy_is_not_left_in_place_by_it() -> None:
    """`recover.when: never` leaves what a policy made and kept, and nothing else."""
    never = policy("never", steps=THERE_AND_BACK, recover={"when": "never", "for": "1m"})
    made = bench(never, policy("undoes", recover={"for": "5m"}))
    pass_minutes(made, 3)
    assert made.cordoned()
    pass_minutes(made, 3, sick=False)
    assert [hold.policy for hold in made.session().holds] == ["undoes"]
    pass_minutes(made, 4, sick=False)
    assert made.nodes["n1"].session is None
    assert not made.cordoned()


def test_what_it_kept_is_left_in_place() -> None:
    never = policy("never", recover={"when": "never", "for": "1m"})
    made = bench(never, policy("undoes", recover={"for": "5m"}))
    pass_minutes(made, 3)
    pass_minutes(made, 8, sick=False)
    assert made.nodes["n1"].session is None
    assert made.cordoned()


def test_an_uncordon_by_people_does_not_begin_again_what_it_took_back() -> None:
    """The node was cordoned before us, so that it is no word against the session."""
    made = bench(policy(steps=[*THERE_AND_BACK, {"event": {}}]), unschedulable=True)
    pass_minutes(made, 3)
    made.change(unschedulable=False, unavailable_since=None)
    for _ in range(4):
        made.one(seconds=1.0)
        assert not made.cordoned()
    assert [one.action for one in made.session().holds[0].results[:1]] == ["cordon"]


def test_an_uncordon_by_people_has_a_policy_that_wants_the_node_out_decide_anew() -> None:
    made = bench(policy(), unschedulable=True)
    pass_minutes(made, 3)
    made.change(unschedulable=False, unavailable_since=None)
    for _ in range(4):
        made.one(seconds=1.0)
    assert made.cordoned()
