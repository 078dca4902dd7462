"""Events about refused signals: a few at a time, all of them in the end, none that is over."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.record.events import Events
from remediator.signals.refused import OUTSIDE, Key, News, RefusedSignal
from remediator.term.refused import RefusalEvents


MANY = 40
NODES = {f"n{number:02}": f"uid-{number}" for number in range(MANY)}


class Told:
    """An Event recorder that takes so many notes until it is given more room."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.notes: list[dict[str, Any]] = []

    def record(self, **note: Any) -> None:
        assert self.room > 0, "it would be dropped"
        self.room -= 1
        self.notes.append(note)

    @property
    def nodes(self) -> list[str]:
        return [one["node"] for one in self.notes]


@pytest.fixture
def told() -> Told:
    return Told(room=25)


@pytest.fixture
def named() -> dict[Key, RefusedSignal]:
    return {}


@pytest.fixture
def events(told: Told, named: dict[Key, RefusedSignal]) -> RefusalEvents:
    return RefusalEvents(
        named=lambda: named,
        uid=NODES.get,
        has_room=lambda: told.room > 0,
        events=Events(recorder=told),
    )


def refusal(*nodes: str) -> RefusedSignal:
    one = RefusedSignal("alertmanager/main", "alert Lost of main", OUTSIDE, "", "Lost")
    one.nodes.update(nodes)
    return one


def test_what_there_is_no_room_for_is_told_later(
    told: Told, named: dict[Key, RefusedSignal], events: RefusalEvents
) -> None:
    one = refusal(*NODES)
    named[one.key] = one
    events.add(News(one, tuple(NODES)))
    events.tell()
    assert len(told.nodes) == 25
    events.tell()
    assert len(told.nodes) == 25
    told.room = MANY
    events.tell()
    assert told.nodes == list(NODES)
    assert {one["uid"] for one in told.notes} == set(NODES.values())
    events.tell()
    assert len(told.nodes) == MANY


def test_what_is_over_meanwhile_is_told_no_more(
    told: Told, named: dict[Key, RefusedSignal], events: RefusalEvents
) -> None:
    told.room = 0
    lasting, over = refusal(*NODES), refusal("n00")
    over.reason = "no_label"
    named |= {lasting.key: lasting, over.key: over}
    events.add(News(lasting, tuple(NODES)))
    events.add(News(over, ("n00",)))
    del named[over.key]
    named[lasting.key] = refusal("n07")
    told.room = MANY
    events.tell()
    assert told.nodes == ["n07"]


@pytest.mark.parametrize("nodes", [(), ("gone",)])
def test_one_about_no_node_that_there_is_is_told_of_none(
    told: Told, named: dict[Key, RefusedSignal], events: RefusalEvents, nodes: tuple[str, ...]
) -> None:
    one = refusal(*nodes)
    named[one.key] = one
    events.add(News(one, nodes))
    events.tell()
    assert told.nodes == [""]
