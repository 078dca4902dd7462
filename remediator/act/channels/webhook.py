"""Messages as JSON by POST: payload version 1, documented in docs/controller/notifications.md.

At least once: a receiver drops what it has seen by the header ``Idempotency-Key``, which
stays the same over retries. Only a 2xx counts as delivered. With ``secretFile`` it is signed, as
:mod:`remediator.act.signing` says.

URL and token may stand in files (mounted secrets). They are read at each attempt, so
that a rotated one is used at once, and they appear in no log line and no error.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

import msgspec
from yarl import URL

from remediator.act.channels.http import (
    header_safe,
    parts_of,
    post,
    read_url,
    secret,
    secret_bytes,
)
from remediator.act.channels.sender import PostingSender
from remediator.act.envelope import Envelope
from remediator.act.signing import SIGNATURE_HEADER, signature_header
from remediator.policy.channels import WebhookChannel


PAYLOAD_VERSION: Final = 1


class PayloadMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One of the messages that the envelope carries."""

    key: str
    node: str
    kind: str
    title: str
    text: str


class Payload(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of the POST. Fields are only added within a version."""

    version: int = PAYLOAD_VERSION
    key: str
    channel: str
    time: str
    """RFC 3339, UTC: when the first of the messages was made."""
    title: str
    text: str
    urgency: str
    resolves: bool
    """This ends what an earlier message about the same nodes and policy began."""
    dry_run: bool
    policy: str
    nodes: tuple[str, ...]
    messages: tuple[PayloadMessage, ...]


class WebhookSender(PostingSender[WebhookChannel]):
    """One webhook of RemediatorConfig. See `PostingSender` for the arguments."""

    async def send(self, envelope: Envelope) -> None:
        """Make one attempt. Raises RetryLaterError or RefusedError."""
        body = msgspec.json.encode(payload_of(self._words(envelope)))
        url, headers, secrets = await asyncio.to_thread(self._address, body)
        headers["Idempotency-Key"] = header_safe(envelope.key)
        await post(
            self._session,
            url,
            body,
            headers=headers,
            timeout=self._spec.timeout,
            now=self._wall(),
            secrets=secrets,
        )

    def _address(self, body: bytes) -> tuple[URL, dict[str, str], list[str]]:
        """Return URL, headers, and what of them is secret; blocking, reads the files."""
        spec, headers = self._spec, {}
        url = read_url(spec.url or secret(spec.url_file, "urlFile"), "urlFile")
        secrets = list(parts_of(url))
        if spec.bearer_token_file:
            token = secret(spec.bearer_token_file, "bearerTokenFile")
            secrets.append(token)
            headers["Authorization"] = f"Bearer {token}"
        if spec.secret_file:
            key = secret_bytes(spec.secret_file, "secretFile")
            secrets.append(key.decode(errors="replace"))
            headers[SIGNATURE_HEADER] = signature_header(key, int(self._wall()), body)
        return url, headers, secrets


def payload_of(envelope: Envelope) -> Payload:
    """Return the body for an envelope."""
    return Payload(
        key=envelope.key,
        channel=envelope.channel,
        time=datetime.fromtimestamp(envelope.created, UTC).isoformat(timespec="milliseconds"),
        title=envelope.title,
        text=envelope.text,
        urgency=envelope.urgency.value,
        resolves=envelope.resolves,
        dry_run=envelope.dry_run,
        policy=envelope.policy,
        nodes=envelope.nodes,
        messages=tuple(
            PayloadMessage(key=m.key, node=m.node, kind=m.kind, title=m.title, text=m.text)
            for m in envelope.messages
        ),
    )
