"""The step `webhook`: a signed POST to an endpoint of the cluster's people.

At least once, with one idempotency key for each attempt of the step: it is sent again until
a 2xx says that it was taken, or a 4xx that it never will be, and not behind the step's
deadline; a Retry-After is heeded. Redirects are refused: a signed request must not follow them to
another host. URL and secret may be rotated at any time, and are blotted out of what a receiver
says: that goes into the session, the record and messages. How it is signed:
:mod:`remediator.act.signing`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from yarl import URL

from remediator.act.channels.http import excerpt, parts_of, retry_after
from remediator.act.made import words_of
from remediator.act.signing import SIGNATURE_HEADER, signature_header
from remediator.clock import Clock
from remediator.decide.decision import Outcome, Work
from remediator.policy.steps import CallWebhook
from remediator.policy.templates import Endpoint, fill


PAYLOAD_VERSION: Final = 1
FIRST_RETRY: Final = 1.0
LAST_RETRY: Final = 60.0
LONGEST_RETRY_AFTER: Final = 300.0
"""Seconds that a receiver may ask us to wait."""
MAX_SECRET_BYTES: Final = 16 * 1024
_MAX_SAID: Final = 4096
_OK, _REDIRECT, _SERVER_ERROR = 200, 300, 500
_RETRIED: Final = frozenset({408, 425, 429})
"""Client errors that say "later", not "never". https://www.rfc-editor.org/rfc/rfc9110#section-15"""


class Call(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of the POST. Fields are only added within a version."""

    version: int = PAYLOAD_VERSION
    key: str
    node: str
    uid: str
    policy: str
    session: str
    step: int
    attempt: int
    data: Mapping[str, str]


class _NotYetError(Exception):
    """It was not taken, or perhaps not; it is sent again.

    ``sent``: something may have left. ``taken``: False if it was answered, None if nobody knows.
    ``after``: seconds that the receiver asked us to wait, 0 if it did not.
    """

    def __init__(
        self, why: str, *, sent: bool = False, taken: bool | None = None, after: float = 0.0
    ) -> None:
        super().__init__(why)
        self.sent = sent
        self.taken = taken
        self.after = min(after, LONGEST_RETRY_AFTER)


Called = Callable[[str, bool | None, str], None]
"""Told of each call: the endpoint's name, whether it took it (None: it may have), its answer."""


class WebhookWorker:
    """Calls endpoints.

    Args:
        endpoints: of RemediatorConfig, by name.
        session: shared with other senders; owned by the caller.
        clock: the controller's, for the signature's time.
        called: told of each call that was sent.
    """

    def __init__(
        self,
        *,
        endpoints: Mapping[str, Endpoint],
        session: aiohttp.ClientSession,
        clock: Clock,
        called: Called = lambda _name, _taken, _said: None,
    ) -> None:
        self._endpoints = endpoints
        self._session = session
        self._clock = clock
        self._called = called

    async def run(self, work: Work, *, say: Callable[[str], None]) -> Outcome:
        """Send until it is taken or refused. See :class:`Worker`."""
        spec = work.spec.webhook or CallWebhook(to="none")
        endpoint = self._endpoints.get(spec.to)
        if endpoint is None:
            note = f"RemediatorConfig has no endpoint {spec.to} under spec.endpoints"
            return Outcome(key=work.key, delivered=False, note=note)
        body, wait = body_of(work, spec), FIRST_RETRY
        while self._clock.now() < work.deadline:
            try:
                well, note = await self._send(endpoint, work.key, body)
                self._called(spec.to, well, note)
            except asyncio.CancelledError:
                self._called(spec.to, None, "called off before it was answered")
                raise
            except _NotYetError as error:
                if error.sent:
                    self._called(spec.to, error.taken, str(error))
                pause = max(wait, error.after)
                say(f"{spec.to} has not taken it yet: {error}; tried again in {pause:g} s")
                await asyncio.sleep(pause)
                wait = min(2 * wait, LAST_RETRY)
                continue
            return Outcome(key=work.key, delivered=well, note=f"{spec.to}: {note}")
        note = f"its time was over before {spec.to} had taken it"
        return Outcome(key=work.key, delivered=False, late=True, note=note)

    async def _send(self, endpoint: Endpoint, key: str, body: bytes) -> tuple[bool, str]:
        """Make one attempt. Raises _NotYetError."""
        url, secret = await asyncio.to_thread(_address, endpoint)
        stamp = int(self._clock.now())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "gpu-remediator",
            "Idempotency-Key": key,
            SIGNATURE_HEADER: signature_header(secret, stamp, body),
        }
        try:
            async with self._session.post(
                url,
                data=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=endpoint.timeout),
                allow_redirects=False,
            ) as response:
                said = await response.content.read(_MAX_SAID)
                secrets = (secret.decode(errors="replace"), *parts_of(URL(url)))
                after = retry_after(response.headers.get("Retry-After", ""), self._clock.now())
                return _meaning(response.status, excerpt(said, secrets), after)
        except TimeoutError as error:
            raise _NotYetError(f"no answer within {endpoint.timeout:g} s", sent=True) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = f"no connection ({type(error).__name__})"
            raise _NotYetError(why, sent=True) from error


def body_of(work: Work, spec: CallWebhook) -> bytes:
    """Return the body for a step; the same for each time that it is sent."""
    call = Call(
        key=work.key,
        node=work.node,
        uid=work.uid,
        policy=work.policy,
        session=work.session,
        step=work.step,
        attempt=work.attempt,
        data=fill(spec.data, words_of(work)),
    )
    return msgspec.json.encode(call)


def _meaning(status: int, text: str, after: float) -> tuple[bool, str]:
    said = f"HTTP {status}" + (f": {text}" if text else "")
    if _OK <= status < _REDIRECT:
        return True, said
    if status in _RETRIED or status >= _SERVER_ERROR:
        raise _NotYetError(said, sent=True, taken=False, after=after)
    return False, said


def _address(endpoint: Endpoint) -> tuple[str, bytes]:
    """Return URL and secret; blocking. A file that is missing may still be mounted."""
    url = endpoint.url or _read(endpoint.url_file or "", "urlFile").decode(errors="replace")
    return url, _read(endpoint.secret_file, "secretFile")


def _read(path: str, setting: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_SECRET_BYTES).strip()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise _NotYetError(f"cannot read the file of {setting} ({path}): {why}") from error
    if not text:
        raise _NotYetError(f"the file of {setting} ({path}) is empty")
    return text
