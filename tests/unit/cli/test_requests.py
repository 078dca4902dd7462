"""What is said about the controller's answer to a request."""

from typing import Any

import msgspec
import pytest

from remediator.cli.failure import Failure
from remediator.cli.requests import _refuse_pointless, outcome
from remediator.decide.requests import Verb
from remediator.decide.session import (
    HISTORY_ANNOTATION,
    SESSION_ANNOTATION,
    Added,
    Before,
    History,
    PolicyHold,
    Session,
    encode,
    encode_text,
)
from remediator.kube.objects import Node


PLAN = '{"steps": [{"cordon": {}}]}'
HOLD = PolicyHold(
    policy="p", version="v", plan=PLAN, reasons=("r",), instances=(), since=1.0, step_since=1.0
)
SOUND = Session(
    version=1,
    id="s",
    node_uid="u1",
    boot_id="b",
    started=1.0,
    before=Before(),
    added=Added(cordoned=True),
    holds=(HOLD,),
)
SESSION = encode(SOUND)


def node(*, cordoned: bool = False, **annotations: str) -> Node:
    keys = {"session": SESSION_ANNOTATION, "history": HISTORY_ANNOTATION}
    fields: dict[str, Any] = {
        "name": "n1",
        "uid": "u1",
        "resource_version": "1",
        "labels": {},
        "annotations": {keys[key]: value for key, value in annotations.items()},
        "dropped_annotations": 0,
        "created": None,
        "deleted": None,
        "unschedulable": cordoned,
        "taints": (),
        "conditions": (),
        "addresses": (),
        "boot_id": "b",
    }
    return Node(**fields)


def test_cancelled() -> None:
    history = encode(History(last="cancelled by ann"))
    said = outcome(node(cordoned=True, session=SESSION), node(history=history), Verb.CANCEL)
    assert said == (
        "cancel of n1: answered. The node is schedulable again,"
        " its session has ended: cancelled by ann"
    )


def test_released_stays_cordoned() -> None:
    said = outcome(node(cordoned=True, session=SESSION), node(cordoned=True), Verb.RELEASE)
    assert "The node is cordoned, its session has ended" in said


def test_retried_goes_on() -> None:
    said = outcome(node(session=SESSION), node(session=SESSION), Verb.RETRY)
    assert said.endswith("its session goes on (p: running)")


def test_unfrozen() -> None:
    said = outcome(node(session="mess"), node(), Verb.UNFREEZE)
    assert "the unreadable annotation is gone" in said


def test_without_a_session() -> None:
    assert "in dry-run it never has one" in outcome(node(), node(), Verb.CANCEL)


@pytest.mark.parametrize("verb", [Verb.CANCEL, Verb.RELEASE, Verb.RETRY])
def test_a_frozen_node_must_be_unfrozen_first(verb: Verb) -> None:
    with pytest.raises(Failure, match="`remediator unfreeze n1` first"):
        _refuse_pointless(node(session="mess"), verb)
    with pytest.raises(Failure, match="frozen"):
        _refuse_pointless(node(session=SESSION.replace("u1", "u2")), verb)


@pytest.mark.parametrize("well", [node(), node(session=SESSION)], ids=["none", "readable"])
def test_only_a_frozen_node_can_be_unfrozen(well: Node) -> None:
    with pytest.raises(Failure, match="is not frozen"):
        _refuse_pointless(well, Verb.UNFREEZE)


@pytest.mark.parametrize(
    "session",
    [
        "mess",
        SESSION.replace(encode_text(PLAN), encode_text("{}")),
        encode(msgspec.structs.replace(SOUND, holds=())),
    ],
    ids=["unreadable", "with a plan that is none", "of no policy"],
)
def test_what_the_controller_freezes_can_be_unfrozen(session: str) -> None:
    """Also a session of the right form, that says what cannot be."""
    _refuse_pointless(node(session=session), Verb.UNFREEZE)
