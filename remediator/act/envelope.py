"""What a channel is given, what it may answer, and nothing of how it is sent.

An envelope is one message, or several that a storm made alike: same channel,
policy, step and kind. Its ``key`` is stable over retries; each message keeps its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from remediator.decide.decision import SendMessage, Urgency


DRY_RUN_PREFIX: Final = "[dry-run]"
MAX_LISTED: Final = 50
"""Nodes that the text of a merged message lists; the envelope has them all."""

_RANK: Final = (Urgency.INFO, Urgency.WARNING, Urgency.CRITICAL)


class RetryLaterError(Exception):
    """It did not arrive, or perhaps not; trying again may help.

    Attributes:
        after: seconds that the receiver asked us to wait, 0 when it did not say.
    """

    def __init__(self, why: str, *, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after


class RefusedError(Exception):
    """The receiver does not want it, and would not want it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One thing to send to one channel.

    Attributes:
        key: idempotency key; the message's own key where there is only one.
        created: epoch seconds at which the first of the messages was made.
        title, text: what people read; both name the nodes. Of a dry run both
            begin with ``[dry-run]``.
        messages: the messages in the order in which they came, at least one.
    """

    key: str
    channel: str
    created: float
    title: str
    text: str
    urgency: Urgency
    resolves: bool
    dry_run: bool
    policy: str
    messages: tuple[SendMessage, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes it is about, each once, in order."""
        return tuple(dict.fromkeys(m.node for m in self.messages if m.node))


class Channel(Protocol):
    """A place where messages go."""

    give_up_after: float
    """Seconds after which a message that does not arrive is given up."""

    async def send(self, envelope: Envelope) -> None:
        """Make one attempt, by the channel's own deadline.

        Raises:
            RetryLaterError: worth another attempt.
            RefusedError: not worth one.
        """


def pack(
    messages: Sequence[SendMessage], *, channel: str, dry_run: bool, created: float
) -> Envelope:
    """Put messages of one group into one envelope."""
    first = messages[0]
    prefix = f"{DRY_RUN_PREFIX} " if dry_run else ""
    if len(messages) == 1:
        title, text, key = first.title, first.text, first.key
    else:
        title, text, key = _merged_title(messages), _merged_text(messages), _merged_key(messages)
    return Envelope(
        key=f"dry-run/{key}" if dry_run else key,
        channel=channel,
        created=created,
        title=prefix + title,
        text=prefix + text,
        urgency=max((m.urgency for m in messages), key=_RANK.index),
        resolves=all(m.resolves for m in messages),
        dry_run=dry_run,
        policy=first.policy,
        messages=tuple(messages),
    )


def part_of(envelope: Envelope, messages: Sequence[SendMessage]) -> Envelope:
    """Return an envelope of some of an envelope's messages."""
    if len(messages) == len(envelope.messages):
        return envelope
    return pack(
        messages, channel=envelope.channel, dry_run=envelope.dry_run, created=envelope.created
    )


def _merged_title(messages: Sequence[SendMessage]) -> str:
    """Say how many nodes, and what of them: of the first, where they do not all say the same."""
    said = _titles(messages)
    more = "" if len(said) == 1 else "; and others, see the text"
    return f"{_nodes(messages)}: {said[0] or messages[0].policy}{more}"


def _merged_text(messages: Sequence[SendMessage]) -> str:
    alike, count = len(_titles(messages)) == 1, _nodes(messages)
    lines = [f"- {_line(one, alike=alike)}" for one in messages]
    if len(lines) > MAX_LISTED:
        left_out = len(lines) - MAX_LISTED
        lines = [*lines[:MAX_LISTED], f"- and {left_out} more; see `remediator status`"]
    if len({one.node for one in messages}) < len(messages):
        count = f"{len(messages)} messages about {count}"
    return "\n".join([f"{count} within a few seconds:", *lines])


def _nodes(messages: Sequence[SendMessage]) -> str:
    count = len({one.node for one in messages})
    return f"{count} nodes" if count > 1 else "1 node"


def _titles(messages: Sequence[SendMessage]) -> list[str]:
    """Return the titles that differ by more than the node's name, which they begin with."""
    bare = (
        f"...{one.title.removeprefix(one.node)}" if one.title.startswith(one.node) else one.title
        for one in messages
    )
    return list(dict.fromkeys(bare))


def _line(one: SendMessage, *, alike: bool) -> str:
    first = one.text.splitlines()[0] if one.text else ""
    if not alike:
        named = one.title if one.node in one.title else f"{one.node}: {one.title}"
        return f"{named}: {first}" if first else named
    return f"{one.node}: {first or one.title}"


def _merged_key(messages: Sequence[SendMessage]) -> str:
    joined = "\n".join(sorted(m.key for m in messages))
    return f"merged/{hashlib.sha256(joined.encode()).hexdigest()[:32]}"
