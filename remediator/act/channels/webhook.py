"""Messages as JSON by POST: payload version 1, documented in docs/controller/notifications.md.

At least once: a receiver drops what it has seen by the header ``Idempotency-Key``, which
stays the same over retries. Only a 2xx counts as delivered. Redirects are refused: a
token must not follow them to another host.

URL and token may stand in files (mounted secrets). They are read at each attempt, so
that a rotated one is used at once, and they appear in no log line and no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from yarl import URL

from remediator.act.envelope import Envelope, RefusedError, RetryLaterError
from remediator.policy.channels import WebhookChannel


PAYLOAD_VERSION: Final = 1
MAX_SECRET_BYTES: Final = 16 * 1024
_EXCERPT: Final = 200
_RETRIED: Final = frozenset({408, 425, 429})
"""Client errors that say "later", not "never". https://www.rfc-editor.org/rfc/rfc9110#section-15"""
_OK, _REDIRECT, _CLIENT_ERROR, _SERVER_ERROR = 200, 300, 400, 500


class PayloadMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One of the messages that the envelope carries."""

    key: str
    node: str
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


class WebhookSender:
    """One webhook of RemediatorConfig.

    Args:
        spec: URL, token and times.
        session: shared by all webhooks; owned by the caller.
        wall: epoch seconds, for a Retry-After that is a date.
    """

    def __init__(
        self,
        spec: WebhookChannel,
        *,
        session: aiohttp.ClientSession,
        wall: Callable[[], float] = lambda: datetime.now(UTC).timestamp(),
    ) -> None:
        self.give_up_after = spec.give_up_after
        self._spec = spec
        self._session = session
        self._wall = wall

    async def send(self, envelope: Envelope) -> None:
        """Make one attempt. Raises RetryLaterError or RefusedError."""
        url, headers = await asyncio.to_thread(self._address)
        headers["Idempotency-Key"] = _header_safe(envelope.key)
        try:
            async with self._session.post(
                url,
                data=msgspec.json.encode(payload_of(envelope)),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=self._spec.timeout),
                allow_redirects=False,
            ) as response:
                if not _OK <= response.status < _REDIRECT:
                    raise self._refusal(response, await _excerpt(response))
        except TimeoutError as error:
            raise RetryLaterError(f"no answer within {self._spec.timeout:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise RetryLaterError(_network_trouble(error)) from error

    def _address(self) -> tuple[URL, dict[str, str]]:
        """Return URL and headers; blocking, reads the files."""
        text = self._spec.url or _secret(self._spec.url_file, "urlFile")
        try:
            url = URL(text)
        except ValueError:
            url = URL()
        if url.scheme not in {"http", "https"} or not url.host:
            raise RetryLaterError("the file of urlFile does not hold an http(s) URL")
        headers = {"Content-Type": "application/json", "User-Agent": "gpu-remediator"}
        if self._spec.bearer_token_file:
            token = _secret(self._spec.bearer_token_file, "bearerTokenFile")
            headers["Authorization"] = f"Bearer {token}"
        return url, headers

    def _refusal(
        self, response: aiohttp.ClientResponse, excerpt: str
    ) -> RetryLaterError | RefusedError:
        said = f"HTTP {response.status}" + (f": {excerpt}" if excerpt else "")
        if response.status in _RETRIED or response.status >= _SERVER_ERROR:
            after = _retry_after(response.headers.get("Retry-After", ""), self._wall())
            return RetryLaterError(said, after=after)
        if response.status < _CLIENT_ERROR:
            return RefusedError(
                f"HTTP {response.status}: redirects are not followed; configure the final URL"
            )
        return RefusedError(said)


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
            PayloadMessage(key=m.key, node=m.node, title=m.title, text=m.text)
            for m in envelope.messages
        ),
    )


def _secret(path: str | None, setting: str) -> str:
    """Read a secret's one line. A file that is missing may still be mounted: try later."""
    try:
        with Path(path or "").open("rb") as file:
            text = file.read(MAX_SECRET_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise RetryLaterError(f"cannot read the file of {setting} ({path}): {why}") from error
    if not text or not text.isprintable() or " " in text:
        raise RetryLaterError(f"the file of {setting} ({path}) must hold exactly one word")
    return text


def _header_safe(key: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() else "_" for c in key)[:500]


async def _excerpt(response: aiohttp.ClientResponse) -> str:
    """Return the begin of the answer, for people; an answer that breaks off is no answer."""
    body = await response.content.read(_EXCERPT)
    return " ".join(body.decode(errors="replace").split())


def _retry_after(value: str, now: float) -> float:
    """Seconds of a Retry-After, in either of its forms; 0 when it cannot be read."""
    if value.isdecimal():
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, when.timestamp() - now)


def _network_trouble(error: Any) -> str:
    """Say what failed without the URL, which may be a secret."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return f"TLS with {error.host} failed: its certificate is not trusted or not valid"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection to {error.host}:{error.port} ({error.strerror})"
    return f"the connection failed ({type(error).__name__})"
