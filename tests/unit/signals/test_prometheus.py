"""Queries by prometheus-api-client: deadlines that hold, threads that are left to themselves."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remediator.policy.sources import Prometheus
from remediator.signals.prometheus import (
    MAX_THREADS,
    PrometheusServer,
    QueryRefusedError,
    SourceFailedError,
)


Respond = Callable[[http.server.BaseHTTPRequestHandler], None]


class Fake:
    """A server that answers as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.respond: Respond = lambda handler: say(handler, vector([]))
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                fake.asked.append((self.path, dict(self.headers)))
                fake.respond(self)

            do_GET = do_POST  # noqa: N815 - the library's name

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/prefix"


def say(handler: http.server.BaseHTTPRequestHandler, body: bytes, code: int = 200) -> None:
    handler.send_response(code)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def vector(result: object) -> bytes:
    data = {"resultType": "vector", "result": result}
    return json.dumps({"status": "success", "data": data}).encode()


@pytest.fixture
def fake() -> Iterator[Fake]:
    made = Fake()
    yield made
    made.server.shutdown()
    made.server.server_close()


def server(fake: Fake, timeout: str = "5s", **changes: Any) -> PrometheusServer:
    spec = {"name": "main", "url": fake.url, "timeout": timeout, **changes}
    return PrometheusServer(Prometheus.model_validate(spec))


async def test_an_instant_query_is_asked_with_the_token(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    result = [{"metric": {"node": "n1"}, "value": [1.0, "79"]}]
    fake.respond = lambda handler: say(handler, vector(result))
    access = {"bearerTokenFile": str(tmp_path / "token")}
    assert await server(fake, access=access).query("a == 79") == result
    ((path, headers),) = fake.asked
    assert path.startswith("/prefix/api/v1/query?query=a+%3D%3D+79&timeout=5s")
    assert headers["Authorization"] == "Bearer secret"


async def test_a_query_is_asked_once_whatever_comes_back(fake: Fake) -> None:
    fake.respond = lambda handler: say(handler, b"busy", 503)
    with pytest.raises(SourceFailedError, match="503"):
        await server(fake).query("x")
    assert len(fake.asked) == 1


async def test_a_wrong_query_is_told_from_a_server_that_fails(fake: Fake) -> None:
    fake.respond = lambda handler: say(handler, b'{"error":"parse error"}', 400)
    with pytest.raises(QueryRefusedError, match="parse error"):
        await server(fake).query("sum(")


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"data": 3}', b"[" * 100_000], ids=str
)
async def test_what_is_no_answer_of_prometheus_is_said(fake: Fake, body: bytes) -> None:
    fake.respond = lambda handler: say(handler, body)
    with pytest.raises(SourceFailedError):
        await server(fake).query("x")


async def test_a_redirect_is_not_followed(fake: Fake) -> None:
    def redirect(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(307)
        handler.send_header("Location", "/elsewhere")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    fake.respond = redirect
    with pytest.raises(SourceFailedError):
        await server(fake).query("x")
    assert len(fake.asked) == 1


async def test_nobody_there_is_said() -> None:
    spec = Prometheus.model_validate({"name": "m", "url": "http://127.0.0.1:1"})
    with pytest.raises(SourceFailedError, match="ConnectionError"):
        await PrometheusServer(spec).query("x")


async def test_an_answer_that_trickles_ends_at_the_deadline(fake: Fake) -> None:
    stop = threading.Event()

    def trickle(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not stop.wait(0.05):
            try:
                handler.wfile.write(b" ")
            except OSError:
                return

    fake.respond = trickle
    asked = server(fake, timeout="300ms")
    with pytest.raises(SourceFailedError, match=r"end|within"):
        await asked.query("x")
    stop.set()


async def test_a_thread_that_hangs_is_left_and_the_next_is_not_kept_waiting() -> None:
    release = threading.Event()

    def ask(promql: str) -> Any:
        if promql == "hang":
            release.wait(60)
        return []

    spec = Prometheus.model_validate({"name": "m", "url": "http://h", "timeout": "100ms"})
    asked = PrometheusServer(spec, ask=ask)
    for _ in range(MAX_THREADS):
        with pytest.raises(SourceFailedError, match="no answer within"):
            await _soon(asked, "hang")
    with pytest.raises(SourceFailedError, match="have not come back"):
        await asked.query("x")
    release.set()
    async with asyncio.timeout(60):
        while asked.hanging:  # noqa: ASYNC110 - threads set no event of the loop
            await asyncio.sleep(0.01)
    assert await asked.query("x") == []


async def _soon(asked: PrometheusServer, promql: str) -> Any:
    begun = time.monotonic()
    try:
        return await asked.query(promql)
    finally:
        assert time.monotonic() - begun < 30
