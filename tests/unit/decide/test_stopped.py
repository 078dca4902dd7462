"""Where automation fails or stops: who hears of it, and that they do."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.decide.decision import Outcome, SendMessage
from remediator.decide.session import Request, Verb
from tests.unit.decide.build import Bench, ledger, node, policy, xid


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
