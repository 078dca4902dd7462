"""Polls of every peer of one Alertmanager: what each has is handed to the book.

A webhook call makes the next poll due at once: it may have been sent before a silence.
https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import aiohttp
import structlog

from remediator.clock import Clock
from remediator.policy.sources import Alertmanager
from remediator.signals.alertbook import AlertBook
from remediator.signals.alerts import Alert, AlertsUnreadableError, decode_poll
from remediator.signals.credentials import CredentialsError, headers_of, tls_of


_log = structlog.get_logger(__name__)

PATH: Final = "/api/v2/alerts"
MAX_BODY: Final = 64 << 20
SOONEST_POLL: Final = 1.0
"""Seconds between two polls of a peer, however many webhook calls there are."""
RETRY_SECONDS: Final = 5.0
_OK: Final = 200
_CHUNK: Final = 1 << 16
_LARGE: Final = 1 << 18
"""Bytes from which a body is read in a thread of its own."""


class PollFailedError(Exception):
    """A peer did not answer as it should; ``str()`` says how."""


class Poller:
    """Asks every peer of one Alertmanager, at its interval.

    Args:
        book: takes the answers in.
        session: for all calls; owned by the caller.
        clock: the controller's.
        news: called after each poll.
    """

    def __init__(
        self,
        book: AlertBook,
        *,
        session: aiohttp.ClientSession,
        clock: Clock,
        news: Callable[[], None],
    ) -> None:
        self._book = book
        self._session = session
        self._clock = clock
        self._news = news
        self._pokes = {url: asyncio.Event() for url in book.spec.urls}

    def poke(self) -> None:
        """Ask soon."""
        for one in self._pokes.values():
            one.set()

    async def run(self) -> None:
        """Poll until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for url in self._book.spec.urls:
                tasks.create_task(self._follow(url))

    async def once(self) -> None:
        """Poll each peer once."""
        async with asyncio.TaskGroup() as tasks:
            for url in self._book.spec.urls:
                tasks.create_task(self._poll(url, quiet=False))

    async def _follow(self, url: str) -> None:
        interval, good = self._book.spec.interval, True
        while True:
            was_good, good = good, await self._poll(url, quiet=not good)
            if good and not was_good:
                _log.info("alertmanager_answers", source=self._book.spec.name, url=url)
            await asyncio.sleep(min(SOONEST_POLL, interval))
            rest = (interval if good else min(interval, RETRY_SECONDS)) - SOONEST_POLL
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, rest)):
                    await self._pokes[url].wait()
            self._pokes[url].clear()

    async def _poll(self, url: str, *, quiet: bool) -> bool:
        spec = self._book.spec
        try:
            alerts = await poll(spec, url, session=self._session)
        except PollFailedError as error:
            self._book.failed(url, str(error))
            if not quiet:
                _log.warning("poll_failed", source=spec.name, url=url, reason=str(error))
        else:
            self._book.polled(url, alerts, self._clock.now())
        self._news()
        return self._book.trusts(url)


async def poll(
    spec: Alertmanager, url: str, *, session: aiohttp.ClientSession
) -> tuple[Alert, ...]:
    """Return all alerts that one peer has, suppressed ones, too. Raises PollFailedError."""
    try:
        async with asyncio.timeout(spec.timeout):
            body = await _get(spec, url, session)
            if len(body) > _LARGE:
                return await asyncio.to_thread(decode_poll, body)
            return decode_poll(body)
    except TimeoutError:
        raise PollFailedError(f"no answer within {spec.timeout:g} s") from None
    except (aiohttp.ClientError, OSError, UnicodeError) as error:  # the last: no name of a host
        raise PollFailedError(f"{type(error).__name__}: {error}") from error
    except (AlertsUnreadableError, CredentialsError) as error:
        raise PollFailedError(str(error)) from error


async def _get(spec: Alertmanager, url: str, session: aiohttp.ClientSession) -> bytes:
    headers = await asyncio.to_thread(headers_of, spec.access)
    secure = url.startswith("https:")
    context = await asyncio.to_thread(tls_of, spec.access) if secure else True
    params = [("active", "true"), ("silenced", "true"), ("inhibited", "true")]
    params += [
        ("unprocessed", "true"),
        *(("filter", _matcher(*one)) for one in spec.labels.items()),
    ]
    async with session.get(
        url.rstrip("/") + PATH,
        params=params,
        headers=headers,
        ssl=context,
        allow_redirects=False,  # a token must not follow one to another host
    ) as response:
        if response.status != _OK:
            raise PollFailedError(f"it answers {response.status} {response.reason or ''}".strip())
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            body += chunk
            if len(body) > MAX_BODY:
                raise PollFailedError(f"its answer is longer than {MAX_BODY} bytes")
        return bytes(body)


def _matcher(label: str, value: str) -> str:
    quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{label}="{quoted}"'
