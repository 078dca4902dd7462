"""Steps that only wait: a time, a node condition, a person's approval."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from remediator.decide.core import World
from remediator.decide.decision import Decision
from remediator.decide.requests import Approval, Request, Verb
from remediator.decide.session import HoldState, PolicyHold
from tests.unit.decide.build import START, Bench, condition, node, policy, xid


MINUTE = 60.0
LAST = {"event": {"reason": "After"}}


def bench(*steps: dict[str, Any], **spec: Any) -> Bench:
    made = Bench(policy(steps=list(steps), **spec))
    made.see(node(faults=(xid(),)))
    made.one()
    return made


def hold(made: Bench) -> PolicyHold:
    (found,) = made.session().holds
    return found


def told(made: Bench) -> bool:
    return any(getattr(one, "reason", "") == "After" for one in made.sent.values())


def approval(made: Bench, *, until: float = START + 3600.0, **other: Any) -> Approval:
    given: dict[str, Any] = {"session": made.session().id, "policy": "bus", "step": hold(made).step}
    expires = datetime.fromtimestamp(until, tz=UTC).isoformat()
    return Approval(**{**given, "by": "ann", "at": "noon", "expires": expires, **other})


def guards(decision: Decision) -> list[str]:
    return [one.guard for one in decision.holds]


def test_a_time_passes() -> None:
    made = bench({"cordon": {}}, {"wait": {"for": "10m"}}, LAST)
    decision = made.one(seconds=5 * MINUTE)
    assert not told(made)
    assert decision.next_look is not None
    assert decision.next_look <= START + 10 * MINUTE
    made.one(seconds=5 * MINUTE)
    assert told(made)


def test_a_condition_is_waited_for_as_long_as_it_must_last() -> None:
    wanted = {"condition": {"type": "Reset", "status": "True", "for": "1m"}}
    made = bench({"cordon": {}}, {"wait": wanted}, LAST)
    made.now += 10.0
    conditions = made.nodes["n1"].conditions
    made.change(conditions={**conditions, "Reset": condition("Reset", "True", now=made.now)})
    made.one(seconds=59.0)
    assert not told(made)
    made.one(seconds=1.0)
    assert told(made)


def test_a_condition_that_does_not_come_is_a_failure() -> None:
    wanted = {"condition": {"type": "Reset"}}
    made = bench({"cordon": {}}, {"wait": wanted, "timeout": "5m"}, LAST)
    made.one(seconds=4 * MINUTE)
    assert hold(made).state is HoldState.RUNNING
    made.one(seconds=MINUTE)
    assert hold(made).state is HoldState.HELD
    assert hold(made).results[-1].result == "timed-out"
    assert not told(made)


def test_an_approval_lets_it_go_on_once() -> None:
    made = bench({"cordon": {}}, {"approve": {"message": "Reset it?"}}, {"approve": {}}, LAST)
    decision = made.one(seconds=1.0)
    assert guards(decision) == ["approval"]
    assert "Reset it?" in made.texts()
    assert "remediator approve n1 --policy bus" in made.texts()
    made.change(approvals=(approval(made),))
    made.one()
    assert hold(made).step == 2, "it was for the first of the two"
    assert made.nodes["n1"].approvals == ()
    assert hold(made).results[-1].note == "approved by ann at noon"
    made.change(approvals=(approval(made),))
    made.one()
    assert told(made)


def test_the_record_of_a_step_has_the_words_of_its_approval_however_long() -> None:
    """By them the record of the session tells an approval that was used from one that was not."""
    made = bench({"cordon": {}}, {"approve": {}}, LAST)
    made.one(seconds=1.0)
    given = approval(made, by="a" * 200, at="b" * 200)
    made.change(approvals=(given,))
    made.one()
    assert hold(made).results[1].note == given.note


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"session": "earlier"}, "; the approval of ann is for another session"),
        ({"policy": "other"}, ""),
        ({"step": 0}, "; the approval of ann is for step 1, and this is step 2"),
        ({"until": START - 1.0}, "; the approval of ann has expired, or its time cannot be read"),
        (
            {"expires": "2999-01-01T00:00:00"},
            "; the approval of ann has expired, or its time cannot be read",
        ),
        ({"expires": "tomorrow"}, "; the approval of ann has expired, or its time cannot be read"),
    ],
    ids=["session", "policy", "step", "expired", "no zone", "no time"],
)
def test_an_approval_of_something_else_or_one_that_expired_is_none_and_it_says_why(
    other: dict[str, Any], why: str
) -> None:
    made = bench({"cordon": {}}, {"approve": {}}, LAST)
    made.change(approvals=(approval(made, **other),))
    (held,) = made.one(seconds=1.0).holds
    assert held.reason == f"waits for a person: `remediator approve n1 --policy bus`{why}"
    assert not told(made)
    assert hold(made).step == 1


def test_no_approval_in_time_is_held_and_never_done() -> None:
    made = bench({"cordon": {}}, {"approve": {}, "timeout": "1h"}, LAST)
    made.one(seconds=3600.0)
    made.fault(xid())
    assert hold(made).state is HoldState.HELD
    assert not told(made)
    made.change(request=Request(verb=Verb.RETRY, by="ann", at="now"))
    made.one(seconds=1.0)
    made.change(approvals=(approval(made, until=made.now + 60.0),))
    made.one(seconds=1.0)
    assert told(made)


def test_the_end_of_a_session_takes_its_approvals_along() -> None:
    made = bench({"cordon": {}}, {"approve": {}}, LAST, recover={"for": "0s"})
    made.change(approvals=(approval(made, step=7),))
    made.now += 1.0
    made.fault()
    made.one()
    assert made.nodes["n1"].session is None
    assert made.nodes["n1"].approvals == ()


def test_dry_run_asks_nobody() -> None:
    made = Bench(policy(mode="DryRun", steps=[{"cordon": {}}, {"approve": {}}, LAST]))
    made.world = World.VIRTUAL
    made.see(node(faults=(xid(),)))
    made.one()
    made.one(seconds=1.0)
    assert told(made)
    assert "assumed in dry-run" in hold(made).results[1].note
    assert "approval needed" not in made.texts()
