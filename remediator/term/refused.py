"""What people are told of a signal that a policy asks for, and that nothing is done about.

One message for each alert and reason, and an Event on each node. Events are few at a time, and
a refusal may be about a thousand nodes at once: those that there is no room for wait here, and are
told for as long as it lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from remediator.decide.decision import SendMessage, Urgency
from remediator.decide.signal_clauses import ALERTMANAGER
from remediator.record.events import Events
from remediator.signals.refused import OUTSIDE, Key, News, RefusedSignal, words


class RefusalEvents:
    """Tells of refusals by Events, as fast as these may be sent.

    Args:
        named: what is refused now.
        uid: of a node by its name; None if there is none.
        has_room: whether one more Event would be taken now.
        events: where they go.
    """

    def __init__(
        self,
        *,
        named: Callable[[], Mapping[Key, RefusedSignal]],
        uid: Callable[[str], str | None],
        has_room: Callable[[], bool],
        events: Events,
    ) -> None:
        self._named, self._uid = named, uid
        self._has_room, self._events = has_room, events
        self._waiting: dict[tuple[Key, str], None] = {}
        """Refusals and nodes, the oldest first; "": it names no node that there is."""

    def add(self, news: News) -> None:
        """Take in what is newly refused; `tell` tells it."""
        known = [name for name in news.nodes if self._uid(name) is not None]
        self._waiting |= dict.fromkeys((news.refused.key, name) for name in known or [""])

    def tell(self) -> None:
        """Tell what waits and still is so, for as long as there is room."""
        named = self._named()
        while self._waiting and self._has_room():
            key, name = next(iter(self._waiting))
            del self._waiting[key, name]
            one, uid = named.get(key), self._uid(name)
            if one is None or (name and (uid is None or name not in one.nodes)):
                continue  # it is over
            nodes = {} if uid is None else {name: uid}
            self._events.refused(nodes, words(one), key=" ".join(key))


def names_no_node(one: RefusedSignal) -> bool:
    """Tell whether it is an alert that ought to name a node and does not: worth a message.

    Alerts about nodes that are none of ours may well be meant for others, too.
    """
    return bool(one.alert) and one.reason != OUTSIDE


def refused_message(one: RefusedSignal, *, to: tuple[str, ...]) -> SendMessage:
    """Return the message that an alert is about no node."""
    return SendMessage(
        key=refused_key(one),
        to=to,
        title=f"alert {one.alert} is about no node",
        text=f"{_source(one)} has it firing, and a policy asks for it, but {one.why}."
        " Nothing is done. `remediator status` names all such alerts.",
        urgency=Urgency.WARNING,
        kind="alert-refused",
    )


def refused_key(one: RefusedSignal) -> str:
    """Return the key of that message."""
    return f"alert-refused/{_source(one)}/{one.alert}/{one.reason}"


def _source(one: RefusedSignal) -> str:
    return one.source.removeprefix(ALERTMANAGER)
