"""What is closed at a receiver: all whose reason has gone; nothing whose reason may be there."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.decide.closings import Standing, closing
from remediator.decide.decision import SendMessage, Urgency
from remediator.decide.topics import Topics, conversation, followed, opened


UID = "5f0c0d6f-1111"
SESSION = "5f0c0d6f-19b2c3d4e5f"
NODES = {UID: "n1", "other-uid": "n2"}
THERE: dict[str, tuple[str, dict[str, Any]]] = {
    "session": (SESSION, {"sessions": {SESSION}}),
    "session of a frozen node": (SESSION, {"frozen": {UID}}),
    "held": (f"held/{UID}/bus/7", {"decided": {UID}, "held": {("bus", UID)}}),
    "held long": (f"still-held/{UID}/bus/7", {"decided": {UID}, "held": {("bus", UID)}}),
    "frozen": (f"frozen/{UID}/it is malformed: a/b", {"frozen": {UID}}),
    "reminder": (f"reminder/{UID}/bus/7", {"waived": {(UID, "bus", "7")}}),
    "refused": (f"refused/{UID}/7", {"decided": {UID}, "refused": {UID}}),
    "breaker": ("breaker/bus/7", {"breakers": {"bus"}}),
    "breaker of a source": ("breaker/alertmanager/main/7", {"breakers": {"alertmanager/main"}}),
    "alert": ("alert-refused/alertmanager/a/Hot/no_label", {
        "alerts": {"alert-refused/alertmanager/a/Hot/no_label"}}),
}  # fmt: skip
OVER = {
    "session": "The session has ended.",
    "session of a frozen node": "The session has ended.",
    "held": "No guard holds it back any more.",
    "held long": "No guard holds it back any more.",
    "frozen": "The node is frozen no more.",
    "reminder": "The fault has cleared, or is the policy's again.",
    "refused": "The API server refuses our changes no more.",
    "breaker": "The breaker is closed.",
    "breaker of a source": "The breaker is closed.",
    "alert": "It fires no more, or is about a node now.",
}
LONELY = {"session", "session of a frozen node", "breaker", "breaker of a source", "alert"}


@pytest.mark.parametrize("kind", THERE)
def test_what_is_there_stays_open(kind: str) -> None:
    name, there = THERE[kind]
    assert closing(name, ("oncall",), Standing(nodes=NODES, **there)) is None


@pytest.mark.parametrize("kind", THERE)
def test_what_has_gone_is_closed_where_it_was_opened(kind: str) -> None:
    name, _ = THERE[kind]
    said = closing(name, ("oncall",), Standing(nodes=NODES, decided={UID}))
    assert said is not None
    assert (said.to, said.resolves) == (("oncall",), True)
    assert conversation(said) == name
    assert said.node == ("" if kind.startswith(("breaker", "alert")) else "n1")
    assert said.title == ("n1: over" if said.node else "over")
    assert (said.text, said.urgency, said.kind) == (OVER[kind], Urgency.INFO, "over")

    topics = Topics()
    first = SendMessage(key=name, to=(), title="", text="", node="n1", policy="bus")
    topics.put("oncall", opened("1", [first], title=""))
    assert topics.waiting() == [("oncall", name)]
    ((topic, messages),) = topics.parts("oncall", [said])
    assert topic is not None
    assert followed(topic, messages).over


@pytest.mark.parametrize("kind", [one for one in THERE if one not in LONELY])
def test_what_is_about_a_node_goes_with_it(kind: str) -> None:
    name, there = THERE[kind]
    said = closing(name, ("oncall",), Standing(nodes={}, **there))
    assert said is not None
    assert said.node == ""


@pytest.mark.parametrize("kind", ["held", "held long", "refused"])
def test_of_a_node_that_nobody_looked_at_yet_nothing_is_closed(kind: str) -> None:
    assert closing(THERE[kind][0], ("oncall",), Standing(nodes=NODES)) is None


@pytest.mark.parametrize("name", ["merged/abc", "test/1", "whatever", "dry-run/x"])
def test_what_is_not_known_stays_open(name: str) -> None:
    assert closing(name, ("oncall",), Standing(nodes=NODES)) is None
