"""Alertmanager's API v2: alerts ``GpuRemediation``, for the routes that there already are.

    labels        alertname, node, policy, severity, the channel's own; of a dry run dry_run="true"
    annotations   summary, description, session
    endsAt        in `lasts`; now, when the remediation has ended

An alert with the same labels is the same alert, so that sending again changes nothing. A message
that resolves ends the alerts of every severity that its session sent. Alertmanagers do not pass
alerts on to each other: all peers are told, and one that takes them is enough.
https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import msgspec
from yarl import URL

from remediator.act.channels.http import post, secret
from remediator.act.channels.sender import TalkingSender
from remediator.act.envelope import Envelope, RefusedError, part_of
from remediator.decide.decision import SendMessage, Urgency
from remediator.decide.topics import conversation, followed, opened
from remediator.policy.channels import AlertmanagerChannel
from remediator.policy.wording import MAX_TEXT, cut


ALERT_NAME: Final = "GpuRemediation"


class Alert(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One of ``postableAlerts``."""

    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: str
    ends_at: str


class AlertmanagerSender(TalkingSender[AlertmanagerChannel]):
    """One Alertmanager of RemediatorConfig. See `TalkingSender` for the arguments."""

    async def send(self, envelope: Envelope) -> None:
        """Make one attempt: each message is an alert, and Alertmanager groups them."""
        alerts = [
            alert for message in envelope.messages for alert in self._alerts(envelope, message)
        ]
        if alerts:
            await self._post(msgspec.json.encode(alerts))
        for message in envelope.messages:
            self._sent(envelope, message)

    def _alerts(self, envelope: Envelope, message: SendMessage) -> Iterator[Alert]:
        now = self._wall()
        one = self._words(part_of(envelope, [message]))
        annotations = {
            "summary": one.title,
            "description": cut(one.text, MAX_TEXT),
            "session": conversation(message),
        }
        for policy, severity in self._kinds(envelope, message):
            own = {"alertname": ALERT_NAME, "node": message.node, "policy": policy}
            own |= {"severity": severity, "dry_run": "true" if envelope.dry_run else ""}
            labels = {key: value for key, value in {**own, **self._spec.labels}.items() if value}
            yield Alert(
                labels=labels,
                annotations=annotations,
                # Of one that ended, Alertmanager keeps the start that it knows.
                starts_at=_stamp(min(envelope.created, now)),
                ends_at=_stamp(now if message.resolves else now + self._spec.lasts),
            )

    def _kinds(self, envelope: Envelope, message: SendMessage) -> list[tuple[str, str]]:
        """Return policy and severity of the alerts that a message is about."""
        if not message.resolves:
            return [(message.policy, message.urgency.value)]
        topic = self._topics.find(_scope(envelope), conversation(message))
        if topic is None:  # forgotten: whatever it was, it ends
            return [(message.policy, urgency.value) for urgency in Urgency]
        sent = [(policy, severity) for policy, _, severity in map(_split, topic.marks)]
        return [one for one in sent if message.policy in {"", one[0]}]

    def _sent(self, envelope: Envelope, message: SendMessage) -> None:
        scope, name = _scope(envelope), conversation(message)
        topic = self._topics.find(scope, name)
        if topic is None:
            if message.resolves:
                return
            topic = opened(name, [message], title="")
        topic = followed(topic, [message])
        if topic.over:
            self._topics.forget(scope, topic.id)
            return
        kinds = self._kinds(envelope, message)
        marks = tuple(f"{policy}|{severity}" for policy, severity in kinds)
        kept = tuple(one for one in topic.marks if one not in marks)
        self._topics.put(scope, replace(topic, marks=kept if message.resolves else kept + marks))

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


def _split(mark: str) -> tuple[str, str, str]:
    return mark.rpartition("|")


def _scope(envelope: Envelope) -> str:
    return f"dry-run/{envelope.channel}" if envelope.dry_run else envelope.channel


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
