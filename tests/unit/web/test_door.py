"""Whoever is slow keeps nobody out, and does not stay: real sockets, with and without TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from remediator.policy.sources import WebhookTls
from remediator.web.door import Dropped, Patience
from remediator.web.server import Server
from remediator.web.tls import ReloadingTls
from testbed.certificates import make_certificates


MOST = 8
LONG = Patience(header=60.0, idle=60.0, most=MOST)
Slow = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving(
    patience: Patience,
    *,
    tls: ssl.SSLContext | None = None,
    on_drop: Callable[[Dropped], None] = lambda _: None,
) -> AsyncIterator[int]:
    """Echo what is posted to ``/``; give the port."""

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    app = web.Application()
    app.router.add_post("/", echo)
    async with Server(
        app, host="127.0.0.1", port=0, tls=tls, patience=patience, on_drop=on_drop
    ) as server:
        yield server.port


@pytest.fixture
async def crowd() -> AsyncIterator[Callable[[int, int], Awaitable[list[Slow]]]]:
    """So many connections to a port that send half of a header and no more."""
    made: list[Slow] = []

    async def connect(port: int, count: int) -> list[Slow]:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            await writer.drain()
            made.append((reader, writer))
        return made[-count:]

    yield connect
    for _, writer in made:
        writer.transport.abort()


async def post(port: int, body: bytes, *, tls: ssl.SSLContext | None = None) -> bytes:
    url = f"http{'s' if tls else ''}://127.0.0.1:{port}/"
    async with (
        aiohttp.ClientSession() as client,
        client.post(url, data=body, ssl=tls or True) as answer,
    ):
        return await answer.read()


async def ended(one: Slow) -> None:
    """Wait until the server has dropped it."""
    try:
        while await one[0].read(100):
            pass
    except ConnectionError:
        pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, {"ca": ["server"]})
    return folder


@pytest.fixture
def both_sides(certificates: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS of the server and of its callers."""
    spec = {
        "certFile": str(certificates / "server.pem"),
        "keyFile": str(certificates / "server.key"),
    }
    ours = ReloadingTls(WebhookTls.model_validate(spec)).context
    return ours, ssl.create_default_context(cafile=str(certificates / "ca.pem"))


async def test_a_crowd_of_slow_headers_keeps_nobody_out(
    crowd: Callable[[int, int], Awaitable[list[Slow]]],
) -> None:
    dropped: list[str] = []
    async with serving(LONG, on_drop=dropped.append) as port:
        for _ in range(3):
            slow = await crowd(port, 3 * MOST)
            assert await post(port, b"alert") == b"alert"
            for one in slow[: 2 * MOST]:
                await ended(one)  # who has waited longest makes room
    assert len(dropped) >= 6 * MOST
    assert set(dropped) == {"crowd"}


async def test_a_crowd_that_never_shakes_hands_keeps_nobody_out(
    crowd: Callable[[int, int], Awaitable[list[Slow]]],
    both_sides: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    ours, theirs = both_sides
    async with serving(LONG, tls=ours) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * MOST)]
        assert await post(port, b"alert", tls=theirs) == b"alert"
        for one in silent[: 2 * MOST]:
            await ended(one)
        for _, writer in silent:
            writer.transport.abort()
        await crowd(port, 3 * MOST)  # what they say is no hello
        assert await post(port, b"alert", tls=theirs) == b"alert"


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("says", [b"", b"\x16\x03", b"POST / HTTP/1.1\r\n"])
async def test_who_never_comes_to_the_point_is_dropped(
    both_sides: tuple[ssl.SSLContext, ssl.SSLContext], says: bytes, *, secure: bool
) -> None:
    tls = both_sides[0] if secure else None
    dropped: list[str] = []
    patience = Patience(header=0.2, idle=60.0, most=MOST)
    async with serving(patience, tls=tls, on_drop=dropped.append) as port:
        one = await asyncio.open_connection("127.0.0.1", port)
        one[1].write(says)
        await ended(one)
        one[1].transport.abort()
    if secure and says.startswith(b"POST"):
        assert dropped == ["handshake"]
    elif says == b"\x16\x03" and not secure:
        assert dropped == []  # answered at once
    else:
        assert dropped == ["header"]


async def test_a_header_that_trickles_in_is_dropped_all_the_same() -> None:
    async with serving(Patience(header=0.3, idle=60.0, most=MOST)) as port:
        one = await asyncio.open_connection("127.0.0.1", port)

        async def trickle() -> None:
            one[1].write(b"POST / HTTP/1.1\r\nX-Slow: ")
            while not one[1].is_closing():
                one[1].write(b"x")
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        await ended(one)
        trickling.cancel()
        one[1].transport.abort()


async def test_whose_request_is_being_answered_is_not_dropped(
    crowd: Callable[[int, int], Awaitable[list[Slow]]],
) -> None:
    """Its body is the application's to bound: here it takes longer than any header may."""
    async with serving(Patience(header=0.2, idle=60.0, most=MOST)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab")
        for one in await crowd(port, 3 * MOST):
            await ended(one)
        writer.write(b"cd")
        assert (await reader.readuntil(b"abcd")).startswith(b"HTTP/1.1 200")
        writer.transport.abort()


async def test_a_connection_that_is_kept_waits_again(
    crowd: Callable[[int, int], Awaitable[list[Slow]]],
) -> None:
    async with serving(LONG) as port:
        kept = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            kept[1].write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab")
            await kept[0].readuntil(b"ab")
        await crowd(port, 2 * MOST)
        await ended(kept)
        kept[1].transport.abort()


async def test_a_kept_connection_is_dropped_after_its_time() -> None:
    async with serving(Patience(header=0.2, idle=0.2, most=MOST)) as port:
        kept = await asyncio.open_connection("127.0.0.1", port)
        kept[1].write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab")
        await ended(kept)
        kept[1].transport.abort()


async def test_who_does_not_take_his_answers_is_dropped_and_counted() -> None:
    dropped: asyncio.Queue[str] = asyncio.Queue()
    patience = Patience(header=60.0, idle=0.2, most=MOST)
    async with serving(patience, on_drop=dropped.put_nowait) as port:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port
        )  # reads no more than its buffer
        body = bytes(1_000_000)
        head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        for _ in range(24):  # more than the kernel's buffers hold
            writer.write(head + body)
        assert await asyncio.wait_for(dropped.get(), 20) == "idle"
        writer.transport.abort()


async def test_it_closes_while_callers_are_still_at_the_door(
    both_sides: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async with serving(LONG, tls=both_sides[0]) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    for one in silent:
        await ended(one)
        one[1].transport.abort()
