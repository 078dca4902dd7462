"""What `remediator status` says of nodes that are not seen, or cannot be read."""

from __future__ import annotations

from dataclasses import dataclass, field

from remediator.kube.access import access_of
from remediator.kube.errors import ApiError, Unreachable
from remediator.term.view import mirror_notes, unwritten_notes


@dataclass
class Nodes:
    sees: bool = True
    last_error: ApiError | None = None
    unreadable: dict[str, str] = field(default_factory=dict)


def test_a_mirror_that_sees_is_not_spoken_of() -> None:
    failed = Unreachable(access_of("GET", "/api/v1/nodes"), message="refused")
    assert mirror_notes(Nodes()) == ()
    assert mirror_notes(Nodes(last_error=failed)) == ()  # a moment ago


def test_a_mirror_that_is_blind_says_why() -> None:
    failed = Unreachable(access_of("GET", "/api/v1/nodes"), message="refused")
    (note,) = mirror_notes(Nodes(sees=False, last_error=failed))
    assert note.startswith("the nodes are not seen now: ")
    assert "refused" in note


def test_nodes_that_cannot_be_read_are_named_the_first_few() -> None:
    notes = mirror_notes(Nodes(unreadable={f"n{number}": "no list" for number in range(5)}))
    assert [note.split(":")[0] for note in notes[:-1]] == ["n0", "n1", "n2"]
    assert notes[-1] == "and 2 more nodes cannot be read"


def test_what_cannot_be_kept_is_said_with_what_a_restart_would_cost() -> None:
    assert unwritten_notes({}) == ()
    state, messages = unwritten_notes(
        {"state": "patch configmaps: forbidden", "messages": "timeout", "status": "timeout"}
    )
    assert state == (
        "what rates and breakers remember is not kept, a restart would forget it:"
        " patch configmaps: forbidden"
    )
    assert "people are to be told" in messages
