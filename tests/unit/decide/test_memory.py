"""What is read back, from a node or an earlier leader: within bounds, and no later than now."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remediator.decide.ledger import Ledger, Scope
from remediator.decide.requests import (
    MAX_SAID,
    Approval,
    Request,
    Verb,
    decode_approvals,
    decode_request,
    encode_approvals,
)
from remediator.decide.session import AnnotationError, History, Owed, Remedy, Waiver, encode
from remediator.decide.starts import MAX_STARTS, Starts
from remediator.policy.model import BudgetPer
from remediator.policy.quantities import Rate
from tests.unit.decide.build import START, ledger, node


LONG = "x" * (MAX_SAID + 50)
CUT = "x" * MAX_SAID


def test_of_a_person_s_words_no_more_is_kept_than_can_be_repeated() -> None:
    asked = decode_request(encode(Request(verb=Verb.RETRY, by=LONG, at=LONG, reason=LONG)))
    assert asked == Request(verb=Verb.RETRY, by=CUT, at=CUT, reason=CUT)
    given = Approval(session="s", policy="bus", step=2, by=LONG, at=LONG, expires="never")
    assert decode_approvals(encode_approvals([given])) == (replace(given, by=CUT, at=CUT),)
    assert given.expires_at == 0.0
    for read, key in ((decode_request, "request"), (decode_approvals, "approval")):
        with pytest.raises(AnnotationError, match=f"gpu-remediator.io/{key} is malformed"):
            read("{")


def test_times_of_a_history_are_no_later_than_now_and_the_rest_is_as_it_was() -> None:
    def at(when: float) -> History:
        return History(
            attempts=(START - 5.0, when),
            remedies=(Remedy(when, {"bus": ("cordon",)}),),
            waivers=(Waiver("bus", "i", when, "why", reminded=True),),
            last="recovered",
            owed=(Owed(key="k", to=("ops",), title="t", text="x", at=when, policy="bus"),),
        )

    assert at(START + 900.0).not_after(START) == at(START)
    assert at(-3.0).not_after(START) == at(0.0)
    assert at(START - 1.0).not_after(START) == at(START - 1.0)


def test_starts_survive_with_their_times_and_a_change_is_told_once() -> None:
    starts = Starts()
    assert not starts.take_changed()
    starts.restore({"cordon a ": (START + 2.0, START), "drain  bus": (START,), "job": ()})
    assert starts.state()["cordon a "] == (START, START + 2.0)
    assert starts.state()["drain  bus"] == (START,)
    assert not starts.take_changed()


def test_a_start_is_forgotten_with_its_time_or_its_work_and_each_is_a_change_to_save() -> None:
    starts, rate = Starts(), Rate(2, 600.0)
    starts.count("cordon", "a", ("", "bus"), "uid-1", START)
    starts.count("cordon", "a", ("",), "uid-2", START + 1.0)
    assert starts.take_changed()
    assert starts.room("cordon", "a", "", rate, START + 599.0) == START + 600.0
    assert starts.room("cordon", "a", "bus", rate, START + 599.0) is None
    assert not starts.take_changed(), "to look changes nothing"

    assert starts.room("cordon", "a", "", rate, START + 600.0) is None
    assert starts.take_changed(), "it is over"
    starts.undo("uid-2", START)
    assert not starts.take_changed(), "it began at another time"
    starts.undo("uid-2", START + 1.0)
    assert starts.take_changed(), "it came to nothing"
    assert starts.state() == {"cordon a bus": (START,)}


def test_of_one_rate_so_many_starts_are_kept_also_of_those_taken_over() -> None:
    starts = Starts()
    starts.restore({"cordon a ": tuple(START + at for at in range(MAX_STARTS + 5))})
    (kept,) = starts.state().values()
    assert (len(kept), kept[0]) == (MAX_STARTS, START + 5)


def test_what_the_ledger_remembers_another_one_takes_over() -> None:
    old = ledger()
    old.observe(node(), START)
    old.dropped["bus"] = {"uid-b", "uid-a"}
    old.dropped["ecc"] = set()
    old.open_breaker("agents/all", "too many", START)
    state = old.state()
    assert state.dropped == {"bus": ("uid-a", "uid-b")}
    new = Ledger(cluster=old.cluster, started=START)
    new.restore(state)
    assert new.dropped == {"bus": {"uid-a", "uid-b"}}
    assert new.breakers == old.breakers


def test_nothing_is_remembered_of_a_node_that_is_gone_and_all_of_the_others() -> None:
    known = ledger()
    memories = (known.clear_since, known.unproven_since, known.look_until)
    for name in ("n1", "n2"):
        known.observe(node(name), START)
        for memory in memories:
            memory["bus", f"uid-{name}"] = START
        known.held_since[f"uid-{name}"] = {"bus": START}
    known.observe(node("n1", gpu=False), START)
    assert set(known.nodes) == set(known.held_since) == {"uid-n2"}
    for memory in memories:
        assert list(memory) == [("bus", "uid-n2")]
    known.observe(node("n3", gpu=False), START)
    assert set(known.nodes) == {"uid-n2"}
    known.forget("uid-n2")
    known.forget("never there")
    assert +known.total == {}


def test_a_scope_says_what_it_is() -> None:
    assert str(Scope(BudgetPer.POOL, "a100")) == "pool a100"
    assert str(Scope(BudgetPer.ZONE, "")) == "the nodes without a zone"
