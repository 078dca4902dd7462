"""Slack: a thread for each session, whose first message always says how it stands.

    chat.postMessage          the first message of a session, or of a storm of them
    + thread_ts               what follows
    chat.update               the first message again, with what came last, or that it is over

Slack answers 200 with ``ok: false`` where something is wrong, and 429 with Retry-After beyond
about one message a second. https://docs.slack.dev/reference/methods/chat.postMessage
It has no idempotency key: an answer that is lost may double a message. Each one carries our key
in its metadata. An incoming webhook can neither thread nor update: each message stands alone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import cached_property
from typing import Any, Final

import msgspec
import structlog
from yarl import URL

from remediator.act.channels.http import parts_of, post, read_url, scrub, secret
from remediator.act.channels.sender import TalkingSender
from remediator.act.envelope import Envelope, RefusedError, RetryLaterError, part_of
from remediator.decide.decision import Urgency
from remediator.decide.topics import Part, Topic, followed, opened
from remediator.policy.channels import SlackChannel
from remediator.policy.wording import MAX_TEXT, cut


_ICON: Final = {Urgency.INFO: ":information_source:", Urgency.WARNING: ":warning:"}
_CRITICAL: Final = ":rotating_light:"
_OVER: Final = ":white_check_mark:"
_RETRIED: Final = frozenset(
    {
        "fatal_error",
        "internal_error",
        "message_limit_exceeded",
        "rate_limited",
        "ratelimited",
        "request_timeout",
        "service_unavailable",
        "team_added_to_org",
    }
)
"""Errors that say "later". https://docs.slack.dev/reference/methods/chat.postMessage#errors"""
_THREAD_GONE: Final = frozenset({"thread_not_found", "message_not_found"})
_MAX_DONE: Final = 1000

_log = structlog.get_logger(__name__)


class _Answer(msgspec.Struct):
    ok: bool = False
    error: str = ""
    ts: str = ""
    channel: str = ""


class _ThreadGoneError(Exception):
    """Somebody deleted the first message."""


class SlackSender(TalkingSender[SlackChannel]):
    """One Slack channel of RemediatorConfig. See `TalkingSender` for the arguments."""

    @cached_property
    def _done(self) -> OrderedDict[tuple[str, str], None]:
        """What arrived of messages that are not through, the newest last."""
        return OrderedDict()

    async def send(self, envelope: Envelope) -> None:
        """Make one attempt. What of it arrived before is not sent again."""
        if self._spec.webhook_url_file:
            await self._simple(self._words(envelope))
            return
        for part in self._topics.parts(_scope(envelope), envelope.messages):
            mine = self._words(part_of(envelope, part.messages))
            if self._is_done(mine.key, "all"):
                continue
            if part.topic is None:
                await self._open(mine)
            else:
                await self._follow(mine, part)
            self._mark(mine.key, "all")

    async def _simple(self, envelope: Envelope) -> None:
        text = await asyncio.to_thread(secret, self._spec.webhook_url_file, "webhookUrlFile")
        url = read_url(text, "webhookUrlFile")
        await self._post(url, {"text": _text(envelope)}, headers={}, secrets=parts_of(url))

    async def _open(self, envelope: Envelope) -> None:
        answer = await self._call("chat.postMessage", _message(envelope))
        self._mark(envelope.key, "all")
        topic = opened(answer.ts, envelope.messages, title=envelope.title, place=answer.channel)
        if answer.ts and not topic.over:
            self._topics.put(_scope(envelope), topic)

    async def _follow(self, envelope: Envelope, part: Part) -> None:
        topic = followed(part.topic, part.messages) if part.topic else None
        assert topic is not None  # noqa: S101 - only called with one
        try:
            if not self._is_done(envelope.key, "reply"):
                reply = _message(envelope) | {"channel": topic.place, "thread_ts": topic.id}
                await self._call("chat.postMessage", reply)
                self._mark(envelope.key, "reply")
                self._topics.put(_scope(envelope), topic)
            await self._restate(topic, envelope)
        except _ThreadGoneError:
            self._topics.forget(_scope(envelope), topic.id)
            if not self._is_done(envelope.key, "reply"):
                await self._open(envelope)

    async def _restate(self, topic: Topic, envelope: Envelope) -> None:
        """Let the first message say how it stands; people have the reply, whatever becomes of it.

        A workspace may forbid edits, or those of older messages.
        """
        parent = {"channel": topic.place, "ts": topic.id, "text": _parent(topic, envelope)}
        try:
            await self._call("chat.update", parent)
        except RefusedError as error:
            _log.warning("slack_message_not_updated", channel=envelope.channel, reason=str(error))

    async def _call(self, method: str, body: dict[str, Any]) -> _Answer:
        """Call a method of the Web API."""
        token = await asyncio.to_thread(secret, self._spec.token_file, "tokenFile")
        said = await self._post(
            URL(f"{self._spec.api_url}/{method}"),
            {"channel": self._spec.channel, "unfurl_links": False, **body},
            headers={"Authorization": f"Bearer {token}"},
            secrets=(token,),
        )
        try:
            answer = msgspec.json.decode(said, type=_Answer)
        except msgspec.DecodeError:
            raise RetryLaterError(f"{method}: the answer is not Slack's") from None
        if answer.ok:
            return answer
        error = scrub(answer.error, (token,))[:100] or "no reason given"
        if error in _THREAD_GONE and ("thread_ts" in body or "ts" in body):
            raise _ThreadGoneError
        if error in _RETRIED:
            raise RetryLaterError(f"{method}: {error}")
        raise RefusedError(f"{method}: {error}{_ADVICE.get(error, '')}")

    async def _post(
        self, url: URL, body: dict[str, Any], *, headers: dict[str, str], secrets: tuple[str, ...]
    ) -> bytes:
        reply = await post(
            self._session,
            url,
            msgspec.json.encode(body),
            headers=headers | {"Content-Type": "application/json; charset=utf-8"},
            timeout=self._spec.timeout,
            now=self._wall(),
            secrets=secrets,
        )
        return reply.body

    def _is_done(self, key: str, what: str) -> bool:
        return (key, what) in self._done

    def _mark(self, key: str, what: str) -> None:
        self._done[key, what] = None
        while len(self._done) > _MAX_DONE:
            self._done.popitem(last=False)


_ADVICE: Final = {
    "not_in_channel": ": invite the app to the channel",
    "channel_not_found": ": write the channel's id, and invite the app to it",
    "invalid_auth": ": the token is not valid",
    "missing_scope": ": the app needs the scope chat:write",
}


def _scope(envelope: Envelope) -> str:
    """A dry run talks in threads of its own."""
    return f"dry-run/{envelope.channel}" if envelope.dry_run else envelope.channel


def _message(envelope: Envelope) -> dict[str, Any]:
    return {
        "text": _text(envelope),
        "metadata": {
            "event_type": "gpu_remediator_message",
            "event_payload": {"key": envelope.key},
        },
    }


def _text(envelope: Envelope) -> str:
    """Return title and text. A dry run says so in its first word, so there the icon is second."""
    title, icon = escape(envelope.title), _icon(envelope)
    if envelope.dry_run:
        first, _, rest = title.partition(" ")
        head = f"{first} {icon} *{rest}*"
    else:
        head = f"{icon} *{title}*"
    return f"{head}\n{escape(cut(envelope.text, MAX_TEXT))}"


def _icon(envelope: Envelope) -> str:
    return _OVER if envelope.resolves else _ICON.get(envelope.urgency, _CRITICAL)


def _parent(topic: Topic, envelope: Envelope) -> str:
    """Return how the session stands, for the thread's first message."""
    title, now = escape(topic.title), escape(envelope.title)
    if topic.over:
        icon, stands = _OVER, f"over: {now}"
    elif topic.total > 1 and len(topic.members) < topic.total:
        icon, stands = _CRITICAL, f"{topic.total - len(topic.members)} of {topic.total} are over"
    else:
        icon, stands = _icon(envelope), f"now: {now}"
    if envelope.dry_run:
        first, _, rest = title.partition(" ")
        return f"{first} {icon} *{rest}*\n{stands}"
    return f"{icon} *{title}*\n{stands}"


def escape(text: str) -> str:
    """Escape Slack's three control characters, so that no text mentions people by accident."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
