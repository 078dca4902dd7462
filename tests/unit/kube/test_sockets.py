"""No socket outlives its pool, though the server does not even answer its farewell."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from remediator.kube.sockets import http_session
from testbed import mute


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "under-way"])
async def test_none_is_left_by_a_call_that_got_no_answer(
    tmp_path: Path, *, cancelled: bool
) -> None:
    with mute.serving(tmp_path) as server:
        tls = ssl.create_default_context(cafile=server.ca_file)
        async with http_session(trust_env=False) as session:
            call = asyncio.create_task(session.get(server.url, ssl=tls))
            assert await asyncio.to_thread(server.asked.wait, 10)
            if cancelled:
                call.cancel()
                with suppress(asyncio.CancelledError):
                    await call
                assert not server.left.is_set()
        assert await asyncio.to_thread(server.left.wait, 10)  # asyncio would wait 30 s
        await asyncio.gather(call, return_exceptions=True)
