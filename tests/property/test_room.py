"""Whatever people ask for, and however often: what stands on the node stays readable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from remediator.decide.decision import Outcome
from remediator.decide.requests import Request, Verb
from remediator.decide.room import MAX_WRITTEN, cut
from remediator.decide.session import Session, decode_history, decode_session, encode, encode_text
from tests.property.cases import cases
from tests.unit.decide.build import Bench, ledger, node, policy, xid


WORST = '"\x01\\ä' * 400
LONG = {"notify": {"to": ["log"], "message": '"' * 1900}}
JOB = {"job": {"template": "reset", "maxAttempts": 3}}
WAIT = {"wait": {"condition": {"type": "Reset"}}, "timeout": "1m"}
STEPS: list[dict[str, Any]] = [JOB, WAIT, LONG, {"event": {}, "onFailure": "hold"}, {"cordon": {}}]
moves = st.lists(
    st.tuples(
        st.sampled_from(["fail", "end", "retry", "cancel", "release", "clear", "fault"]),
        st.sampled_from([1, 3, 150]),
    ),
    max_size=6,
)


def check(made: Bench, keys: set[str]) -> None:
    facts = made.nodes["n1"]
    assert len(encode(facts.history)) <= MAX_WRITTEN
    assert decode_history(encode(facts.history), node_uid=facts.uid) == facts.history
    if isinstance(facts.session, Session):
        assert len(encode(facts.session)) <= MAX_WRITTEN
        again = decode_session(encode(facts.session), node_uid=facts.uid)
        assert again == facts.session
    for work in made.works.values():
        if work.key in made.outcomes:
            raise AssertionError(f"{work.key} is asked for again")
        keys.add(work.key)


@settings(max_examples=cases(60), deadline=None)
@given(st.lists(st.permutations(STEPS), min_size=1, max_size=8), moves)
def test_no_sequence_of_requests_makes_it_too_long(
    steps: Sequence[Sequence[dict[str, Any]]], moves: list[tuple[str, int]]
) -> None:
    given = [policy(f"p{at:02}", steps=list(some)) for at, some in enumerate(steps)]
    rates = dict.fromkeys(("cordon", "drain", "job"), "1000/1m")
    budgets = [{"maxUnavailable": "100%", "per": "cluster"}]
    guards = ledger(budgets=budgets, rates=rates, breaker={"minNodes": 100})
    made, keys = Bench(*given, guards=guards), set[str]()
    made.see(node(faults=(xid(),)))
    for what, times in moves:
        for _ in range(times):
            if what in {"retry", "cancel", "release"}:
                asked = Request(verb=Verb(what), by=WORST[:200], at="now", reason=WORST[:200])
                made.change(request=asked)
            elif what in {"clear", "fault"}:
                made.fault(*([xid()] if what == "fault" else []))
            for work in made.works.values():
                well = what == "end"
                end = Outcome(key=work.key, delivered=well, note=WORST)
                made.outcomes.setdefault(work.key, end)
            made.one(seconds=61.0)
            check(made, keys)


@given(st.text(), st.integers(3, 200))
def test_a_text_is_cut_by_what_it_takes_in_json(text: str, limit: int) -> None:
    short = cut(text, limit)
    assert len(encode_text(short)) - 2 <= limit
    assert short == text or (short.endswith("...") and text.startswith(short[:-3]))
    assert short != text or len(encode_text(text)) - 2 <= limit
