"""One long-lived gRPC channel over a unix socket, for unary calls one at a time.

gRPC over HTTP/2 as its specification has it
(https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md); the HTTP/2 is h2's. grpcio
costs 44 MB and seven threads, this half a megabyte.

Invariants:

- A call ends by its deadline, in an answer or in one of the errors here.
- An answer larger than the limit is refused when the limit is reached, not when it is read.
- The call after a broken connection dials anew. So does one that finds another file at the
  socket's path: the kubelet removes the socket and makes it again when it starts.
- Between calls the connection is served too (pings, settings), and costs nothing.
"""

from __future__ import annotations

import asyncio
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote_to_bytes

import h2.events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings


class ChannelError(Exception):
    """The call had no answer. The text says why and, where one can, what to do."""


class SocketMissingError(ChannelError):
    """There is no socket, or nobody listens at it (yet)."""


class NoAccessError(ChannelError):
    """We may not connect."""


class OverloadedError(ChannelError):
    """RESOURCE_EXHAUSTED: the server asks to be called less often."""


class ReplyTooLargeError(ChannelError):
    """The answer is larger than the limit."""


class UnsupportedError(ChannelError):
    """UNIMPLEMENTED: the server does not have this method."""


class UnavailableError(ChannelError):
    """Everything else: it hung, hung up, or answered with another status."""


_OK: Final = 0
_RESOURCE_EXHAUSTED: Final = 8
_UNIMPLEMENTED: Final = 12
_NAMES: Final = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND"),
    *("ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"),
    *("ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"),
    "UNAUTHENTICATED",
)
_PREFIX: Final = struct.Struct(">BI")
_WINDOW: Final = 1 << 20
_MAX_HEADERS: Final = 65536
_MAX_SAID: Final = 200


class Channel:
    """A channel to one socket.

    Args:
        path: the socket.
        max_reply: largest answer in bytes.
    """

    def __init__(self, *, path: Path, max_reply: int) -> None:
        self._path = path
        self._max_reply = max_reply
        self._connection: _Connection | None = None
        self._file: tuple[int, int] | None = None
        self._lock = asyncio.Lock()
        self.dials = 0

    async def call(self, method: str, request: bytes, *, timeout: float) -> memoryview:  # noqa: ASYNC109
        """Call a method such as ``/v1.Service/Method``; the answer's message.

        Args:
            method: its full path.
            request: the message.
            timeout: deadline in seconds, connecting included.

        Raises:
            ChannelError: the subclass says what kind.
        """
        async with self._lock:
            try:
                async with asyncio.timeout(timeout):
                    connection = await self._connected()
                    return await connection.call(method, request, timeout)
            except TimeoutError:
                self.close()
                raise UnavailableError(
                    f"no answer within {timeout:g} s from {self._path}"
                ) from None
            except asyncio.CancelledError:
                self.close()
                raise

    def close(self) -> None:
        """Hang up. A later call dials again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _connected(self) -> _Connection:
        file = self._look()
        connection = self._connection
        if connection is not None and connection.usable and file == self._file:
            return connection
        self.close()
        loop = asyncio.get_running_loop()
        self.dials += 1
        try:
            _, connection = await loop.create_unix_connection(
                lambda: _Connection(max_reply=self._max_reply, name=str(self._path)),
                str(self._path),
            )
        except PermissionError as error:
            raise _no_access(self._path) from error
        except OSError as error:
            raise SocketMissingError(f"{self._path}: {error.strerror or error}") from error
        self._connection, self._file = connection, file
        return connection

    def _look(self) -> tuple[int, int]:
        """The identity of the socket's file."""
        try:
            status = self._path.stat()
        except PermissionError as error:
            raise _no_access(self._path) from error
        except OSError as error:
            raise SocketMissingError(f"{self._path}: {error.strerror or error}") from error
        if not stat.S_ISSOCK(status.st_mode):
            raise SocketMissingError(f"{self._path} is not a socket")
        return status.st_dev, status.st_ino


def _no_access(path: Path) -> NoAccessError:
    return NoAccessError(
        f"{path}: permission denied; connecting takes write permission on the socket, which "
        "root has unless SELinux or the mount's owner says otherwise"
    )


@dataclass(slots=True)
class _Call:
    """The one call in flight."""

    stream: int
    done: asyncio.Future[memoryview]
    data: bytearray = field(default_factory=bytearray)
    headers: dict[str, str] = field(default_factory=dict)


class _Connection(asyncio.Protocol):
    """One HTTP/2 connection, client side."""

    def __init__(self, *, max_reply: int, name: str) -> None:
        self._name = name
        self._max_reply = max_reply
        self._transport: asyncio.Transport | None = None
        self._call: _Call | None = None
        self.usable = True
        self._http2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._http2.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
                SettingCodes.MAX_HEADER_LIST_SIZE: _MAX_HEADERS,
            },
        )

    async def call(self, method: str, request: bytes, timeout: float) -> memoryview:  # noqa: ASYNC109
        """Send one request and wait for its end."""
        try:
            stream = self._http2.get_next_available_stream_id()
            self._http2.send_headers(stream, _headers(method, timeout))
            self._http2.send_data(stream, _PREFIX.pack(0, len(request)) + request, end_stream=True)
        except H2Error as error:
            raise UnavailableError(f"{self._name}: {error}") from error
        done: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._call = _Call(stream, done)
        self._flush()
        try:
            return await done
        finally:
            self._call = None

    def close(self) -> None:
        """Hang up at once."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface."""
        self._transport = cast("asyncio.Transport", transport)
        self._http2.initiate_connection()
        self._http2.increment_flow_control_window(_WINDOW)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take what came, answer what HTTP/2 wants answered."""
        try:
            for event in self._http2.receive_data(data):
                self._take(event)
        except (H2Error, ValueError, LookupError) as error:
            self._fail(UnavailableError(f"{self._name} does not speak HTTP/2: {error}"))
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side hung up, or we did."""
        self._fail(UnavailableError(f"{self._name} hung up{f': {exc}' if exc else ''}"))

    # -- events ----------------------------------------------------------------------------

    def _take(self, event: h2.events.Event) -> None:
        call = self._call
        if isinstance(event, h2.events.ConnectionTerminated):
            self._fail(UnavailableError(f"{self._name} says goodbye"))
        elif isinstance(event, h2.events.DataReceived):
            self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if call is not None and event.stream_id == call.stream:
                self._collect(call, event.data)
        elif call is None or getattr(event, "stream_id", None) != call.stream:
            return
        elif isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
            call.headers.update(_texts(event.headers))
        elif isinstance(event, h2.events.StreamEnded):
            self._finish(call)
        elif isinstance(event, h2.events.StreamReset):
            error = UnavailableError(f"{self._name} broke off: HTTP/2 error {event.error_code}")
            self._settle(call, error)

    def _collect(self, call: _Call, data: bytes) -> None:
        call.data += data
        if len(call.data) > self._max_reply + _PREFIX.size:
            self.usable = False
            self._settle(
                call,
                ReplyTooLargeError(
                    f"the answer of {self._name} is larger than {self._max_reply >> 20} MiB"
                ),
            )
            call.data = bytearray()
            self._http2.reset_stream(call.stream, ErrorCodes.CANCEL)

    def _finish(self, call: _Call) -> None:
        try:
            self._settle(call, _message(call.headers, call.data, self._name))
        except ChannelError as error:
            self._settle(call, error)

    def _fail(self, error: ChannelError) -> None:
        """The connection is of no more use."""
        self.close()
        if self._call is not None:
            self._settle(self._call, error)

    @staticmethod
    def _settle(call: _Call, result: memoryview | ChannelError) -> None:
        if call.done.done():
            return
        if isinstance(result, ChannelError):
            call.done.set_exception(result)
        else:
            call.done.set_result(result)

    def _flush(self) -> None:
        data = self._http2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def _headers(method: str, timeout: float) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),  # grpc-go refuses a path here
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "gpu-remediator-node-agent"),
        ("grpc-timeout", f"{max(1, int(timeout * 1000))}m"),
    ]


def _texts(headers: Any) -> dict[str, str]:
    return {
        bytes(name).decode("ascii", "replace"): bytes(value).decode("utf-8", "replace")
        for name, value in headers or ()
    }


def _message(headers: dict[str, str], data: bytearray, name: str) -> memoryview:
    """The message of a finished call.

    Raises:
        ChannelError: its status is not OK, or it is no single uncompressed message.
    """
    if headers.get(":status") != "200":
        raise UnavailableError(f"{name} answered with HTTP status {headers.get(':status')}")
    status = headers.get("grpc-status", "")
    if status != str(_OK):
        raise _status_error(status, headers.get("grpc-message", ""), name)
    if len(data) < _PREFIX.size:
        raise UnavailableError(f"{name} answered with no message")
    compressed, size = _PREFIX.unpack_from(data)
    if compressed or size != len(data) - _PREFIX.size:
        raise UnavailableError(f"{name} answered with no single uncompressed message")
    return memoryview(data)[_PREFIX.size :]


def _status_error(status: str, said: str, name: str) -> ChannelError:
    code = int(status) if status.isascii() and status.isdigit() else -1
    word = _NAMES[code] if 0 <= code < len(_NAMES) else f"status {status[:20]!r}"
    reason = unquote_to_bytes(said[:_MAX_SAID]).decode("utf-8", "replace")
    kinds = {_RESOURCE_EXHAUSTED: OverloadedError, _UNIMPLEMENTED: UnsupportedError}
    return kinds.get(code, UnavailableError)(f"{name}: {word} {reason}".rstrip())
