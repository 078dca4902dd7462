"""How connections come in: nobody can keep others out by being slow.

    accept --> handshake, header --> request is answered --> next header, or gone
               (waiting)                                     (waiting)

Anybody in the cluster's network may connect, and a connection costs us a file. So those that
*wait*, for a TLS handshake or for the header of a request, are bounded: in time, from the accept
on, and in number. Of too many the one that has waited longest is dropped: a caller that means it
sends its header within milliseconds, and so is never among those, however many others only hold
on. Whose request is being answered does not wait: what it may still do is the application's to
bound (`remediator.web.webhook` asks for a token before it reads a body, and bounds that).

aiohttp bounds neither the first header nor the number of connections.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import structlog

from remediator.web.unreadable import SAY_SECONDS, Seldom


_log = structlog.get_logger(__name__)

SWEEP_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 3.0
"""For the other side of a TLS connection to say that it has heard of the end."""
RETRY_SECONDS: Final = 0.1
"""Before the next accept when there is no file left; those that wait longest make room."""
_BACKLOG: Final = 128


class Dropped(StrEnum):
    """Why a connection was dropped."""

    HEADER = "header"
    """Its first request did not come in time."""
    IDLE = "idle"
    """Its answer was not taken in time. Who has it, and asks no more, goes by aiohttp's timer."""
    HANDSHAKE = "handshake"
    """TLS could not be agreed upon: the caller has no certificate that counts, does not trust ours,
    or speaks none."""
    CROWD = "crowd"
    """It had waited longest, and there was no room for one more."""


class Patience(NamedTuple):
    """How long connections may wait, in seconds, and how many of them.

    ``header``: from the accept to the end of the first request's header, TLS handshake included.
    ``idle``: from one request to the next, and for reading an answer.
    """

    header: float = 10.0
    idle: float = 75.0
    most: int = 256


@dataclass(eq=False, slots=True)
class _Guest:
    """One connection.

    ``until``: when it is dropped; None while it does not wait. ``late``: why it is, then.
    """

    until: float | None
    late: Dropped = Dropped.HEADER
    entering: asyncio.Task[None] | None = None
    transport: asyncio.Transport | None = None

    @property
    def gone(self) -> bool:
        """Whether it has been closed, by whomever."""
        return self.transport is not None and self.transport.is_closing()

    def drop(self) -> None:
        """Close it now."""
        if self.transport is not None:
            self.transport.abort()
        elif self.entering is not None:
            self.entering.cancel()


class Door:
    """Listens, and hands connections over, while it is open.

    Args:
        protocol: makes what serves one connection.
        tls: None for plain TCP.
        patience: how long a connection may wait, and how many may.
        on_drop: told of each connection that is dropped, for being slow or too many.
    """

    def __init__(
        self,
        protocol: Callable[[], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None = None,
        patience: Patience,
        on_drop: Callable[[Dropped], None],
    ) -> None:
        self._protocol = protocol
        self._tls = tls
        self._patience = patience
        self._on_drop = on_drop
        self._guests: dict[_Guest, None] = {}
        """All that are connected; those that wait in the order in which they began to."""
        self._by: dict[asyncio.BaseProtocol, _Guest] = {}
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._unsaid, self._say_at = 0, 0.0
        self._strangers = Seldom()

    async def open(self, host: str, port: int) -> int:
        """Listen, and return the port; `host` "" means every address. Raises OSError."""
        loop = asyncio.get_running_loop()
        bound = await loop.create_server(asyncio.Protocol, host or None, port, start_serving=False)
        self._sockets = [one.dup() for one in bound.sockets]  # bound as asyncio does it
        bound.close()
        for one in self._sockets:
            one.settimeout(0.0)
            one.listen(_BACKLOG)
            self._tasks.append(asyncio.create_task(self._accept(one)))
        self._tasks.append(asyncio.create_task(self._sweep()))
        return int(self._sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Listen no more, and drop who has not come in; who has is left to its protocol."""
        entering = [one.entering for one in self._guests if one.entering is not None]
        for task in (*self._tasks, *entering):
            task.cancel()
        await asyncio.gather(*self._tasks, *entering, return_exceptions=True)
        for one in self._sockets:
            one.close()

    def busy(self, protocol: asyncio.BaseProtocol) -> None:
        """Take in that a request of this connection is being answered."""
        if (guest := self._by.get(protocol)) is not None:
            guest.until = None

    def idle(self, protocol: asyncio.BaseProtocol) -> None:
        """Take in that it was answered: from now on the connection waits for the next."""
        guest = self._by.get(protocol)
        if guest is not None and guest in self._guests:
            guest.late = Dropped.IDLE
            self._wait(guest, self._patience.idle)

    # -- coming in ---------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket) -> None:
        loop, starved = asyncio.get_running_loop(), False
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:  # mostly: no file left
                if not starved:
                    _log.warning("connection_not_accepted", reason=str(error))
                starved = True
                self._make_room()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            starved = False
            if self._waiting() >= self._patience.most:
                self._make_room()
            self._let_in(connection)

    def _let_in(self, connection: socket.socket) -> None:
        guest = _Guest(until=None)
        self._wait(guest, self._patience.header)
        guest.entering = asyncio.create_task(self._enter(guest, connection))

        def close(entering: asyncio.Task[None]) -> None:
            if entering.cancelled():  # perhaps before it began, and then nobody closed anything
                connection.close()

        guest.entering.add_done_callback(close)

    async def _enter(self, guest: _Guest, connection: socket.socket) -> None:
        """Shake hands. A caller that goes is no trouble of ours; one that cannot may be one."""

        def protocol() -> asyncio.Protocol:
            made = self._protocol()
            self._by[made] = guest
            return made

        try:
            guest.transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                protocol,
                connection,
                ssl=self._tls,
                ssl_shutdown_timeout=CLOSE_SECONDS if self._tls is not None else None,
            )
        except ssl.SSLError as error:
            self._guests.pop(guest, None)
            self._on_drop(Dropped.HANDSHAKE)
            if count := self._strangers.due():
                why = error.reason or str(error)
                _log.warning("tls_handshakes_failed", count=count, reason=why)
        except OSError as error:
            self._guests.pop(guest, None)
            _log.debug("connection_not_made", reason=str(error))
        finally:
            guest.entering = None

    # -- going out ---------------------------------------------------------------------------

    def _wait(self, guest: _Guest, seconds: float) -> None:
        """Put it behind all others that wait."""
        self._guests.pop(guest, None)
        self._guests[guest] = None
        guest.until = asyncio.get_running_loop().time() + seconds

    def _waiting(self) -> int:
        return sum(one.until is not None for one in self._guests)

    def _make_room(self) -> None:
        """Forget who is gone; if that is nobody who waited, drop who has waited longest."""
        before = self._waiting()
        self._forget()
        if self._waiting() == before:
            longest = next((one for one in self._guests if one.until is not None), None)
            if longest is not None:
                self._drop(longest, Dropped.CROWD)

    def _forget(self) -> None:
        for guest in [one for one in self._guests if one.gone]:
            del self._guests[guest]
        for protocol in [key for key, one in self._by.items() if one not in self._guests]:
            del self._by[protocol]

    def _drop(self, guest: _Guest, why: Dropped) -> None:
        self._unsaid += 1
        del self._guests[guest]
        guest.drop()
        self._on_drop(why)

    async def _sweep(self) -> None:
        """Drop who has waited for too long, and say now and then how many were dropped."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._patience.header / 2))
            now = loop.time()
            self._forget()
            for guest in [one for one in self._guests if one.until is not None]:
                if guest.until is not None and guest.until <= now:
                    self._drop(guest, guest.late)
            if self._unsaid and now >= self._say_at:
                count, self._unsaid = self._unsaid, 0
                self._say_at = now + SAY_SECONDS
                _log.warning("slow_connections_dropped", count=count, waiting=self._waiting())
