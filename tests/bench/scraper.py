"""Scrapers in a closed loop, as a process of their own: each asks again as soon as it has its page.

Asks as Prometheus does (OpenMetrics first, gzip), over kept connections, and looks at no more
of an answer than its length, so that the client costs as little as a client can. Prints one
JSON object: milliseconds of each scrape, how long it took altogether, and the body's bytes.

    python -m tests.bench.scraper PORT SCRAPERS SECONDS
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys
import time
from typing import Final


REQUEST: Final = (
    b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip\r\n"
    b"Accept: application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    b"application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2\r\n"
    b"\r\n"
)
_LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Scraper(asyncio.Protocol):
    """One connection. ``took`` gets the milliseconds of each scrape until ``until``."""

    def __init__(self, took: list[float], until: float, done: asyncio.Future[int]) -> None:
        self._took = took
        self._until = until
        self._done = done
        self._begun = 0.0
        self._head = b""
        self._missing = -1
        self._body = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        if self._missing < 0:
            self._head += data
            head, end, rest = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            found = _LENGTH.search(head)
            if found is None or not head.startswith(b"HTTP/1.1 200"):
                self._done.set_exception(ValueError(f"not a page: {head!r}"))
                return
            self._body = int(found[1])
            self._missing, data = self._body, rest
        self._missing -= len(data)
        if self._missing == 0:
            self._took.append((time.perf_counter() - self._begun) * 1000)
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(exc or ConnectionError("the agent closed the connection"))

    def _ask(self) -> None:
        assert self._transport is not None
        self._begun = time.perf_counter()
        if self._begun >= self._until:
            if not self._done.done():
                self._done.set_result(self._body)
            self._transport.close()
            return
        self._head, self._missing = b"", -1
        self._transport.write(REQUEST)


async def scrape(port: int, scrapers: int, seconds: float) -> dict[str, object]:
    loop = asyncio.get_running_loop()
    took: list[float] = []
    begun = time.perf_counter()
    ends = []
    for _ in range(scrapers):
        done: asyncio.Future[int] = loop.create_future()
        ends.append(done)
        scraper = Scraper(took, begun + seconds, done)
        await loop.create_connection(lambda s=scraper: s, "127.0.0.1", port)  # type: ignore[misc]
    bodies = await asyncio.gather(*ends)
    return {"took": took, "seconds": time.perf_counter() - begun, "bytes": bodies[0]}


if __name__ == "__main__":
    gc.disable()
    port, scrapers, seconds = sys.argv[1:]
    print(json.dumps(asyncio.run(scrape(int(port), int(scrapers), float(seconds)))))
