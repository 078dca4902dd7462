"""However many policies match a node, its session stays one that we can read."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import pytest
from msgspec.structs import replace

from remediator.decide.answer import MAX_INSTANCES
from remediator.decide.decision import Hold, Outcome, PatchNode
from remediator.decide.progress import tries
from remediator.decide.requests import Request, Verb
from remediator.decide.room import KEPT_RESULTS, MAX_WRITTEN, cut, fitted, fitted_history, too_long
from remediator.decide.session import (
    MAX_SESSION_BYTES,
    History,
    HoldState,
    Owed,
    Result,
    Session,
    StepResult,
    Waiver,
    decode_session,
    encode,
)
from tests.unit.decide.build import Bench, alert, ledger, node, policy, xid


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


def test_a_session_that_would_be_too_long_is_not_written_and_that_is_said() -> None:
    """Rather nothing more is done than that the node freezes."""
    long = {"notify": {"to": ["log"], "message": '"' * 1990}}
    given = [policy(f"p{at:02}", steps=[{"cordon": {}}, long]) for at in range(20)]
    made = Bench(*given)
    made.see(node(faults=(xid(),)))
    made.one()
    session = made.session()
    (first, *_) = session.holds
    holds = tuple(replace(first, policy=one.name) for one in given)
    made.change(session=replace(session, holds=holds))
    known = made.session()
    assert too_long(fitted(known))
    made.sent.clear()
    made.now += 1.0
    made.fault(xid(), xid(pci="0000:1b:00.0"))
    decision = made.one()
    assert made.session() is known
    assert not [one for one in decision.effects if isinstance(one, PatchNode)]
    why = "it would be longer than what we read again"
    assert decision.holds[-1] == Hold("p00", "session", why)
    assert made.cordoned()


ANY: Final[dict[str, Any]] = {"alert": {"labels": {"severity": "critical"}}}


@pytest.mark.parametrize(
    "when",
    [[ANY], [{**ANY, "xid": {"codes": [79]}}], [{"all": [ANY, {"xid": {"codes": [79]}}]}]],
    ids=["alone", "with-a-code", "nested"],
)
def test_a_node_that_very_many_alerts_name_is_dealt_with_all_the_same(when: list[Any]) -> None:
    made = Bench(policy(when=when))
    alerts = tuple(alert(f"GpuIsFaultyInSomeWayOfVeryMany{at}") for at in range(3000))
    made.see(node(faults=(xid(),), alerts=alerts))
    made.one()
    assert made.cordoned()
    (hold,) = made.session().holds
    assert len(hold.instances) == MAX_INSTANCES
    made.change(request=Request(verb=Verb.CANCEL, by="ann", at="now"))
    made.one(seconds=1.0)
    made.change(alerts=alerts[1:])
    made.one(seconds=1.0)
    assert not made.cordoned(), "all that a person has seen is theirs"


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


@pytest.mark.parametrize(
    ("text", "limit", "kept"),
    [
        ("", 10, ""),
        ("a" * 10, 10, "a" * 10),
        ("a" * 11, 10, "a" * 7 + "..."),
        ("a" * 11, 3, "..."),
        ('"' * 5, 10, '"' * 5),  # each takes two in JSON
        ('"' * 6, 10, '"' * 3 + "..."),
        ('"' * 6, 9, '"' * 3 + "..."),
        ("a\x01b", 8, "a\x01b"),
        ("a\x01b", 7, "a..."),
    ],
)
def test_a_text_is_cut_to_what_its_json_may_take_and_no_shorter(
    text: str, limit: int, kept: str
) -> None:
    assert cut(text, limit) == kept


@cache
def begun() -> Session:
    made = Bench(policy())
    made.see(node(faults=(xid(),)))
    made.one()
    return made.session()


def session_of(holds: int, *, results: int = 4, note: int = 400, spent: int = 0) -> Session:
    """A session of so many policies, whose steps were tried so often, with notes of such length."""
    session = begun()
    tried = tuple(
        StepResult(step=1, action="job", result=Result.FAILED, at=float(at), note="x" * note)
        for at in range(results)
    )
    reasons = tuple("y" * 100 for _ in range(5))
    one = replace(
        session.holds[0], results=tried, reasons=reasons, spent={1: spent} if spent else {}
    )
    return replace(session, holds=tuple(replace(one, policy=f"p{at}") for at in range(holds)))


def first_too_long(**made: Any) -> int:
    return next(at for at in range(1, 1000) if len(encode(session_of(at, **made))) > MAX_WRITTEN)


def test_notes_are_shortened_then_left_out_then_results_and_the_rest_of_the_reasons() -> None:
    shortened = fitted(session_of(first_too_long())).holds[0]
    assert [one.note for one in shortened.results] == ["x" * 77 + "..."] * 4
    without = fitted(session_of(first_too_long(note=80))).holds[0]
    assert [one.note for one in without.results] == [""] * 4
    assert len(without.reasons) == 5
    last = fitted(session_of(first_too_long(note=0), note=0, spent=7)).holds[0]
    assert [one.at for one in last.results] == [3.0]
    assert last.spent == {1: 7 + 3}
    assert len(last.reasons) == 5
    brief = fitted(session_of(first_too_long(note=0, results=1), note=0, results=1)).holds[0]
    assert brief.reasons == ("y" * 77 + "...",) * 3


def test_a_session_may_be_as_long_as_is_written_and_is_not_written_longer_than_is_read() -> None:
    session = session_of(1)
    plan = session.holds[0].plan

    def as_long_as(size: int) -> Session:
        longer = plan + "x" * (size - len(encode(session)))
        return replace(session, holds=(replace(session.holds[0], plan=longer),))

    whole = as_long_as(MAX_WRITTEN)
    assert len(encode(whole)) == MAX_WRITTEN
    assert fitted(whole) == whole
    assert fitted(as_long_as(MAX_WRITTEN + 1)) != as_long_as(MAX_WRITTEN + 1)
    assert not too_long(as_long_as(MAX_SESSION_BYTES))
    assert too_long(as_long_as(MAX_SESSION_BYTES + 1))


@pytest.mark.parametrize(
    ("waivers", "why", "told"),
    [
        (1, "x" * 447 + "...", 447),  # so long may each be, however few there are
        (150, "x" * 77 + "...", 77),
        (400, "", 77),
    ],
)
def test_a_history_shortens_why_and_what_it_owes_only_as_far_as_it_must(
    waivers: int, why: str, told: int
) -> None:
    given = tuple(
        Waiver(policy=f"policy-{at}", instance="xid:79", at=1e9, why="x" * 600)
        for at in range(waivers)
    )
    owed = (Owed(key="k", to=("log",), title="t" * 600, text="u" * 600, at=1e9, policy="p"),)
    found = fitted_history(History(waivers=given, owed=owed, last="z" * 600))
    assert len(encode(found)) <= MAX_WRITTEN
    assert {one.why for one in found.waivers} == {why}
    assert found.owed[0].title == "t" * 447 + "..."
    assert found.owed[0].text == "u" * told + "..."
    assert found.last == "z" * 447 + "..."
    assert fitted_history(found) == found


def test_what_is_written_is_shortened_first_and_what_is_not_written_stays_as_it_is() -> None:
    count = first_too_long() * 3 // 2
    made = Bench(*(policy(f"p{at}") for at in range(count)))
    made.see(node(faults=(xid(),)))
    made.one()
    holds = tuple(
        replace(one, results=tuple(replace(tried, step=0) for tried in one.results))
        for one in session_of(count).holds
    )
    made.change(session=replace(made.session(), holds=holds))
    known = made.session()
    assert made.one().effects == (), "nothing changed"
    made.now += 1.0
    made.fault(xid(), xid(pci="0000:1b:00.0"))
    made.one()
    written = made.session()
    assert written != known
    assert len(encode(written)) <= MAX_WRITTEN < len(encode(known))
    assert {one.note for hold in written.holds for one in hold.results} == {"x" * 77 + "..."}
