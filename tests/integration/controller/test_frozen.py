"""What cannot be read is never guessed, and a new node is not the old one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from remediator.decide.requests import REQUEST_ANNOTATION
from remediator.decide.session import SESSION_ANNOTATION


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("text", ["{", '{"version": 99}'], ids=["malformed", "newer"])
def test_an_unreadable_session_freezes_its_node_only(
    site: Site, run: Callable[..., Replica], text: str
) -> None:
    frozen, other = site.node(annotations={SESSION_ANNOTATION: text}), site.node()
    run()
    site.says(frozen, 79)
    site.says(other, 79)
    site.wait(lambda: site.cordoned(other), "cordon of the other node")
    shown = site.wait(lambda: site.status_of(frozen), "the frozen node in the status")
    assert shown["phase"] == "frozen"
    assert site.status()["phases"]["frozen"] == 1
    assert not site.cordoned(frozen)
    assert not site.writes_to(frozen)

    request = {"verb": "unfreeze", "by": "alice", "at": "2026-01-01T00:00:00Z"}
    site.cluster.annotate(frozen, {REQUEST_ANNOTATION: json.dumps(request)})
    site.wait(lambda: site.cordoned(frozen), "cordon after the unfreeze")


def test_a_session_of_another_node_freezes(site: Site, run: Callable[..., Replica]) -> None:
    origin = site.node()
    run()
    site.says(origin, 79)
    site.wait(lambda: site.cordoned(origin), "cordon")
    text = json.dumps(site.session(origin))

    copy = site.node(annotations={SESSION_ANNOTATION: text}, spec={"unschedulable": True})
    site.says(copy)

    shown = site.wait(lambda: site.status_of(copy), "the copy in the status")
    assert shown["phase"] == "frozen"
    assert site.cordoned(copy)
    assert not site.writes_to(copy)


def test_a_new_node_of_the_same_name_is_left_alone(site: Site, run: Callable[..., Replica]) -> None:
    node = site.node("again")
    run()
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon")
    before = len(site.writes_to(node))

    site.cluster.delete_node(node)
    assert site.node("again") == node
    site.says(node)
    other = site.node()
    site.says(other, 79)
    site.wait(lambda: site.cordoned(other), "cordon of another node")  # time has passed

    assert not site.cordoned(node)
    assert site.session(node) is None
    assert len(site.writes_to(node)) == before


def test_a_request_that_cannot_be_read_is_shown(site: Site, run: Callable[..., Replica]) -> None:
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon")
    site.cluster.annotate(node, {REQUEST_ANNOTATION: "please"})
    (note,) = site.wait(lambda: site.status().get("notes"), "a note in the status")
    assert note.startswith(f"{node}: {REQUEST_ANNOTATION} is malformed")
    site.cluster.annotate(node, {REQUEST_ANNOTATION: None})
    site.wait(lambda: not site.status().get("notes"), "end of the note")
