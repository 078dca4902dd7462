"""A session that this version cannot read freezes its node; all that looks at nodes goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as with_

from remediator.act.drain.marks import left_over
from remediator.decide.decision import NodePhase
from remediator.decide.facts import NodeFacts
from remediator.decide.requests import Approval
from remediator.decide.session import Session
from remediator.decide.work import claimed, under_way
from remediator.record.remediation import written
from tests.unit.decide.test_work import DRAIN, bench, until


PLANS = [
    '{"steps":[{"cordon":{}},{"levitate":{}}]}',  # of a newer version
    "{",
    "[" * 30_000,
    '{"steps":[]}',
    '{"steps":[{"wait":{"for":"99999999999999999999999999d"}}]}',
    f'{{"steps":[{{"wait":{{"for":"{"9" * 400}d"}}}}]}}',
    '{"steps":[{"cordon":{}},{"drain":{},"timeout":NaN}]}',
    '{"steps":[{"cordon":{}},{"drain":{},"timeout":1e999}]}',
    '{"steps":[{"cordon":{}},{"drain":{},"timeout":-3.5}]}',
]


def spoilt(plan: str, step: int = 1) -> NodeFacts:
    """Return a node that is drained by a session whose plan became this one."""
    made = until(bench({"cordon": {}}, DRAIN), "drain")
    session = made.session()
    hold = with_(session.holds[0], plan=plan, step=step)
    return replace(made.nodes["n1"], session=with_(session, holds=(hold,)))


@pytest.mark.parametrize("plan", PLANS)
def test_nothing_that_walks_over_all_nodes_fails_of_one_whose_plan_cannot_be_read(
    plan: str,
) -> None:
    facts = spoilt(plan)
    assert claimed(facts) is None
    assert under_way(facts) == ()
    assert not left_over(facts)


@pytest.mark.parametrize("step", [-1, 7, 10**30])
def test_nor_of_one_whose_step_does_not_exist(step: int) -> None:
    facts = spoilt('{"steps":[{"cordon":{}}]}', step)
    assert claimed(facts) is None
    assert under_way(facts) == ()
    assert not left_over(facts)


@pytest.mark.parametrize("at", [-1e308, -1.0, 1e308, 9e17])
def test_times_that_no_clock_showed_can_be_written_down(at: float) -> None:
    session = until(bench({"cordon": {}}, DRAIN), "drain").session()
    hold = with_(session.holds[0], since=at, step_since=at, work_since=at)
    results = tuple(with_(one, at=at) for one in hold.results)
    known = with_(session, started=at, holds=(with_(hold, results=results),)).not_after(1e9)
    assert isinstance(known, Session)
    (hold,) = known.holds
    assert hold.work_since is not None
    for time in (known.started, hold.since, hold.step_since, hold.work_since, hold.results[0].at):
        assert written(time)


@pytest.mark.parametrize("expires", ["0001-01-01", "9999-12-31T23:59:59", "x", "", "2040"])
def test_an_expiry_that_is_no_time_has_expired_or_is_one(expires: str) -> None:
    given = Approval(session="s", policy="p", step=1, by="ann", at="", expires=expires)
    assert isinstance(given.expires_at, float)


@pytest.mark.parametrize("step", [-7, 2, 10**30])
def test_a_result_of_a_step_that_does_not_exist_freezes_the_node(step: int) -> None:
    made = until(bench({"cordon": {}}, DRAIN), "drain")
    session = made.session()
    wrong = with_(session.holds[0].results[0], step=step)
    made.change(session=with_(session, holds=(with_(session.holds[0], results=(wrong,)),)))
    assert made.one().phase is NodePhase.FROZEN
