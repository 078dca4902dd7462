"""What people are told of a session, to the word: messages, results, and what a request did.

Other tests ask whether something is said. Here it is who is told, about what, how urgently, and
what is written down of it: all that a reader would miss.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remediator.decide.decision import (
    Decision,
    Outcome,
    SendMessage,
    Urgency,
    WriteEvent,
)
from remediator.decide.facts import Malformed
from remediator.decide.requests import Approval, Request, Verb
from remediator.decide.session import History, HoldState, Result, Waiver
from tests.unit.decide.build import START, Bench, node, patch_of, policy, xid


OPS = {"notify": {"to": ["ops"], "message": "See the runbook."}}
XID = "Xid 79 on 0000:9b:00.0"


def bench(*steps: dict[str, Any], **spec: Any) -> Bench:
    made = Bench(policy(steps=list(steps), **spec))
    made.see(node(faults=(xid(),)))
    made.one()
    return made


def only(made: Bench, which: type[Any], **wanted: Any) -> Any:
    (found,) = [
        one
        for one in made.sent.values()
        if isinstance(one, which) and all(getattr(one, key) == is_ for key, is_ in wanted.items())
    ]
    return found


def ask(made: Bench, verb: Verb, **more: Any) -> Decision:
    made.change(request=Request(verb=verb, by="ann", at="noon", **more))
    return made.one(seconds=1.0)


# -- steps that tell ------------------------------------------------------------------------------


def test_a_message_says_what_was_done_to_the_node_and_what_its_author_wrote() -> None:
    made = bench({"cordon": {}}, {"taint": {}}, OPS)
    said = only(made, SendMessage)
    assert said == SendMessage(
        key=f"{made.session().id}/bus/2",
        to=("ops",),
        title=f"n1: {XID}",
        text=(
            "policy bus holds this node "
            "(cordoned, tainted gpu-remediator.io/unhealthy:NoSchedule). See the runbook."
        ),
        node="n1",
        policy="bus",
        step=2,
        urgency=Urgency.WARNING,
    )


def test_a_message_without_words_of_its_own_ends_where_it_ends() -> None:
    made = bench({"notify": {"to": ["log"]}}, {"cordon": {}})
    assert only(made, SendMessage).text == "policy bus holds this node (not cordoned)"


def test_an_event_is_about_the_node_and_names_the_policy() -> None:
    made = bench({"event": {"reason": "Bad", "message": "Look."}}, {"cordon": {}})
    assert only(made, WriteEvent) == WriteEvent(
        key=f"{made.session().id}/bus/0",
        node="n1",
        uid="uid-n1",
        reason="Bad",
        message=f"policy bus: {XID}. Look.",
        policy="bus",
        step=0,
    )


def test_each_message_that_arrived_is_written_down_whichever_came_first() -> None:
    made = bench(OPS, {"event": {}}, {"notify": {"to": ["log"]}}, {"cordon": {}})
    first, second, third = (f"{made.session().id}/bus/{step}" for step in range(3))
    made.outcomes[second] = Outcome(key=second, delivered=True, note="written")
    made.one(seconds=1.0)
    made.outcomes[third] = Outcome(key=third, delivered=False, note="the disk is full")
    made.one(seconds=1.0)
    (hold,) = made.session().holds
    assert hold.undelivered == (0,), first
    told = {one.step: one for one in hold.results if one.action != "cordon"}
    assert (told[1].action, told[1].result, told[1].note) == ("event", Result.DONE, "written")
    assert told[1].at == START + 1.0
    assert (told[2].action, told[2].result) == ("notify", Result.FAILED)
    assert told[2].note == "the disk is full"


@pytest.mark.parametrize(
    ("outcome", "seconds", "result", "note"),
    [
        (Outcome(key="", delivered=True), 1.0, Result.DONE, ""),
        (Outcome(key="", delivered=False, note="refused"), 1.0, Result.FAILED, "refused"),
        (None, 60.0, Result.TIMED_OUT, "no outcome before its deadline"),
    ],
)
def test_a_message_that_matters_is_waited_for_and_how_it_went_is_written_down(
    outcome: Outcome | None, seconds: float, result: Result, note: str
) -> None:
    made = bench({**OPS, "onFailure": "hold", "timeout": "1m"}, {"cordon": {}})
    key = f"{made.session().id}/bus/0" if made.nodes["n1"].session is not None else ""
    if outcome is not None:
        made.outcomes[key] = replace(outcome, key=key)
    made.one(seconds=seconds)
    (hold,) = made.session().holds
    first = hold.results[0]
    assert (first.step, first.action, first.result, first.at, first.note) == (
        *(0, "notify", result, START + seconds, note),
    )
    assert (hold.state is HoldState.RUNNING) is (result is Result.DONE)


# -- approvals ------------------------------------------------------------------------------------


def approval(made: Bench, **other: Any) -> Approval:
    given: dict[str, Any] = {"session": made.session().id, "policy": "bus", "step": 1}
    ends = "2099-01-01T00:00:00+00:00"
    return Approval(**{**given, "by": "ann", "at": "noon", "expires": ends, **other})


def test_who_is_to_approve_is_told_what_comes_then_and_how() -> None:
    made = bench({"cordon": {}}, {"approve": {"message": "Ask Bo."}}, {"event": {}}, OPS)
    said = only(made, SendMessage, kind="approval")
    how = "`remediator approve n1 --policy bus`"
    assert said.key == f"{made.session().id}/bus/1/approval"
    assert said.title == "n1: approval needed"
    assert said.text == (
        f"Policy bus waits for a person ({XID}). Then: event, notify. "
        f"{how} lets it go on within 1d. Ask Bo."
    )
    assert (said.to, said.policy) == (("ops",), "bus")
    (hold,) = made.one(seconds=1.0).holds
    assert hold == ("bus", "approval", f"waits for a person: {how}", START + 86400.0)


def test_those_whom_the_step_names_are_asked() -> None:
    made = bench({"cordon": {}}, {"approve": {"to": ["lead"]}}, OPS)
    assert only(made, SendMessage, kind="approval").to == ("lead",)


def test_an_approval_is_written_down_and_used_up_and_no_other_is() -> None:
    made = bench({"cordon": {}}, {"approve": {}}, {"event": {}})
    others = (approval(made, policy="other"), approval(made, step=7))
    expired = approval(made, expires="2000-01-01T00:00:00+00:00")
    made.change(approvals=(*others, expired, approval(made)))
    decision = made.one(seconds=2.0)
    patch = patch_of(decision)
    assert patch is not None
    assert patch.approvals == others
    assert "step 2 of bus approved by ann at noon" in decision.sentence
    done = made.session().holds[0].results[1]
    assert (done.action, done.result, done.at) == ("approve", Result.DONE, START + 2.0)
    assert done.note == "approved by ann at noon"


# -- what people ask for ---------------------------------------------------------------------------


def test_a_cancel_says_who_and_why_in_the_record_and_in_the_patch() -> None:
    made = bench({"cordon": {}})
    decision = ask(made, Verb.CANCEL, reason="a test")
    patch = patch_of(decision)
    assert patch is not None
    assert patch.action == "cancel"
    assert made.nodes["n1"].history.last == "cancelled by ann (a test)"
    assert decision.sentence == "cancel asked by ann (a test)"
    assert not made.cordoned()


def test_a_release_keeps_the_cordon_and_leaves_the_fault_to_people() -> None:
    made = bench({"cordon": {}}, {"label": {"set": {"example.com/a": "x"}}})
    decision = ask(made, Verb.RELEASE)
    patch = patch_of(decision)
    assert patch is not None
    assert patch.action == "release"
    history = made.nodes["n1"].history
    assert history.last == "released to ann: the node stays as it is"
    assert [(one.policy, one.at) for one in history.waivers] == [("bus", START + 1.0)]
    assert made.cordoned()
    assert made.nodes["n1"].labels["example.com/a"] == "x"
    assert patch_of(made.one(seconds=1.0)) is None


def test_a_retry_begins_the_stopped_step_anew_with_its_whole_time() -> None:
    made = bench({**OPS, "onFailure": "hold", "timeout": "1m"}, {"cordon": {}})
    made.one(seconds=60.0)
    assert made.session().holds[0].state is HoldState.HELD
    ask(made, Verb.RETRY)
    (hold,) = made.session().holds
    assert (hold.state, hold.step, hold.step_since) == (HoldState.RUNNING, 0, made.now)
    assert made.session().attempt == 1
    assert made.nodes["n1"].history.last == "retry asked by ann"
    made.one(seconds=59.0)
    assert made.session().holds[0].state is HoldState.RUNNING


def test_a_request_with_nothing_to_do_is_answered_so() -> None:
    made = Bench(policy())
    made.see(node())
    decision = ask(made, Verb.CANCEL)
    patch = patch_of(decision)
    assert patch is not None
    assert patch.remove_request
    assert "cancel asked by ann: there was nothing to do" in decision.sentence


def test_a_frozen_node_is_told_of_loudly_and_any_other_request_leaves_it_frozen() -> None:
    made = Bench(policy())
    made.see(node(session=Malformed("no JSON")))
    assert made.one().sentence == "frozen: no JSON; `remediator unfreeze n1` drops it"
    said = only(made, SendMessage, kind="frozen")
    assert (said.key, said.title) == ("frozen/uid-n1/no JSON", "n1 is frozen")
    assert said.urgency is Urgency.CRITICAL
    assert said.text == (
        "no JSON. Nothing is done to this node, and nothing undone, until `remediator unfreeze n1`."
    )
    patch = patch_of(ask(made, Verb.CANCEL))
    assert patch is not None
    assert patch.why == "cancel asked by ann: it stays frozen"
    patch = patch_of(ask(made, Verb.UNFREEZE))
    assert patch is not None
    assert patch.why == "unfreeze asked by ann: the unreadable session is dropped"


# -- waivers --------------------------------------------------------------------------------------


def test_people_are_reminded_once_of_each_fault_that_they_took_over() -> None:
    waivers = tuple(
        Waiver("bus", f"xid:{code}:0000:9b:00.0:boot-1", START + at, "cancelled by ann")
        for code, at in ((48, 0.0), (79, 10.0))
    )
    made = Bench(policy(steps=[{"cordon": {}}, OPS], when=[{"xid": {"codes": [48, 79]}}]))
    made.see(node(faults=(xid(48), xid(79)), history=History(waivers=waivers)))
    made.one(seconds=3599.0)
    assert not made.sent
    made.one(seconds=1.0)
    said = only(made, SendMessage, kind="reminder")
    assert said.key == f"reminder/uid-n1/bus/{START:.0f}"
    assert (said.title, said.to, said.policy) == ("n1: still faulty", ("ops",), "bus")
    assert said.text.startswith("xid:48:0000:9b:00.0:boot-1 is still there an hour after: ")
    assert [one.reminded for one in made.nodes["n1"].history.waivers] == [True, False]
    made.one(seconds=10.0)
    assert [one.reminded for one in made.nodes["n1"].history.waivers] == [True, True]
    assert len(made.sent) == 2
    made.sent.clear()
    made.one(seconds=4000.0)
    assert not made.sent
