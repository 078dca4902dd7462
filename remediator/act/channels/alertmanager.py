"""Alertmanager's API v2: alerts ``GpuRemediation``, for the routes that there already are.

    labels        alertname, node, policy, severity, the channel's own; of a dry run dry_run="true"
    annotations   summary, description, session
    endsAt        in `lasts`; now, when the remediation has ended

An alert with the same labels is the same alert, so that sending again changes nothing. As a
Prometheus does, we send what is open again and again: else it would end by its time, which tells
people of an end that is none, or be gone with a restart of Alertmanager. A message that resolves
ends the alerts of every severity that its session sent. Alertmanagers do not pass alerts on to
each other: all peers are told, and one that takes them is enough.
https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

import msgspec
from msgspec.structs import replace
from yarl import URL

from remediator.act.channels.http import post, secret
from remediator.act.channels.sender import TalkingSender
from remediator.act.envelope import Envelope, RefusedError, part_of
from remediator.decide.decision import SendMessage, Urgency
from remediator.decide.topics import conversation, followed, opened
from remediator.policy.channels import AlertmanagerChannel
from remediator.policy.wording import MAX_TEXT, cut


ALERT_NAME: Final = "GpuRemediation"
RENEW_SECONDS: Final = 300.0
_AT_ONCE: Final = 200
"""Alerts of one request of `renew`."""
_MAX_KEPT: Final = 300
"""Characters of a text that are remembered, and so sent anew."""
_DRY_RUN: Final = "dry-run/"


class Alert(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One of ``postableAlerts``."""

    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: str
    ends_at: str


class _Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """An open alert, as a topic remembers it: enough to send it anew. ``since``: epoch seconds."""

    policy: str
    severity: str
    node: str = ""
    title: str = ""
    text: str = ""
    since: float = 0.0

    @property
    def kind(self) -> tuple[str, str]:
        """What makes it one alert, within its session."""
        return self.policy, self.severity


class AlertmanagerSender(TalkingSender[AlertmanagerChannel]):
    """One Alertmanager of RemediatorConfig. See `TalkingSender` for the arguments."""

    @cached_property
    def _turn(self) -> asyncio.Lock:
        """So that nothing is sent anew behind its end."""
        return asyncio.Lock()

    @property
    def renew_every(self) -> float:
        """Seconds between two calls of `renew`."""
        return min(RENEW_SECONDS, max(1.0, self._spec.lasts / 3))

    async def send(self, envelope: Envelope) -> None:
        """Make one attempt: each message is an alert, and Alertmanager groups them."""
        async with self._turn:
            alerts = [
                alert for message in envelope.messages for alert in self._alerts(envelope, message)
            ]
            if alerts:
                await self._post(msgspec.json.encode(alerts))
            for message in envelope.messages:
                self._sent(envelope, message)

    async def renew(self, name: str) -> None:
        """Send what is open at this channel anew: it lasts, and returns after a restart there.

        Raises:
            RetryLaterError, RefusedError: as `send`.
        """
        async with self._turn:
            now = self._wall()
            alerts = [
                self._alert(mark, topic.id, dry_run=dry_run, ends=now + self._spec.lasts)
                for scope, dry_run in ((name, False), (f"{_DRY_RUN}{name}", True))
                for topic in self._topics.of(scope)
                for mark in map(_read, topic.marks)
                if mark.title  # one of an earlier version is not known well enough
            ]
            for start in range(0, len(alerts), _AT_ONCE):
                await self._post(msgspec.json.encode(alerts[start : start + _AT_ONCE]))

    def _alerts(self, envelope: Envelope, message: SendMessage) -> Iterator[Alert]:
        now = self._wall()
        ends = now if message.resolves else now + self._spec.lasts
        for mark in self._marks(envelope, message):
            yield self._alert(mark, conversation(message), dry_run=envelope.dry_run, ends=ends)

    def _alert(self, mark: _Mark, session: str, *, dry_run: bool, ends: float) -> Alert:
        own = {"alertname": ALERT_NAME, "node": mark.node, "policy": mark.policy}
        own |= {"severity": mark.severity, "dry_run": "true" if dry_run else ""}
        return Alert(
            labels={key: value for key, value in {**own, **self._spec.labels}.items() if value},
            annotations={"summary": mark.title, "description": mark.text, "session": session},
            # Of one that it has, Alertmanager keeps the start that it knows.
            starts_at=_stamp(min(mark.since, ends)),
            ends_at=_stamp(ends),
        )

    def _marks(self, envelope: Envelope, message: SendMessage) -> list[_Mark]:
        """Return the alerts that a message is about, with its words."""
        one = self._words(part_of(envelope, [message]))
        said = _Mark(
            policy=message.policy,
            severity=message.urgency.value,
            node=message.node,
            title=one.title,
            text=cut(one.text, MAX_TEXT),
            since=envelope.created,
        )
        if not message.resolves:
            return [said]
        topic = self._topics.find(_scope(envelope), conversation(message))
        if topic is None:  # forgotten: whatever it was, it ends
            return [replace(said, severity=urgency.value) for urgency in Urgency]
        sent = [mark.kind for mark in map(_read, topic.marks)]
        return [
            replace(said, policy=policy, severity=severity)
            for policy, severity in sent
            if message.policy in {"", policy}
        ]

    def _sent(self, envelope: Envelope, message: SendMessage) -> None:
        scope, name = _scope(envelope), conversation(message)
        topic = self._topics.find(scope, name)
        if topic is None:
            if message.resolves:
                return
            topic = opened(name, [message], title="")
        marks = self._marks(envelope, message)
        topic = followed(topic, [message])
        if topic.over:
            self._topics.forget(scope, topic.id)
            return
        kinds = {mark.kind for mark in marks}
        kept = tuple(one for one in topic.marks if _read(one).kind not in kinds)
        fresh = () if message.resolves else tuple(map(_written, marks))
        self._topics.put(scope, dataclasses.replace(topic, marks=kept + fresh))

    async def _post(self, body: bytes) -> None:
        """Send to every peer. Raises only if none takes it."""
        headers: dict[str, str] = {}
        secrets: tuple[str, ...] = ()
        if self._spec.bearer_token_file:
            token = await asyncio.to_thread(secret, self._spec.bearer_token_file, "bearerTokenFile")
            headers, secrets = {"Authorization": f"Bearer {token}"}, (token,)
        answers = await asyncio.gather(
            *(
                post(
                    self._session,
                    URL(f"{url.rstrip('/')}/api/v2/alerts"),
                    body,
                    headers=headers,
                    timeout=self._spec.timeout,
                    now=self._wall(),
                    secrets=secrets,
                )
                for url in self._spec.urls
            ),
            return_exceptions=True,
        )
        failures = [one for one in answers if isinstance(one, BaseException)]
        if len(failures) < len(answers):
            return
        # One that may take it later is worth another attempt for all.
        raise next((one for one in failures if not isinstance(one, RefusedError)), failures[0])


def _written(mark: _Mark) -> str:
    return msgspec.json.encode(replace(mark, text=cut(mark.text, _MAX_KEPT))).decode()


def _read(text: str) -> _Mark:
    """Read a mark; one of an earlier version says policy and severity alone."""
    try:
        return msgspec.json.decode(text, type=_Mark)
    except (msgspec.DecodeError, RecursionError):
        policy, _, severity = text.rpartition("|")
        return _Mark(policy, severity)


def _scope(envelope: Envelope) -> str:
    return f"{_DRY_RUN}{envelope.channel}" if envelope.dry_run else envelope.channel


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
