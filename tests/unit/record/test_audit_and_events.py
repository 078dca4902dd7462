"""What is left behind of a write and of a decision: an audit line, and Events."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from remediator.decide.decision import Decision, Hold, NodePhase, PatchNode, WriteEvent
from remediator.decide.facts import Malformed, NodeFacts
from remediator.decide.requests import Approval, Request, Verb
from remediator.decide.session import Added, Before, History, PolicyHold, Session
from remediator.record.audit import WriteResult, audit
from remediator.record.events import Events, Reason


SESSION = Session(
    version=1,
    id="s1",
    node_uid="u1",
    boot_id="b",
    started=1.0,
    before=Before(),
    added=Added(cordoned=True),
    holds=(
        PolicyHold(
            policy="bus",
            version="v",
            plan="{}",
            reasons=(),
            instances=(),
            since=1.0,
            step_since=1.0,
            step=1,
        ),
    ),
)


def patch(**more: Any) -> PatchNode:
    fields: dict[str, Any] = {
        "name": "n1",
        "uid": "u1",
        "resource_version": "7",
        "action": "cordon",
        "policy": "bus",
        "why": "Xid 79",
    }
    return PatchNode(**{**fields, **more})


def facts(**more: Any) -> NodeFacts:
    return NodeFacts(**{"name": "n1", "uid": "u1", "resource_version": "7", **more})


def line(one: PatchNode, seen: NodeFacts, **more: Any) -> dict[str, Any]:
    with capture_logs() as logs:
        audit(one, facts=seen, **{"result": WriteResult.DONE, "dry_run": False, **more})
    (only,) = logs
    return dict(only)


def test_a_cordon_is_audited_with_before_and_after() -> None:
    written = line(patch(unschedulable=True, session=SESSION), facts())

    assert written.items() >= {
        "event": "write", "node": "n1", "uid": "u1", "action": "cordon", "policy": "bus",
        "mode": "enforce", "result": "done", "why": "Xid 79", "resource_version": "7",
        "before": {"unschedulable": False, "session": None},
        "after": {
            "unschedulable": True,
            "session": {"id": "s1", "attempt": 1, "holds": {"bus": "running, step 1"}},
        },
    }.items()  # fmt: skip


def test_only_what_the_patch_sets_is_in_it() -> None:
    written = line(patch(), facts(unschedulable=True, session=SESSION))

    assert (written["before"], written["after"]) == ({}, {})


def test_an_answered_request_names_the_person() -> None:
    seen = facts(
        session=Malformed("not JSON"), request=Request(verb=Verb.UNFREEZE, by="ann", at="now")
    )
    written = line(patch(session=None, history=History(), remove_request=True), seen)

    assert written["before"] == {
        "session": {"unreadable": "not JSON"},
        "attempts": 0,
        "waivers": [],
        "request": {"verb": "unfreeze", "by": "ann"},
    }
    assert written["after"] == {"session": None, "attempts": 0, "waivers": [], "request": None}


def test_labels_annotations_and_approvals_are_audited_with_their_old_values() -> None:
    given = Approval(session="s1", policy="bus", step=1, by="ann", at="now", expires="later")
    seen = facts(labels={"a": "old", "b": "1"}, annotations={}, approvals=(given,))
    written = line(patch(labels={"a": "new"}, annotations={"c": "x"}, approvals=()), seen)

    assert written["before"] == {
        "labels": {"a": "old"},
        "annotations": {"c": None},
        "approvals": ["bus, step 1 by ann"],
    }
    assert written["after"] == {
        "labels": {"a": "new"},
        "annotations": {"c": "x"},
        "approvals": [],
    }


def test_dry_run_and_failure_are_said() -> None:
    written = line(patch(), facts(), dry_run=True, result=WriteResult.FAILED, reason="HTTP 403")

    assert (written["mode"], written["result"], written["reason"]) == (
        "dry-run",
        "failed",
        "HTTP 403",
    )
    assert written["log_level"] == "warning"


class FakeRecorder:
    def __init__(self) -> None:
        self.notes: list[dict[str, Any]] = []

    def record(self, **note: Any) -> None:
        self.notes.append(note)


@pytest.fixture
def recorder() -> FakeRecorder:
    return FakeRecorder()


@pytest.fixture
def events(recorder: FakeRecorder) -> Events:
    return Events(recorder=recorder)


def test_a_written_cordon_is_an_event_and_a_second_one_another(
    events: Events, recorder: FakeRecorder
) -> None:
    for version in ("7", "7", "9"):
        events.written(patch(unschedulable=True, resource_version=version))

    assert {note["reason"] for note in recorder.notes} == {"GPURemediationCordoned"}
    assert recorder.notes[0]["message"] == "Xid 79 (policy bus)"
    assert recorder.notes[0]["kind"] == "Warning"
    assert len({note["key"] for note in recorder.notes}) == 2


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("uncordon", Reason.UNCORDONED),
        ("cancel", Reason.CANCELLED),
        ("release", Reason.RELEASED),
        ("record", None),
    ],
)
def test_other_writes(
    events: Events, recorder: FakeRecorder, action: str, reason: Reason | None
) -> None:
    events.written(patch(action=action))

    assert [note["reason"] for note in recorder.notes] == ([reason] if reason else [])


def test_a_policys_own_event_is_passed_on(events: Events, recorder: FakeRecorder) -> None:
    events.asked(
        WriteEvent(key="k", node="n1", uid="u1", reason="Mine", message="m", warning=False)
    )

    assert recorder.notes == [
        {"node": "n1", "uid": "u1", "kind": "Normal", "reason": "Mine", "message": "m", "key": "k"}
    ]


def decision(phase: NodePhase, *holds: Hold) -> Decision:
    return Decision(node="n1", uid="u1", phase=phase, holds=holds, sentence="so it is")


def test_a_phase_is_told_when_it_begins(events: Events, recorder: FakeRecorder) -> None:
    frozen = decision(NodePhase.FROZEN)
    events.decided(None, frozen)
    events.decided(frozen, frozen)
    events.decided(frozen, decision(NodePhase.WELL))

    assert [note["reason"] for note in recorder.notes] == ["GPURemediationFrozen"]
    assert recorder.notes[0]["message"] == "so it is"


def test_a_hold_is_told_when_it_begins_unless_it_passes_by_itself(
    events: Events, recorder: FakeRecorder
) -> None:
    first = decision(NodePhase.MATCHED, Hold("bus", "settling", "just started", 5.0))
    held = decision(NodePhase.MATCHED, Hold("bus", "budget", "3 of 3"))
    events.decided(None, first)
    events.decided(first, held)
    events.decided(held, decision(NodePhase.MATCHED, Hold("bus", "budget", "4 of 3")))

    assert [note["message"] for note in recorder.notes] == ["bus is held by budget: 3 of 3"]


@pytest.mark.parametrize("guard", ["recovery", "waived", "settling"])
def test_a_hold_that_people_hear_of_otherwise_is_no_event(
    events: Events, recorder: FakeRecorder, guard: str
) -> None:
    events.decided(None, decision(NodePhase.IN_SESSION, Hold("bus", guard, "why")))

    assert recorder.notes == []
