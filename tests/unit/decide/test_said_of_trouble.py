"""What people are told, to the word, of a step that failed, attempts used up, a policy gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remediator.decide.decision import Outcome, SendMessage, Urgency, Work
from remediator.decide.session import History, HoldState, Remedy, Result
from tests.unit.decide.build import (
    START,
    Bench,
    alert,
    alive,
    ledger,
    node,
    patch_of,
    policies,
    policy,
    xid,
)


OPS = {"notify": {"to": ["ops"]}}
DRAIN = {"drain": {}, "timeout": "5m"}
XID = "Xid 79 on 0000:9b:00.0"


def bench(*steps: dict[str, Any], history: History | None = None) -> Bench:
    made = Bench(policy(steps=list(steps)))
    made.see(node(faults=(xid(),), history=history or History()))
    made.one()
    return made


def told(made: Bench, kind: str) -> SendMessage:
    (found,) = [
        one for one in made.sent.values() if isinstance(one, SendMessage) and one.kind == kind
    ]
    return found


@pytest.mark.parametrize(
    ("on_failure", "urgency", "then"),
    [
        ("continue", Urgency.WARNING, "The remediation goes on with the next step."),
        (
            "hold",
            Urgency.CRITICAL,
            "The remediation stops here; `remediator retry n1` runs the step again.",
        ),
    ],
)
def test_a_step_that_failed_is_told_of_with_what_comes_then(
    on_failure: str, urgency: Urgency, then: str
) -> None:
    made = bench({"cordon": {}}, {**DRAIN, "onFailure": on_failure}, OPS)
    made.one(seconds=1.0)
    key = made.works["drain"].key
    made.outcomes[key] = Outcome(key=key, delivered=False, note="a budget of pods forbids it")
    made.one(seconds=1.0)
    said = told(made, "failed")
    assert (said.title, said.text) == (
        "n1: drain failed",
        f"a budget of pods forbids it. {then}",
    )
    assert (said.to, said.policy, said.step) == (("ops",), "bus", 1)
    assert said.urgency is urgency
    hold = made.session().holds[0]
    assert hold.results[1].untold == said.key
    made.outcomes[said.key] = Outcome(key=said.key, delivered=True)
    made.one(seconds=1.0)
    assert all(one.untold == "" for one in made.session().holds[0].results)
    made.sent.clear()
    made.one(seconds=1.0)
    assert not [one for one in made.sent.values() if getattr(one, "kind", "") == "failed"]


def test_what_is_not_known_to_have_arrived_is_said_again_under_the_same_key() -> None:
    made = bench({"cordon": {}}, {**DRAIN, "onFailure": "hold"}, OPS)
    made.one(seconds=1.0)
    key = made.works["drain"].key
    made.outcomes[key] = Outcome(key=key, delivered=False, note="no")
    made.one(seconds=1.0)
    first = told(made, "failed")
    made.sent.clear()
    made.one(seconds=10.0)
    assert told(made, "failed") == first


def test_who_is_out_of_attempts_is_told_loudly_and_what_starts_it_again() -> None:
    past = tuple(START - 60.0 * at for at in (3, 2, 1))
    did = tuple(Remedy(at, {"bus": ("cordon", "drain")}) for at in past)
    made = bench({"cordon": {}}, DRAIN, OPS, history=History(attempts=past, remedies=did))
    assert made.session().holds[0].state is HoldState.ESCALATED
    said = told(made, "escalated")
    assert said.title == "n1: escalated"
    assert said.text == (
        f"{XID} came back for attempt 4 within 24 h. "
        "Automation has ended; `remediator retry n1` starts it again."
    )
    assert (said.to, said.policy, said.urgency) == (("ops",), "bus", Urgency.CRITICAL)
    assert said.key == f"{made.session().id}/bus/escalated"
    assert made.session().holds[0].untold == said.key
    made.outcomes[said.key] = Outcome(key=said.key, delivered=True)
    made.one(seconds=1.0)
    assert made.session().holds[0].untold == ""


def test_of_a_policy_that_is_gone_people_are_told_what_they_can_do() -> None:
    made = bench({"cordon": {}}, DRAIN, OPS)
    made.one(seconds=1.0)
    work = made.works["drain"]
    made.policies = policies()
    decision = made.one(seconds=1.0)
    why = (
        "removed, or not in force here any more: nothing further is done and nothing undone; "
        "`remediator cancel n1` undoes it, `remediator release n1` keeps it"
    )
    assert ("bus", "policy", why, None) in decision.holds
    said = told(made, "orphaned")
    assert (said.key, said.title) == (
        f"{made.session().id}/bus/orphaned",
        "n1: policy bus is gone",
    )
    assert said.text == f"Policy bus is {why}."
    assert (said.to, said.policy) == (("ops",), "bus")
    last = made.session().holds[0].results[-1]
    assert (last.step, last.result, last.at) == (1, Result.CANCELLED, made.now)
    assert last.note == "its policy is gone, or in force no more"
    assert work.key not in [one.key for one in decision.effects if isinstance(one, Work)]
    assert made.cordoned()


def test_a_leader_that_has_just_taken_over_waits_for_a_policy_that_it_does_not_know() -> None:
    made = bench({"cordon": {}}, DRAIN, OPS)
    made.one(seconds=1.0)
    before = made.session()
    made.ledger = ledger(started=made.now, settling="1m")
    made.policies = policies()
    made.sent.clear()
    made.see(replace(made.nodes["n1"]))
    decision = made.one(seconds=1.0)
    why = "not in force here, as far as this leader knows, which has just taken over: it waits"
    assert ("bus", "policy", why, made.now + 59.0) in decision.holds
    assert made.session() == before
    assert not made.sent


def test_two_drains_on_a_node_come_one_after_the_other_and_the_second_says_for_what_it_waits() -> (
    None
):
    made = Bench(
        policy("a", steps=[{"cordon": {}}, DRAIN]), policy("b", steps=[{"cordon": {}}, DRAIN])
    )
    made.see(node(faults=(xid(),)))
    made.one()
    decision = made.one(seconds=1.0)
    (drain,) = [one for one in decision.effects if isinstance(one, Work)]
    other = "b" if drain.policy == "a" else "a"
    says = [(one.policy, one.guard, one.reason) for one in decision.holds]
    assert (other, "order", f"{drain.policy} has a drain under way on this node") in says
    session = made.session()
    assert (drain.uid, drain.step, drain.session) == ("uid-n1", 1, session.id)
    made.outcomes[drain.key] = Outcome(key=drain.key, delivered=True)
    made.one(seconds=1.0)
    made.one(seconds=1.0)
    assert made.works["drain"].policy == other


@pytest.mark.parametrize(
    ("source", "which", "about"),
    [("bus", "of this policy", "bus"), ("agents/all", "that rests on this source", "")],
)
def test_of_an_open_breaker_people_are_told_once_and_how_to_close_it(
    source: str, which: str, about: str
) -> None:
    codes = (79,) if about else (79, 48, 119, 64)
    given = [
        policy("bus" if about else f"xid-{one}", when=[{"xid": {"codes": [one]}}]) for one in codes
    ]
    made = Bench(*given, guards=ledger(alertsTo=["log"]))
    names = [f"n{at:02}" for at in range(20)]
    made.see(*(node(name) for name in names))
    made.decide()
    made.now += 1.0
    for at, name in enumerate(names[:12]):
        made.fault(xid(codes[at % len(codes)]), name=name)
    made.decide()
    said = {one.key: one for one in made.sent.values() if getattr(one, "kind", "") == "breaker"}
    one = said[f"breaker/{source}/{made.now:.0f}"]
    assert isinstance(one, SendMessage)
    assert (one.to, one.title) == (("log",), f"breaker of {source} opened")
    assert f". No new disruptive step {which}; recovery goes on. " in one.text
    assert f"`remediator breaker reset {source}` leaves the present faults alone" in one.text
    assert (one.policy, one.urgency) == (about, Urgency.CRITICAL)


def test_of_facts_that_went_stale_the_policy_s_people_are_told() -> None:
    made = bench({"cordon": {}}, OPS)
    made.one(seconds=3600.0)
    said = told(made, "stale")
    assert said.key == f"{made.session().id}/bus/stale"
    assert said.title.startswith("n1: ")
    assert said.text == ("The facts that policy bus rests on are stale; the node stays as it is.")
    assert (said.to, said.policy) == (("ops",), "bus")
    made.sent.clear()
    made.fault(xid())
    made.one(seconds=1.0)
    assert not [one for one in made.sent.values() if getattr(one, "kind", "") == "stale"]


def test_of_an_alert_that_is_gone_and_proves_nothing_the_policy_s_people_are_told() -> None:
    when = [{"alert": {"name": "GpuFell"}}]
    steps = [{"cordon": {}}, OPS]
    made = Bench(policy(when=when, steps=steps, recover={"when": "cleared", "for": "10m"}))
    made.known = alive(alive=False)
    made.see(node(alerts=(alert(),)))
    made.one()
    made.change(alerts=())
    decision = made.one(seconds=1.0)
    since = made.now
    gone = "its alert or query is gone, which proves nothing"
    why = f"{gone}: `remediator cancel n1` ends it"
    assert ("bus", "facts", why, None) in decision.holds
    assert decision.next_look is not None
    assert decision.next_look <= since + 600.0
    made.now = since + 599.0
    made.one()
    assert not [one for one in made.sent.values() if getattr(one, "kind", "") == "unproven"]
    made.now = since + 600.0
    made.one()
    said = told(made, "unproven")
    assert said.key == f"{made.session().id}/bus/unproven"
    assert said.title == "n1: ends by hand"
    assert said.text.endswith(
        f": {gone} that the node is well. Policy bus holds it until `remediator cancel n1`."
    )
    assert (said.to, said.policy) == (("ops",), "bus")


def test_an_alert_that_came_back_and_went_again_is_waited_for_anew() -> None:
    made = Bench(policy(when=[{"alert": {"name": "GpuFell"}}], recover={"for": "10m"}))
    made.known = alive(alive=False)
    made.see(node(alerts=(alert(),)))
    made.one()
    for there in ((), (alert(),), ()):
        made.change(alerts=there)
        made.one(seconds=500.0)
    assert not [one for one in made.sent.values() if getattr(one, "kind", "") == "unproven"]


def test_of_a_node_to_which_nothing_can_be_written_people_are_told_loudly() -> None:
    made = Bench(policy(steps=[{"cordon": {}}]))
    made.see(node(faults=(xid(),)))
    since = made.now
    for _ in range(40):
        made.fault(xid())
        for decision in made.decide(write=False):
            patch = patch_of(decision)
            if patch is not None:
                made.ledger.refusals.refused(patch, "the policy says no")
                made.ledger.refund(patch.uid)
        made.now += 31.0
    said = told(made, "refused")
    assert said.key == f"refused/uid-n1/{since:.0f}"
    assert (said.title, said.urgency) == (
        "n1: the API server refuses our changes",
        Urgency.CRITICAL,
    )
    assert said.text.endswith(
        "nothing could be written to the node, so nothing is done or undone there: "
        "the policy says no"
    )
    assert said.text.startswith("For ")
