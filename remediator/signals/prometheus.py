"""Queries to one Prometheus: by the package prometheus-api-client, in threads of its own.

The library is synchronous, so a query runs in a thread with two deadlines: its sockets', and an
outer one after which we no longer wait for the thread. A thread that hangs is left to itself;
there are few, and when all hang, nothing more is asked. One query is under way at a time.

The library's retries would make ten seconds of a timeout of one: they are turned off.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from remediator.policy.sources import Prometheus
from remediator.signals.credentials import CredentialsError, headers_of


MAX_THREADS: Final = 4
"""Of one server, the ones that hang included."""
GRACE_SECONDS: Final = 1.0
"""What a thread may take longer than its sockets' deadline before it is left to itself."""


class SourceFailedError(Exception):
    """The server does not answer as it should; ``str()`` says how."""


class QueryRefusedError(Exception):
    """The server answers, and says what is wrong with this query."""


class Ask(Protocol):
    """Asks one query, and blocks."""

    def __call__(self, promql: str) -> Any:
        """Return ``data.result``. Raises SourceFailedError or QueryRefusedError."""


class PrometheusServer:
    """One server of RemediatorConfig.

    Args:
        spec: where it is, and how long it may take.
        ask: instead of `asker`, for tests.
    """

    def __init__(self, spec: Prometheus, *, ask: Ask | None = None) -> None:
        self.spec = spec
        self._ask = ask or asker(spec)
        self._threads: set[threading.Thread] = set()

    @property
    def hanging(self) -> int:
        """Threads that have not come back yet."""
        self._threads = {one for one in self._threads if one.is_alive()}
        return len(self._threads)

    async def query(self, promql: str) -> Any:
        """Return ``data.result`` of an instant query.

        Raises:
            SourceFailedError: no answer in time, or none that can be read.
            QueryRefusedError: the query is wrong.
        """
        if self.hanging >= MAX_THREADS:
            raise SourceFailedError(f"{MAX_THREADS} earlier queries have not come back")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        thread = threading.Thread(
            target=_answer, args=(self._ask, promql, loop, answer), daemon=True, name="promql"
        )
        self._threads.add(thread)
        thread.start()
        try:
            async with asyncio.timeout(self.spec.timeout + GRACE_SECONDS):
                return await answer
        except TimeoutError:
            raise SourceFailedError(f"no answer within {self.spec.timeout:g} s") from None


def _answer(
    ask: Ask, promql: str, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any]
) -> None:
    """Run in the thread; what comes too late is dropped."""

    def deliver(settle: Callable[[Any], None], value: Any) -> None:
        if not answer.done():
            settle(value)

    try:
        found = ask(promql)
    except Exception as error:  # noqa: BLE001 - handed to whoever waits
        settle, value = answer.set_exception, error
    else:
        settle, value = answer.set_result, found
    with contextlib.suppress(RuntimeError):  # the loop ended meanwhile: nobody waits
        loop.call_soon_threadsafe(deliver, settle, value)


def asker(spec: Prometheus) -> Ask:
    """Return what asks this server. The library is imported at the first query: it is large."""

    def ask(promql: str) -> Any:
        from remediator.signals.promapi import ask_prometheus  # noqa: PLC0415 - 30 MB, if needed

        try:
            headers = headers_of(spec.access)
        except CredentialsError as error:
            raise SourceFailedError(str(error)) from error
        return ask_prometheus(spec, promql, headers=headers)

    return ask
