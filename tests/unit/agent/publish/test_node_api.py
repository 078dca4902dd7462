"""No socket outlives the agent's client, though the API server does not even say farewell."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from node_agent.publish.access import ServiceAccount
from node_agent.publish.node_api import NodeApi
from testbed import mute


async def test_no_socket_is_left_by_a_request_without_an_answer(tmp_path: Path) -> None:
    with mute.serving(tmp_path) as server:
        host, _, port = server.url.removeprefix("https://").rpartition(":")
        (tmp_path / "token").write_text("secret")
        (tmp_path / "ca.crt").write_bytes(server.ca_file.read_bytes())
        access = ServiceAccount(
            environ={"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port},
            folder=tmp_path,
        )
        async with NodeApi(access=access, node="n1", timeout=60, clock=time.monotonic) as api:
            request = asyncio.create_task(api.read())
            assert await asyncio.to_thread(server.asked.wait, 10)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            assert not server.left.is_set()
        assert await asyncio.to_thread(server.left.wait, 10)  # asyncio would wait 30 s
