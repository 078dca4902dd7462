"""What is not told yet, and what is open at the receivers: ConfigMap ``gpu-remediator-messages``.

A message of a step is undelivered in its session, and the next leader sends it again. Others have
nobody who would: that a session ended, that a breaker opened; and a session may end before its
messages arrive. So all stay here until they are delivered or given up. So do, for a while, the
keys of those that arrived, and the topics (threads, incidents, alerts) that later ones go into.

Written behind, at most once a second: of a crash within that second a message may be lost (but
none that a node's history owes) or sent twice (with the same key), and a thread begun anew.
Until it was read it is not written.
Bounded: see ``MAX_UNSENT``, ``MAX_BYTES``. A document that cannot be read is kept under another
key, and we begin without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec
import structlog

from remediator.decide.decision import SendMessage
from remediator.decide.topics import Topic
from remediator.kube.errors import ApiError
from remediator.record.writebehind import ConfigMapStore, Document, WriteBehind, beginning


MESSAGES_CONFIGMAP: Final = "gpu-remediator-messages"
MESSAGES_KEY: Final = "messages.json"
UNREADABLE_KEY: Final = "messages.json.unreadable"
MESSAGES_VERSION: Final = 1
MAX_UNSENT: Final = 200
"""Of more, those of no step are kept, then the oldest."""
MAX_TEXT: Final = 1000
"""Characters of a title, and of a text: a restart may cost the rest."""
MAX_AGE: Final = 86400.0
"""Seconds after which a message is no news any more."""
MAX_BYTES: Final = 700_000
"""Of the document: a ConfigMap holds 1 MiB. Beyond it topics are left out, the oldest first; then
messages, the youngest first."""
MAX_KEPT: Final = 64 * 1024
"""Bytes kept of a document that cannot be read."""
INTERVAL: Final = 1.0

_log = structlog.get_logger(__name__)


class Unsent(msgspec.Struct, frozen=True):
    """A message that is under way, and when it was made, in epoch seconds."""

    message: SendMessage
    created: float


class Correspondence(msgspec.Struct, frozen=True, kw_only=True):
    """The document."""

    version: int = MESSAGES_VERSION
    unsent: tuple[Unsent, ...] = ()
    topics: Mapping[str, Sequence[Topic]] = {}
    told: Mapping[str, float] = {}
    """When messages of no step arrived, by key: the next leader sends none of them again."""


class Source(NamedTuple):
    """Where the present state comes from."""

    unsent: Callable[[], Sequence[tuple[SendMessage, float]]]
    topics: Callable[[], Mapping[str, Sequence[Topic]]]
    told: Callable[[], Mapping[str, float]]


class MessageMemory:
    """Loads the document when we begin to lead, and keeps it while we do.

    Args:
        configmaps: the ConfigMaps of our namespace, with the lease as their check.
    """

    def __init__(self, *, configmaps: ConfigMapStore) -> None:
        self._document = Document(configmaps, MESSAGES_CONFIGMAP)
        self._writer: WriteBehind[Correspondence] | None = None
        self._unreadable: str | None = None

    async def load(self, *, now: float) -> Correspondence | None:
        """Return what an earlier leader left; None if that cannot be known now: ask again.

        Nobody waits for messages, so a leader need not wait for this either.
        """
        try:
            text = (await self._document.read()).get(MESSAGES_KEY)
        except ApiError as error:
            _log.warning("messages_not_read", reason=str(error))
            return None
        try:
            found = Correspondence() if text is None else _decode(text)
        except ValueError as error:
            _log.error("messages_unreadable", kept_as=UNREADABLE_KEY, reason=str(error))
            self._unreadable = beginning(text or "", MAX_KEPT)
            return Correspondence()
        young = tuple(one for one in found.unsent if now - one.created < MAX_AGE)
        if len(young) < len(found.unsent):
            _log.warning("messages_too_old", dropped=len(found.unsent) - len(young))
        return Correspondence(unsent=young, topics=found.topics, told=found.told)

    @property
    def problem(self) -> str:
        """Why the last write failed, "" if it did not."""
        return "" if self._writer is None else self._writer.problem

    def keep(self, source: Source) -> None:
        """Keep what these say from now on."""
        self._writer = WriteBehind(
            document=self._document,
            snapshot=lambda: _snapshot(source),
            encode=self._encode,
            interval=INTERVAL,
        )

    def touch(self) -> None:
        """Say that something may have changed."""
        if self._writer is not None:
            self._writer.touch()

    async def run(self) -> None:
        """Write until cancelled. Call `keep` first."""
        if self._writer is None:
            raise RuntimeError("MessageMemory.run before keep")
        await self._writer.run()

    async def flush(self, timeout: float = 1.0) -> bool:  # noqa: ASYNC109 - as of WriteBehind
        """Write the last state before an orderly end."""
        return self._writer is None or await self._writer.flush(timeout)

    def _encode(self, state: Correspondence) -> Mapping[str, str | None]:
        texts: dict[str, str | None] = {MESSAGES_KEY: encode(state)}
        if self._unreadable is not None:
            texts[UNREADABLE_KEY] = self._unreadable
        return texts


def encode(state: Correspondence) -> str:
    """Return the document's text, with as many topics, and then messages, as there is room for."""
    said = msgspec.json.encode(state)
    while len(said) > MAX_BYTES and (any(state.topics.values()) or state.unsent):
        state = _smaller(state)
        said = msgspec.json.encode(state)
    return said.decode()


def _smaller(state: Correspondence) -> Correspondence:
    """Leave out the older half of the topics; of messages, where there is no topic, the younger."""
    if not any(state.topics.values()):
        return msgspec.structs.replace(state, unsent=state.unsent[: len(state.unsent) // 2])
    halves = {name: topics[(len(topics) + 1) // 2 :] for name, topics in state.topics.items()}
    return msgspec.structs.replace(state, topics=halves)


def _snapshot(source: Source) -> Correspondence:
    unsent = tuple(
        Unsent(replace(message, title=message.title[:MAX_TEXT], text=message.text[:MAX_TEXT]), at)
        for message, at in _kept(source.unsent())
    )
    return Correspondence(unsent=unsent, topics=source.topics(), told=source.told())


def _kept(unsent: Sequence[tuple[SendMessage, float]]) -> list[tuple[SendMessage, float]]:
    """Return those that there is room for, in their order: the next leader sends them in it."""
    first = sorted(range(len(unsent)), key=lambda number: unsent[number][0].step is not None)
    return [unsent[number] for number in sorted(first[:MAX_UNSENT])]


def _decode(text: str) -> Correspondence:
    try:
        found = msgspec.json.decode(text, type=Correspondence)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is damaged: {error}") from error
    if found.version != MESSAGES_VERSION:
        raise ValueError(f"it is of version {found.version}, this program knows {MESSAGES_VERSION}")
    return found
