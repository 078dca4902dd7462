"""However many policies match a node, its session stays one that we can read."""

from __future__ import annotations

from msgspec.structs import replace

from remediator.decide.decision import Outcome
from remediator.decide.progress import tries
from remediator.decide.requests import Request, Verb
from remediator.decide.room import KEPT_RESULTS, MAX_WRITTEN, fitted, fitted_history, too_long
from remediator.decide.session import (
    MAX_SESSION_BYTES,
    History,
    HoldState,
    Result,
    StepResult,
    Waiver,
    decode_session,
    encode,
)
from tests.unit.decide.build import Bench, ledger, node, policy, xid


def test_a_session_takes_no_more_policies_than_it_can_say() -> None:
    long = {"notify": {"to": ["log"], "message": '"' * 1990}}
    given = [policy(f"p{at:02}", steps=[{"cordon": {}}, long]) for at in range(40)]
    made = Bench(*given, guards=ledger(budgets=[{"maxUnavailable": "100%", "per": "cluster"}]))
    made.see(node(faults=(xid(),)))
    for _ in range(3):
        guards = {one.guard for one in made.one(seconds=60.0).holds}
        session = made.session()
        assert decode_session(encode(session), node_uid=session.node_uid) == session
        assert 1 < len(session.holds) < len(given)
        assert guards == {"session"}
    assert made.cordoned()
    made.fault()
    made.one()
    for _ in range(12):
        made.now += 60.0
        made.fault()
        made.decide()
    assert not made.cordoned()


JOB = {"job": {"template": "reset", "maxAttempts": 2}, "timeout": "10m"}


def test_a_step_that_is_retried_for_ever_keeps_its_last_results_its_count_and_its_attempts() -> (
    None
):
    rates = dict.fromkeys(("cordon", "drain", "job"), "1000/1m")
    guards = ledger(budgets=[{"maxUnavailable": "100%", "per": "cluster"}], rates=rates)
    made = Bench(policy(steps=[{"cordon": {}}, JOB]), guards=guards)
    made.see(node(faults=(xid(),)))
    keys: list[str] = []
    for _ in range(40):
        made.one(seconds=1.0)
        for work in made.works.values():
            keys.append(work.key)
            assert work.attempt == len(keys)
            end = Outcome(key=work.key, delivered=False, note=f"end {len(keys)}")
            made.outcomes[work.key] = end
        made.one(seconds=1.0)
        (hold,) = made.session().holds
        assert (hold.state is HoldState.HELD) is (len(keys) % 2 == 0) or not keys
        if hold.state is HoldState.HELD:
            made.change(request=Request(verb=Verb.RETRY, by="ann", at="now"))
            made.one(seconds=1.0)
    assert len(set(keys)) == len(keys) > 30
    (hold,) = made.session().holds
    notes = [one.note for one in hold.results if one.action == "job"]
    assert notes == [f"end {len(keys) - back}" for back in reversed(range(KEPT_RESULTS))]
    assert hold.results[0].action == "cordon", "what was done to the node is not forgotten"


def test_what_is_dispensable_goes_first_and_a_session_too_long_is_not_written() -> None:
    results = tuple(
        StepResult(step=1, action="job", result=Result.FAILED, at=float(at), note="x" * 400)
        for at in range(20)
    )
    made = Bench(policy())
    made.see(node(faults=(xid(),)))
    made.one()
    session = made.session()
    (hold,) = session.holds
    short = replace(hold, results=results)
    assert fitted(replace(session, holds=(short,))).holds == (short,)
    many = tuple(replace(short, policy=f"p{at}") for at in range(12))
    assert {one.note[-3:] for one in fitted(replace(session, holds=many)).holds[0].results} == {
        "..."
    }
    many = tuple(replace(short, policy=f"p{at}") for at in range(40))
    left = fitted(replace(session, holds=many)).holds[3]
    assert [one.at for one in left.results] == [19.0]
    assert tries(left, 1) == 20
    long = replace(hold, plan="x" * MAX_SESSION_BYTES)
    assert too_long(fitted(replace(session, holds=(long,))))


def test_waivers_are_all_kept_and_why_is_cut() -> None:
    waivers = tuple(
        Waiver(policy=f"policy-{at}", instance="xid:79", at=1e9, why='"' * 600) for at in range(200)
    )
    found = fitted_history(History(waivers=waivers, last="x" * 600))
    assert len(encode(found)) <= MAX_WRITTEN
    assert len(found.waivers) == 200
    assert found.last.endswith("...")
