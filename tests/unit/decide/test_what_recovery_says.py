"""On its way to an end, a session says what it waits for, and whom it asks."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.decide.decision import Hold, SendMessage
from remediator.decide.facts import ConditionFact
from remediator.decide.requests import Request, Verb
from remediator.decide.session import History
from remediator.policy.quantities import parse_duration
from tests.unit.decide.build import START, Bench, condition, node, policy, xid


def cordoned(**spec: Any) -> Bench:
    bench = Bench(policy(**spec))
    bench.see(node(faults=(xid(),)))
    bench.one()
    assert bench.cordoned()
    bench.now += 1.0
    return bench


def test_a_wait_for_health_says_how_long_and_until_when() -> None:
    bench = cordoned(recover={"for": "3m"})
    bench.fault()
    (hold,) = bench.one().holds
    assert hold == Hold("bus", "recovery", "clear, and must stay so for 3m", START + 181)


HOUR = 3600.0
DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("attempts", "given", "lasts"),
    [
        ((), "10m", "10m"),
        ((START - HOUR,), "10m", "20m"),
        ((START - 3 * HOUR, START - 2 * HOUR, START - HOUR), "10m", "1h20m"),
        ((START - DAY - 1.0, START - HOUR), "10m", "20m"),
        (tuple(START - one for one in range(1000)), "10m", "4h"),
        ((START - HOUR,), "6h", "6h"),
        ((START - HOUR,), "0s", "0s"),
    ],
    ids=["first", "second", "fourth", "a day ago", "at most", "longer than that", "none"],
)
def test_a_node_that_came_back_must_be_well_for_twice_as_long(
    attempts: tuple[float, ...], given: str, lasts: str
) -> None:
    bench = Bench(policy(recover={"for": given}, limits={"maxAttempts": 2000}))
    bench.see(node(faults=(xid(),), history=History(attempts=attempts)))
    bench.one()
    bench.now += 1.0
    bench.fault()
    decision = bench.one()
    if lasts == "0s":
        assert not bench.cordoned()
        return
    (hold,) = decision.holds
    longer = f": {given}, doubled for each attempt before within 24 h" if lasts != given else ""
    assert hold.reason == f"clear, and must stay so for {lasts}{longer}"
    due = hold.look_again
    assert due == START + 1.0 + parse_duration(lasts)
    bench.now = due - 1.0
    bench.fault()
    bench.one()
    assert bench.cordoned()
    bench.one(seconds=1.0)
    assert not bench.cordoned()


def test_one_that_was_only_told_of_need_not_be_well_for_longer() -> None:
    bench = Bench(policy(steps=[{"notify": {"to": ["log"]}}], recover={"for": "10m"}))
    bench.see(node(faults=(xid(),), history=History(attempts=(START - HOUR,))))
    bench.one()
    bench.now += 1.0
    bench.fault()
    (hold,) = bench.one().holds
    assert hold.reason == "clear, and must stay so for 10m"


def test_a_retry_by_people_begins_anew() -> None:
    bench = Bench(policy(recover={"for": "10m"}, limits={"maxAttempts": 1}))
    bench.see(node(faults=(xid(),), history=History(attempts=(START - HOUR,))))
    bench.one()
    bench.change(request=Request(verb=Verb.RETRY, by="ann", at="now"))
    bench.one(seconds=1.0)
    bench.one(seconds=1.0)
    bench.now += 1.0
    bench.fault()
    (hold,) = bench.one().holds
    assert hold.reason == "clear, and must stay so for 10m"


def test_an_end_by_hand_says_how_and_asks_the_policys_people_once() -> None:
    bench = cordoned(
        recover={"when": "manual", "for": "0s"},
        steps=[{"cordon": {}}, {"notify": {"to": ["oncall"]}}],
    )
    bench.fault()
    (hold,) = bench.one().holds
    why = "clear; recover.when is manual: `remediator cancel n1` undoes it"
    assert hold == Hold("bus", "recovery", why)
    key = f"{bench.session().id}/bus/clear"
    said = bench.sent[key]
    assert isinstance(said, SendMessage)
    assert said.title == "n1: the fault has cleared"
    assert said.policy == "bus"
    assert said.to == ("oncall",)
    assert "`remediator cancel n1`" in said.text


def test_a_step_waits_while_nobody_can_tell_whether_the_fault_is_there() -> None:
    bench = Bench(policy(steps=[{"wait": {"for": "1m"}}, {"cordon": {}}]))
    bench.see(node(faults=(xid(),)))
    bench.one()
    bench.now += 61.0
    bench.fault(status="Unknown")
    decision = bench.one()
    assert not bench.cordoned()
    said = [(one.policy, one.guard, one.reason) for one in decision.holds]
    assert ("bus", "facts", "it cannot be told whether the fault is still there") in said


def test_what_the_policy_sees_now_counts_beside_the_faults_it_began_with() -> None:
    """Another fault of the same policy keeps the node, although the first one is gone."""
    bench = cordoned(recover={"for": "0s"})
    bench.fault(xid(pci="0000:1b:00.0"))
    bench.one()
    assert bench.cordoned()
    bench.now += 1.0
    bench.fault()
    bench.one()
    assert not bench.cordoned()


def test_another_s_word_must_be_newer_than_the_last_step_by_its_beginning_or_a_heartbeat() -> None:
    """Of a node-problem-detector we know no heartbeat: a new status is one."""
    kind = "KernelDeadlock"
    for since, seen, undone in ((0.0, 0.0, False), (1.0, 1.0, True), (0.0, 60.0, True)):
        bench = Bench(
            policy(
                when=[{"condition": {"type": kind, "status": "True"}}],
                recover={"for": "0s"},
            )
        )
        bench.see(node(conditions={kind: condition(kind, "True")}))
        bench.one()
        assert bench.cordoned()
        fine = ConditionFact(kind, "False", "", "", since=START + since, seen=START + seen)
        bench.change(conditions={kind: fine})
        bench.one(seconds=120.0)
        assert bench.cordoned() is not undone
