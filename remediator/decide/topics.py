"""What a channel already opened for a session: a thread, an incident, an alert.

A message belongs to the conversation of its session. The first message of a conversation opens
a *topic* at the receiver (what that is, the channel knows); what follows goes into the same one.
Messages that a storm merged open one topic together. A topic is over when every remediation that
it was opened for, or that came later, has ended: one policy that lets go of a node does not
resolve the incident that another policy keeps open.

Bounded: the topics that were touched longest ago are forgotten. Without its topic a message opens a
new one, and a resolving one is sent under the session's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from remediator.decide.decision import SendMessage


MAX_TOPICS: Final = 2000
"""Of all channels together; about 300 bytes each in the ConfigMap."""
MAX_MEMBERS: Final = 200
MAX_TITLE: Final = 120
OVER: Final = "/over"
_OVER_KEY: Final = re.compile(rf"{OVER}(#\d+)?\Z")
"""Ends the key of a message that closes a conversation which has no last word of its own."""
_SESSION: Final = re.compile(r"-[0-9a-f]{8,}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Something open at a receiver.

    ``id``: the receiver's name for it. ``place``: where it is there. ``conversations``: whose it
    is. ``members``: the remediations, ``conversation|policy``, that have not ended. ``total``: how
    many there ever were. ``title``: of its first message.
    """

    id: str
    conversations: tuple[str, ...]
    members: tuple[str, ...]
    total: int
    title: str = ""
    place: str = ""
    marks: tuple[str, ...] = field(default=())
    """What else the channel wants to remember."""

    @property
    def over(self) -> bool:
        """Whether all has ended."""
        return not self.members


class Part(NamedTuple):
    """Messages of an envelope that go into the same topic; None: into a new one."""

    topic: Topic | None
    messages: tuple[SendMessage, ...]


class Topics:
    """The topics of all channels, the one touched last at the end."""

    def __init__(self) -> None:
        self._topics: dict[tuple[str, str], Topic] = {}  # by channel and id
        self._where: dict[tuple[str, str], str] = {}  # channel, conversation: id
        self.changed = False

    def parts(self, channel: str, messages: Iterable[SendMessage]) -> list[Part]:
        """Split an envelope's messages by topic, in their order."""
        found: dict[str | None, list[SendMessage]] = {}
        for one in messages:
            found.setdefault(self._where.get((channel, conversation(one))), []).append(one)
        return [
            Part(None if one is None else self._topics[channel, one], tuple(group))
            for one, group in found.items()
        ]

    def find(self, channel: str, name: str) -> Topic | None:
        """Return the topic of a conversation, None if there is none."""
        known = self._where.get((channel, name))
        return None if known is None else self._topics[channel, known]

    def of(self, channel: str) -> list[Topic]:
        """Return all topics of a channel."""
        return [topic for (name, _), topic in self._topics.items() if name == channel]

    def waiting(self) -> list[tuple[str, str]]:
        """Return channel and conversation of all that has not ended, each once."""
        return [
            (channel, one)
            for (channel, _), topic in self._topics.items()
            for one in _unique(member.rpartition("|")[0] for member in topic.members)
        ]

    def put(self, channel: str, topic: Topic) -> None:
        """Remember a topic as it is now."""
        self.changed = True
        self._drop(channel, topic.id)
        self._topics[channel, topic.id] = topic
        for one in topic.conversations:
            self._where[channel, one] = topic.id
        while len(self._topics) > MAX_TOPICS:
            self._drop(*next(iter(self._topics)))

    def forget(self, channel: str, topic_id: str) -> None:
        """Forget a topic: nothing can follow any more."""
        self.changed = True
        self._drop(channel, topic_id)

    def state(self) -> Mapping[str, Sequence[Topic]]:
        """Return all topics by channel, for the record."""
        found: dict[str, list[Topic]] = {}
        for (channel, _), topic in self._topics.items():
            found.setdefault(channel, []).append(topic)
        return found

    def restore(self, state: Mapping[str, Sequence[Topic]]) -> None:
        """Take over what an earlier leader opened."""
        for channel, topics in state.items():
            for topic in topics:
                self.put(channel, topic)
        self.changed = False

    def take_changed(self) -> bool:
        """Tell whether something changed since the last time."""
        changed, self.changed = self.changed, False
        return changed

    def _drop(self, channel: str, topic_id: str) -> None:
        topic = self._topics.pop((channel, topic_id), None)
        for one in () if topic is None else topic.conversations:
            if self._where.get((channel, one)) == topic_id:
                del self._where[channel, one]


def is_session(name: str) -> bool:
    """Tell whether a conversation is a session's."""
    return "/" not in name and _SESSION.search(name) is not None


def conversation(message: SendMessage) -> str:
    """Return whose thread a message belongs to: its session's, or one of its own."""
    head = message.key.partition("/")[0]
    return head if message.node and is_session(head) else _OVER_KEY.sub("", message.key)


def over_key(name: str, number: int) -> str:
    """Return the key of the message that closes a conversation; of the second attempt another."""
    return f"{name}{OVER}" if number == 1 else f"{name}{OVER}#{number}"


def opened(topic_id: str, messages: Sequence[SendMessage], *, title: str, place: str = "") -> Topic:
    """Return the topic that messages open."""
    members = _unique(_member(one) for one in messages if not one.resolves)
    return Topic(
        id=topic_id,
        place=place,
        title=title[:MAX_TITLE],
        conversations=_unique(conversation(one) for one in messages),
        members=members[:MAX_MEMBERS],
        total=len(members),
    )


def followed(topic: Topic, messages: Sequence[SendMessage]) -> Topic:
    """Return a topic after messages that follow in it."""
    members, total = list(topic.members), topic.total
    for one in messages:
        member = _member(one)
        if not one.resolves:
            if member not in members and len(members) < MAX_MEMBERS:
                members.append(member)
                total += 1
        elif one.policy:
            members = [other for other in members if other != member]
        else:  # the node is gone, with all that was done to it
            gone = f"{conversation(one)}|"
            members = [other for other in members if not other.startswith(gone)]
    return replace(topic, members=tuple(members), total=total)


def _member(message: SendMessage) -> str:
    return f"{conversation(message)}|{message.policy}"


def _unique(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
