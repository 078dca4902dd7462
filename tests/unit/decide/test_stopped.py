"""Where automation fails or stops: who hears of it, and that they do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from remediator.decide.decision import Outcome, SendMessage
from remediator.decide.ledger import Pause
from remediator.decide.requests import Request, Verb
from remediator.decide.session import History
from tests.unit.decide.build import Bench, ledger, node, policies, policy, xid


JOB: dict[str, Any] = {"job": {"template": "reset"}, "timeout": "10m"}
NOTIFY: dict[str, Any] = {"notify": {"to": ["team"]}}
HOUR = 3600.0


def bench(*steps: dict[str, Any], **spec: Any) -> Bench:
    """One node with Xid 79, and a policy whose people are the channel ``team``."""
    guards = ledger(
        alertsTo=["oncall"],
        channels={name: {"webhook": {"url": "http://127.0.0.1:1"}} for name in ("oncall", "team")},
        budgets=[{"maxUnavailable": "100%", "per": "cluster"}],
        rates=dict.fromkeys(("cordon", "drain", "job"), "100/1m"),
    )
    made = Bench(policy(steps=[{"cordon": {}}, *steps], **spec), guards=guards)
    made.see(node(faults=(xid(),)))
    return made


def job_fails(made: Bench) -> None:
    while "job" not in made.works:
        made.one(seconds=1.0)
    key = made.works["job"].key
    made.outcomes[key] = Outcome(key=key, delivered=False, note="exit code 3")
    made.one(seconds=1.0)


def told(made: Bench, word: str) -> SendMessage:
    """Return the one message whose key says this."""
    (found,) = [one for key, one in made.sent.items() if word in key.split("/")]
    assert isinstance(found, SendMessage)
    return found


@pytest.mark.parametrize("on_failure", ["hold", "escalate", "continue"])
def test_that_a_step_failed_is_told_to_the_people_of_its_policy(on_failure: str) -> None:
    made = bench(NOTIFY, {**JOB, "onFailure": on_failure})
    job_fails(made)
    assert told(made, "failed").to == ("team",)


def test_a_policy_that_notifies_nobody_has_the_people_of_the_cluster() -> None:
    made = bench(JOB)
    job_fails(made)
    assert told(made, "failed").to == ("oncall",)


def test_the_reminder_of_a_fault_left_to_people_goes_to_those_of_its_policy() -> None:
    made = bench(NOTIFY)
    made.one()
    made.change(request=Request(verb=Verb.CANCEL, by="ann", at="now"))
    made.one(seconds=1.0)
    made.fault(xid())
    made.one(seconds=HOUR + 1.0)
    (reminder,) = [one for key, one in made.sent.items() if key.startswith("reminder/")]
    assert isinstance(reminder, SendMessage)
    assert reminder.to == ("team",)


# -- at least once ------------------------------------------------------------------------------


def next_leader(made: Bench) -> None:
    """Take over: what was sent, and what came of it, was known to the process only."""
    made.sent, made.outcomes = {}, {}


def used_up() -> Bench:
    """A node whose attempts are used up, right after the patch that says so."""
    made = bench(NOTIFY, limits={"maxAttempts": 1})
    made.change(history=History(attempts=(made.now - HOUR,)))
    made.one()
    return made


def failed(on_failure: str) -> Bench:
    """A node on which a step failed, right after the patch that says so."""
    made = bench({**JOB, "onFailure": on_failure}, {"wait": {"for": "10m"}}, NOTIFY)
    job_fails(made)
    return made


STOPS: dict[str, tuple[Callable[[], Bench], str]] = {
    **{one: (partial(failed, one), "failed") for one in ("hold", "escalate", "continue")},
    "used up": (used_up, "escalated"),
}


@pytest.mark.parametrize("stop", STOPS)
def test_the_next_leader_says_again_what_may_not_have_arrived(stop: str) -> None:
    made, word = STOPS[stop][0](), STOPS[stop][1]
    first = told(made, word)
    for _ in range(2):
        next_leader(made)
        made.one(seconds=1.0)
        assert told(made, word) == first


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("delivered", [True, False])
def test_and_nothing_that_arrived_or_was_given_up(stop: str, *, delivered: bool) -> None:
    made, word = STOPS[stop][0](), STOPS[stop][1]
    key = told(made, word).key
    made.outcomes[key] = Outcome(key=key, delivered=delivered)
    made.one(seconds=1.0)
    next_leader(made)
    made.one(seconds=1.0)
    assert not any(word in one.split("/") for one in made.sent)


def test_what_failed_is_not_told_before_it_is_written() -> None:
    made = bench(JOB, NOTIFY)
    while "job" not in made.works:
        made.one(seconds=1.0)
    key = made.works["job"].key
    made.outcomes[key] = Outcome(key=key, delivered=False)
    made.ledger.pause = Pause(by="ann", at="now", all=True)
    made.one(seconds=1.0)
    assert not any("failed" in one.split("/") for one in made.sent)
    made.ledger.pause = None
    made.one(seconds=1.0)
    assert told(made, "failed").to == ("team",)


def test_a_failure_is_told_anew_after_each_retry() -> None:
    made = bench(JOB, NOTIFY)
    job_fails(made)
    first = told(made, "failed").key
    made.change(request=Request(verb=Verb.RETRY, by="ann", at="now"))
    job_fails(made)
    keys = {one for one in made.sent if "failed" in one.split("/")}
    assert len(keys) == 2
    assert first in keys


def test_that_an_escalated_node_is_over_is_told_where_it_was_told_to_have_escalated() -> None:
    made = used_up()
    assert told(made, "escalated").to == ("team",)
    made.change(request=Request(verb=Verb.CANCEL, by="ann", at="now"))
    made.one(seconds=1.0)
    assert told(made, "end").to == ("team",)


def test_a_retry_does_what_was_denied_when_the_attempts_were_used_up() -> None:
    made = bench({"drain": {}}, NOTIFY, limits={"maxAttempts": 1})
    made.change(history=History(attempts=(made.now - HOUR,)))
    for _ in range(3):
        made.one(seconds=1.0)
    assert made.session().escalated
    made.change(request=Request(verb=Verb.RETRY, by="ann", at="now"))
    for _ in range(3):
        made.one(seconds=1.0)
    assert set(made.works) == {"drain"}
    assert made.cordoned()
    key = made.works["drain"].key
    made.outcomes[key] = Outcome(key=key, delivered=True)
    made.one(seconds=1.0)
    results = [(one.action, one.result.value) for one in made.session().holds[0].results]
    assert results == [("cordon", "done"), ("drain", "done")]


def test_a_retry_after_a_failure_goes_on_by_the_steps_that_it_began_with() -> None:
    made = failed("escalate")
    made.policies = policies(policy(steps=[{"cordon": {}}]))
    made.change(request=Request(verb=Verb.RETRY, by="ann", at="now"))
    made.one(seconds=1.0)
    made.one(seconds=1.0)
    assert set(made.works) == {"job"}
