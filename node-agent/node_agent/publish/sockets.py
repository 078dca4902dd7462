"""The sockets of a client's pool: none of them outlives it, whatever the API server does.

A TLS connection whose request was cancelled or timed out is not in aiohttp's books any more,
but asyncio keeps it open until the server has answered the farewell, for up to 30 s. So we
keep books of our own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Final
from weakref import WeakSet


_TURNS: Final = 100
"""Turns of the event loop until a transport has seen the end of its socket; a few are needed."""


class Sockets:
    """Makes a pool's sockets, and ends what is left of them."""

    def __init__(self) -> None:
        self._made: WeakSet[socket.socket] = WeakSet()

    def make(self, address: Any) -> socket.socket:
        """A socket for an entry of `getaddrinfo`; to be aiohttp's `socket_factory`."""
        made = socket.socket(*address[:3])
        self._made.add(made)
        return made

    async def close(self) -> None:
        """Have every transport see the end of its socket at once, and close it."""
        for _ in range(_TURNS):
            left = [one for one in self._made if one.fileno() >= 0]
            if not left:
                return
            for one in left:
                with contextlib.suppress(OSError):  # not connected, or ended already
                    one.shutdown(socket.SHUT_RDWR)
            await asyncio.sleep(0)
