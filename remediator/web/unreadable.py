"""What comes in and is no request: counted, said now and then, and no traceback in the log.

Anybody in the cluster's network may send it: a scanner, a caller that speaks TLS where there is
none. aiohttp answers it with 400 and hands a whole traceback to its logger each time. `Unreadable`
takes that logger's place. What is no fault of the caller's is left to the true one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

import structlog
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError


SAY_SECONDS: Final = 60.0
"""Between two lines of the log that anybody could provoke."""

_log = structlog.get_logger(__name__)
_DEFECTS: Final = "aiohttp.server"


class Seldom:
    """Says when a line is due that anybody could provoke: at once, then once in `SAY_SECONDS`.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._unsaid, self._say_at = 0, float("-inf")

    def due(self) -> int:
        """Take in one more; return how many there were since the last line, 0 if none is due."""
        self._unsaid += 1
        now = self._clock()
        if now < self._say_at:
            return 0
        count, self._unsaid, self._say_at = self._unsaid, 0, now + SAY_SECONDS
        return count


class Unreadable:
    """In the place of aiohttp's logger.

    Args:
        on_unreadable: told of each request that was answered with 400 for being none.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        *,
        on_unreadable: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_unreadable = on_unreadable
        self._seldom = Seldom(clock)

    def exception(self, message: str, *args: Any, exc_info: BaseException) -> None:
        """Take in that a request could not be answered as it should."""
        if isinstance(exc_info, HttpProcessingError):
            self._none(exc_info)
        elif not isinstance(exc_info, RequestPayloadError | ConnectionError):
            logging.getLogger(_DEFECTS).error(message, *args, exc_info=exc_info)
        # Of a body that cannot be read, or does not come, whoever wanted it has said so.

    def debug(self, *_: Any, exc_info: BaseException | None = None, **__: Any) -> None:
        """Say nothing but what is as good as said by `exception`: first words that are no HTTP."""
        if isinstance(exc_info, HttpProcessingError):
            self._none(exc_info)

    def _none(self, error: HttpProcessingError) -> None:
        self._on_unreadable()
        if count := self._seldom.due():
            reason = error.message.partition(":")[0]  # what follows is what was sent: a token?
            _log.warning("requests_unreadable", count=count, reason=reason)
