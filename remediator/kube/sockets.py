"""The sockets of one pool: how they notice a dead peer, and that none outlives the pool.

aiohttp takes a connection out of its books as soon as the call on it is cancelled or
times out, or its watch ends. Where there is TLS, the socket then stays open until the
server has answered the farewell (asyncio waits 30 s for it), and closing the session
waits only for what is in the books. So we keep our own: without, an API server that
hangs would be left with sockets that belong to nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any, Final
from weakref import WeakSet

import aiohttp


_TURNS: Final = 100
"""Turns of the event loop that a socket gets for its end; about five are needed."""


class Sockets:
    """Makes the sockets of a pool and ends those that are left when it closes."""

    def __init__(self) -> None:
        self._made: WeakSet[socket.socket] = WeakSet()

    def make(self, address: Any) -> socket.socket:
        """A socket on which the kernel notices a peer that is gone, in half a minute.

        Without it a watch over a dead connection (a NAT entry that expired, a node
        that lost power) waits for its read time-out.

        Args:
            address: an entry of `getaddrinfo`.
        """
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", 15),
            ("TCP_KEEPINTVL", 5),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 30_000),
        ):
            if hasattr(socket, option):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._made.add(made)
        return made

    async def close(self) -> None:
        """Return when all sockets are closed, whatever their servers do.

        A socket that is shut down reads as ended at once; its transport then closes it
        within a few turns of the loop, as if the server had.
        """
        for one in self._open():
            with contextlib.suppress(OSError):  # it was never connected, or the peer was quicker
                one.shutdown(socket.SHUT_RDWR)
        for _ in range(_TURNS):
            if not self._open():
                return
            await asyncio.sleep(0)

    def _open(self) -> list[socket.socket]:
        return [one for one in self._made if one.fileno() >= 0]


@contextlib.asynccontextmanager
async def http_session(*, trust_env: bool) -> AsyncIterator[aiohttp.ClientSession]:
    """A session for calls to servers of others, such as Alertmanagers. It keeps no cookie.

    Args:
        trust_env: heed ``HTTPS_PROXY`` and its like.
    """
    sockets = Sockets()
    try:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(socket_factory=sockets.make),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=trust_env,
        ) as session:
            yield session
    finally:
        await sockets.close()
