"""``/alertmanager``: where Alertmanagers tell of an alert before the next poll would.

Alertmanager repeats a call that ends with 5xx, or not at all, and drops the alerts of every
other answer. So 2xx is said only when the effect cannot be lost: the alerts are in the leader's
memory, and the polls have them, too (or the configuration says that they may be forgotten).
What a retry may cure is 503, a slow sender included; 4xx is for what none would.
https://prometheus.io/docs/alerting/latest/configuration/#webhook_config

``/readyz`` on this port is for load balancers: only the leader is ready here.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog
from aiohttp import web

from remediator.signals.alertbook import BookFullError
from remediator.signals.alerts import AlertsUnreadableError, Report, decode_webhook
from remediator.signals.credentials import CredentialsError, read_secret
from remediator.web.server import Check, answer
from remediator.web.unreadable import Seldom


_log = structlog.get_logger(__name__)

MAX_BODY: Final = 8 << 20
"""Bytes: some ten thousand alerts in one group."""
BODY_SECONDS: Final = 10.0
TOKEN_LASTS: Final = 1.0
"""Seconds for which a token that was read is used: a rotated one is known that soon."""
_OK, _BAD, _UNAUTHORIZED, _NOT_FOUND, _METHOD = 200, 400, 401, 404, 405
_TOO_LARGE, _UNAVAILABLE = 413, 503
_BEARER: Final = "bearer "


class Accept(Protocol):
    """Takes the alerts of a call into memory."""

    def __call__(self, source: str, report: Report) -> None:
        """Raises BookFullError."""


class CallObserver(Protocol):
    """Whoever counts."""

    def webhook_called(self, code: int, *, firing: int = 0, resolved: int = 0) -> None:
        """A call was answered."""

    def connection_dropped(self, reason: str) -> None:
        """A connection was dropped for being slow, or one too many."""


class Token:
    """A bearer token in a file, compared in constant time.

    Args:
        path: the file; None if callers are known by their certificates.
        clock: seconds that never go back.
    """

    def __init__(self, path: str | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._read = ("", float("-inf"))

    def admits(self, header: str) -> bool:
        """Tell whether an ``Authorization`` header has it. Raises CredentialsError."""
        if self._path is None:
            return True
        text, at = self._read
        if self._clock() - at > TOKEN_LASTS:
            text = read_secret(self._path)
            self._read = (text, self._clock())
        given = header[len(_BEARER) :] if header[: len(_BEARER)].lower() == _BEARER else ""
        # What is no UTF-8 in a header is there as lone surrogates: another token, and no error.
        found = given.strip().encode(errors="surrogateescape")
        return hmac.compare_digest(found, text.encode())


class _Reply(Exception):  # noqa: N818 - an answer, not an error
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def make_webhook(
    *,
    sources: tuple[str, ...],
    accept: Accept,
    ready: Mapping[str, Check],
    token: Token,
    observer: CallObserver,
    body_seconds: float = BODY_SECONDS,
) -> web.Application:
    """Return the application.

    Args:
        sources: names of Alertmanagers; ``/alertmanager`` alone means the first.
        accept: takes alerts in.
        ready: what keeps us from accepting any, by name.
        token: who may call.
        observer: counts calls.
        body_seconds: in which a call's body has to come.
    """

    async def call(request: web.Request) -> web.Response:
        firing = resolved = 0
        try:
            report = await _report(request, token, ready, body_seconds)
            accept(_source(request, sources), report)
            firing, resolved = len(report.firing), len(report.resolved)
            code, text = _OK, "accepted"
        except _Reply as reply:
            code, text = reply.code, str(reply)
        except CredentialsError as error:
            observer.webhook_called(_UNAVAILABLE)
            if count := no_token.due():
                _log.error("webhook_token_unreadable", reason=str(error), count=count)
            return _response(_UNAVAILABLE, "our own token cannot be read: try again")
        except BookFullError:
            code, text = _UNAVAILABLE, "there are more alerts than can be kept: try again"
        return answered(request, code, text, firing=firing, resolved=resolved)

    def answered(request: web.Request, code: int, text: str, **alerts: int) -> web.Response:
        observer.webhook_called(code, **alerts)
        count = by_anybody[code].due() if code in by_anybody else int(code != _OK)
        if count:
            peer = request.remote
            _log.warning("webhook_refused", code=code, reason=text, peer=peer, count=count)
        return _response(code, text)

    async def elsewhere(request: web.Request) -> web.Response:
        code = _METHOD if request.path.startswith("/alertmanager") else _NOT_FOUND
        return answered(request, code, "alerts are told by POST to /alertmanager[/NAME]")

    async def readyz(_: web.Request) -> web.Response:
        return answer(ready)

    no_token = Seldom()
    by_anybody = {code: Seldom() for code in (_UNAUTHORIZED, _NOT_FOUND, _METHOD)}
    app = web.Application(client_max_size=MAX_BODY)
    app.router.add_post("/alertmanager", call)
    app.router.add_post("/alertmanager/{source}", call)
    app.router.add_get("/readyz", readyz)
    app.router.add_route("*", "/{elsewhere:.*}", elsewhere)
    return app


async def _report(
    request: web.Request, token: Token, ready: Mapping[str, Check], seconds: float
) -> Report:
    """Check who calls, whether we can accept, and what is said.

    Raises:
        _Reply: the call is refused.
        CredentialsError: our own token cannot be read.
    """
    if not token.admits(request.headers.get("Authorization", "")):
        raise _Reply(_UNAUTHORIZED, "the bearer token is missing, or another one")
    trouble = next((f"{name}: {why}" for name, check in ready.items() if (why := check())), "")
    if trouble:
        raise _Reply(_UNAVAILABLE, f"{trouble}: try again")
    body = await _body(request, seconds)
    try:
        return decode_webhook(body)
    except AlertsUnreadableError as error:
        raise _Reply(_BAD, str(error)) from error


async def _body(request: web.Request, seconds: float) -> bytes:
    if (request.content_length or 0) > MAX_BODY:
        raise _Reply(_TOO_LARGE, f"the body is longer than {MAX_BODY} bytes")
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError:
        raise _Reply(_UNAVAILABLE, f"the body did not come within {seconds:g} s") from None
    except web.HTTPRequestEntityTooLarge:
        raise _Reply(_TOO_LARGE, f"the body is longer than {MAX_BODY} bytes") from None
    except web.RequestPayloadError as error:
        raise _Reply(_BAD, "the body is not encoded as its header says") from error
    except ConnectionError as error:
        raise _Reply(_UNAVAILABLE, "the caller went away before its body had come") from error


def _source(request: web.Request, sources: tuple[str, ...]) -> str:
    wanted = request.match_info.get("source", sources[0])
    if wanted not in sources:
        raise _Reply(
            _NOT_FOUND,
            f"no Alertmanager of this name is configured; there is: {', '.join(sources)}",
        )
    return wanted


def _response(code: int, text: str) -> web.Response:
    response = web.Response(text=f"{text}\n", status=code)
    if code == _UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    if code != _OK:
        response.force_close()  # what is left of the body is not read
    return response
