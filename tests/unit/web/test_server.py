"""Health, readiness and metrics over real HTTP; nothing can be changed there."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from remediator.web.server import ListenError, Server, make_app


class Process:
    """What the checks look at."""

    def __init__(self) -> None:
        self.lease = self.synced = ""


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
async def server(process: Process) -> AsyncIterator[Server]:
    app = make_app(
        alive={"lease": lambda: process.lease},
        ready={"nodes": lambda: process.synced},
        metrics=lambda: b"leader 1.0\n",
        metrics_type="text/plain; version=0.0.4",
    )
    async with Server(app, host="127.0.0.1", port=0) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as client:
        yield client


async def get(client: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with client.get(path) as response:
        return response.status, await response.text()


async def test_well_is_200(client: aiohttp.ClientSession) -> None:
    assert await get(client, "/healthz") == (200, "[+] lease: ok\nok\n")
    assert await get(client, "/readyz") == (200, "[+] nodes: ok\nok\n")


async def test_unwell_is_503_and_says_what(client: aiohttp.ClientSession, process: Process) -> None:
    process.lease = "held but not renewed"
    process.synced = "not synced yet"

    assert await get(client, "/healthz") == (503, "[-] lease: held but not renewed\nnot ok\n")
    assert await get(client, "/readyz") == (503, "[-] nodes: not synced yet\nnot ok\n")


async def test_metrics_are_served_with_their_type(client: aiohttp.ClientSession) -> None:
    async with client.get("/metrics") as response:
        assert await response.read() == b"leader 1.0\n"
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_nothing_can_be_changed(
    client: aiohttp.ClientSession, method: str, path: str
) -> None:
    async with client.request(method, path, data=b"x") as response:
        assert response.status == 405


async def test_an_address_in_use_is_said_with_the_way_out(server: Server) -> None:
    app = make_app(alive={}, ready={}, metrics=bytes, metrics_type="text/plain")

    with pytest.raises(ListenError, match=rf"127.0.0.1:{server.port}: .*--listen"):
        async with Server(app, host="127.0.0.1", port=server.port):
            pass


async def test_it_stops_listening_at_the_end() -> None:
    app = make_app(alive={}, ready={}, metrics=bytes, metrics_type="text/plain")
    async with Server(app, host="127.0.0.1", port=0) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.close()
        await writer.wait_closed()

    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", server.port)
