"""One POST, as every channel over HTTP makes it, and the meaning of what comes back.

Redirects are refused: a token must not follow them to another host. Secrets are read from
their files at each attempt, and are blotted out of what a receiver says before anybody sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
from yarl import URL

from remediator.act.envelope import RefusedError, RetryLaterError


MAX_SECRET_BYTES: Final = 16 * 1024
MAX_REPLY: Final = 64 * 1024
USER_AGENT: Final = "gpu-remediator"
BLOT: Final = "***"
_EXCERPT: Final = 200
_SHORTEST_SECRET: Final = 6
"""Characters; blotting out shorter parts of an address would only make errors unreadable."""
_RETRIED: Final = frozenset({408, 425, 429})
"""Client errors that say "later", not "never". https://www.rfc-editor.org/rfc/rfc9110#section-15"""
_OK, _REDIRECT, _CLIENT_ERROR, _SERVER_ERROR = 200, 300, 400, 500


class Reply(NamedTuple):
    """A 2xx, and the begin of its body."""

    status: int
    body: bytes


async def post(
    session: aiohttp.ClientSession,
    url: URL,
    body: bytes,
    *,
    headers: Mapping[str, str],
    timeout: float,  # noqa: ASYNC109 - of the request, which aiohttp ends better
    now: float,
    secrets: Iterable[str] = (),
) -> Reply:
    """POST JSON once.

    Raises:
        RetryLaterError: no answer, or one that says later.
        RefusedError: an answer that says never.
    """
    own = {"Content-Type": "application/json", "User-Agent": USER_AGENT}
    try:
        async with session.post(
            url,
            data=body,
            headers=own | dict(headers),
            timeout=aiohttp.ClientTimeout(total=timeout),
            allow_redirects=False,
        ) as response:
            said = await _begin(response)
            if _OK <= response.status < _REDIRECT:
                return Reply(response.status, said)
            after = retry_after(response.headers.get("Retry-After", ""), now)
            raise _refusal(response.status, excerpt(said, secrets), after)
    except TimeoutError:
        raise RetryLaterError(f"no answer within {timeout:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise RetryLaterError(_network_trouble(error)) from None  # its text may hold the address


def read_url(text: str, setting: str) -> URL:
    """Return the URL that a secret file holds. Raises RetryLaterError: it may be replaced."""
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in {"http", "https"} or not url.host:
        raise RetryLaterError(f"the file of {setting} does not hold an http(s) URL")
    return url


def secret(path: str | None, setting: str) -> str:
    """Read a secret's one word; blocking. A file that is missing may still be mounted: try later.

    Raises:
        RetryLaterError: it cannot be read, or holds something else.
    """
    text = secret_bytes(path, setting).decode(errors="replace")
    if not text or not text.isprintable() or " " in text or "\N{REPLACEMENT CHARACTER}" in text:
        raise RetryLaterError(f"the file of {setting} ({path}) must hold exactly one word")
    return text


def secret_bytes(path: str | None, setting: str) -> bytes:
    """Read a secret of any bytes, without white space around it; blocking.

    Raises:
        RetryLaterError: it cannot be read, or is empty.
    """
    try:
        with Path(path or "").open("rb") as file:
            text = file.read(MAX_SECRET_BYTES).strip()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise RetryLaterError(f"cannot read the file of {setting} ({path}): {why}") from error
    if not text:
        raise RetryLaterError(f"the file of {setting} ({path}) must hold exactly one word")
    return text


def parts_of(url: URL) -> tuple[str, ...]:
    """Return what of an address may be a secret: all of it but scheme and host."""
    parts = [str(url), url.raw_path_qs, url.path_qs, url.raw_query_string, url.query_string]
    parts += [*url.parts, *url.query.values(), url.password or "", url.user or ""]
    return tuple(part for part in parts if len(part) >= _SHORTEST_SECRET)


def scrub(text: str, secrets: Iterable[str]) -> str:
    """Blot out secrets, the longest first."""
    for word in sorted({one for one in secrets if one}, key=len, reverse=True):
        text = text.replace(word, BLOT)
    return text


def excerpt(body: bytes, secrets: Iterable[str]) -> str:
    """Return the begin of an answer, for people."""
    text = " ".join(scrub(body.decode(errors="replace"), secrets).split())
    return text[:_EXCERPT]


def header_safe(key: str) -> str:
    """Return a key as a header's value."""
    return "".join(c if c.isascii() and c.isprintable() else "_" for c in key)[:500]


def retry_after(value: str, now: float) -> float:
    """Seconds of a Retry-After, in either of its forms; 0 when it cannot be read."""
    if value.isdecimal():
        return float(value[:9])
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, when.timestamp() - now)


def wall() -> float:
    """Epoch seconds, for a Retry-After that is a date."""
    return datetime.now(UTC).timestamp()


async def _begin(response: aiohttp.ClientResponse) -> bytes:
    """Return the begin of a body; one that breaks off is no answer."""
    said = b""
    while len(said) < MAX_REPLY and (piece := await response.content.read(MAX_REPLY - len(said))):
        said += piece
    return said


def _refusal(status: int, said: str, after: float) -> RetryLaterError | RefusedError:
    text = f"HTTP {status}" + (f": {said}" if said else "")
    if status in _RETRIED or status >= _SERVER_ERROR:
        return RetryLaterError(text, after=after)
    if status < _CLIENT_ERROR:
        return RefusedError(f"HTTP {status}: redirects are not followed; configure the final URL")
    return RefusedError(text)


def _network_trouble(error: Any) -> str:
    """Say what failed without the URL, which may be a secret."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return f"TLS with {error.host} failed: its certificate is not trusted or not valid"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection to {error.host}:{error.port} ({error.strerror})"
    return f"the connection failed ({type(error).__name__})"
