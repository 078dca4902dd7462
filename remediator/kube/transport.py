"""One HTTP call to the API server: bytes in, bytes out, a deadline, our own errors.

Every call ends by its deadline, which is shorter than the lease's renew deadline:
a hung server can never make a leader outlive its lease. A 401 makes the
credentials be read again, once. Nothing else is repeated here: whether a call may
be repeated depends on what it does, and the callers know.

The storm path goes through `request` for each node, so it does as little as
possible: headers are built once per kind of call, the body is ready-made bytes,
and the answer is handed on unparsed.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import structlog
from yarl import URL

from remediator.kube.access import access_of
from remediator.kube.codec import decode_status
from remediator.kube.errors import (
    ApiError,
    ConfigError,
    TimedOut,
    Unreachable,
    from_status,
)
from remediator.kube.sockets import Sockets


if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType
    from typing import Self

    from remediator.kube.config import ApiConfig

_log = structlog.get_logger(__name__)

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Accept header by which the answer to a write is its metadata, not 25 KiB of node."""

DEFAULT_TIMEOUT: Final = 5.0
"""Seconds; half of the default renew deadline, so that a failed renewal leaves time for another."""

_NO_SUCCESS = 300
_UNAUTHORIZED = 401
_STREAM_BUFFER = 1 << 20
_NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, UnicodeError)
"""The last: the server's name is none that can be looked up."""
_UNTIL_CANCELLED = aiohttp.ClientTimeout(total=None)
"""The deadline of the whole call, credentials included, is set around it."""


class ApiClient:
    """A pool of connections to one API server. Use as an async context manager.

    The elector gets a client of its own, so that a renewal never waits behind a
    thousand patches for a connection.

    Args:
        config: the server and our way in.
        timeout: default deadline of a call in seconds, connecting included.
        max_connections: calls in flight; watches count too.
        user_agent: how we appear in the server's audit log.
    """

    def __init__(
        self,
        config: ApiConfig,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        max_connections: int = 64,
        user_agent: str = "gpu-remediator",
    ) -> None:
        self.config = config
        self.timeout = timeout
        self._base = URL(config.server)
        self._prefix = self._base.path.rstrip("/")
        self._max_connections = max_connections
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None
        self._sockets = Sockets()
        self._authorization = ""
        self._headers: dict[tuple[str, str, bool], dict[str, str]] = {}
        self._options: dict[str, Any] = {"allow_redirects": False}
        if config.ssl is not None:
            self._options["ssl"] = config.ssl
        if config.server_name:
            self._options["server_hostname"] = config.server_name
        if config.proxy:
            self._options["proxy"] = config.proxy

    async def __aenter__(self) -> Self:
        """Open the pool; no connection is made yet."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._max_connections, socket_factory=self._sockets.make
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections, also those of running watches."""
        if self._session is not None:
            await self._session.close()
            await self._sockets.close()
            self._session = None

    async def request(  # noqa: D417 - the rest is said in the text
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        content_type: str = JSON,
        accept: str = JSON,
        compressed: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - a deadline of the call, handed to aiohttp
    ) -> bytes:
        """Make one call and return the body of the answer.

        Args:
            target: path and query, already escaped.
            compressed: let the server use gzip (worth it for lists only).
            timeout: seconds until `TimedOut`, credentials included; None for the client's default.

        Raises:
            ApiError: the subclass says what to do.
        """
        seconds = self.timeout if timeout is None else timeout
        authorization = None
        try:
            async with asyncio.timeout(seconds):
                authorization = await self._authorize()
                headers = self._headers_for(content_type, accept, compressed=compressed)
                status, answer, retry_after = await self._send(method, target, body, headers)
                if status == _UNAUTHORIZED and await self._reload(authorization):
                    headers = self._headers_for(content_type, accept, compressed=compressed)
                    status, answer, retry_after = await self._send(method, target, body, headers)
        except _NETWORK_ERRORS as error:
            if authorization is None:
                raise _no_credentials(method, target, seconds) from error
            raise _no_answer(method, target, error, seconds) from error
        if status < _NO_SUCCESS:
            return answer
        raise from_status(
            access_of(method, target),
            status,
            decode_status(answer),
            retry_after=_seconds(retry_after),
        )

    @contextlib.asynccontextmanager
    async def stream(
        self,
        target: str,
        *,
        read_timeout: float,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch; yields an iterator of chunks as they come from the socket.

        The answer's head must come within the client's deadline; after that, a
        pause of `read_timeout` seconds without a byte raises `TimedOut`.
        """
        session = self._open_session()
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=self.timeout, sock_read=read_timeout
        )
        authorization = None
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self.timeout):
                    authorization = await self._authorize()
                    response = await stack.enter_async_context(
                        session.get(
                            self._url(target),
                            headers=self._headers_for(JSON, JSON, compressed=False),
                            timeout=limits,
                            read_bufsize=_STREAM_BUFFER,
                            **self._options,
                        )
                    )
                    if response.status >= _NO_SUCCESS:
                        if response.status == _UNAUTHORIZED:
                            await self._reload(authorization)
                        raise from_status(
                            access_of("GET", target),
                            response.status,
                            decode_status(await response.read()),
                            retry_after=_seconds(response.headers.get("Retry-After", "")),
                        )
                yield response.content.iter_any()
        except _NETWORK_ERRORS as error:
            if authorization is None:
                raise _no_credentials("GET", target, self.timeout) from error
            raise _no_answer("GET", target, error, read_timeout) from error

    async def _send(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: dict[str, str],
    ) -> tuple[int, bytes, str]:
        session = self._open_session()
        async with session.request(
            method,
            self._url(target),
            data=body,
            headers=headers,
            timeout=_UNTIL_CANCELLED,
            **self._options,
        ) as response:
            retry_after = ""
            if response.status >= _NO_SUCCESS:
                retry_after = response.headers.get("Retry-After", "")
            return response.status, await response.read(), retry_after

    def _url(self, target: str) -> URL:
        path, _, query = target.partition("?")
        base = self._base
        return URL.build(
            scheme=base.scheme,
            authority=base.raw_authority,
            path=self._prefix + path,
            query_string=query,
            encoded=True,
        )

    def _headers_for(self, content_type: str, accept: str, *, compressed: bool) -> dict[str, str]:
        key = (content_type, accept, compressed)
        headers = self._headers.get(key)
        if headers is None:
            headers = {
                "User-Agent": self._user_agent,
                "Accept": accept,
                "Content-Type": content_type,
                "Accept-Encoding": "gzip" if compressed else "identity",
            }
            if self._authorization:
                headers["Authorization"] = self._authorization
            self._headers[key] = headers
        return headers

    async def _authorize(self) -> str:
        """Take over the current Authorization header; returns it."""
        if self.config.credentials is None:
            return ""
        current = await self.config.credentials.authorization()
        if current != self._authorization:
            self._authorization = current
            self._headers.clear()
        return current

    async def _reload(self, refused: str) -> bool:
        if self.config.credentials is None:
            return False
        try:
            changed = await self.config.credentials.reload(refused)
        except ConfigError as error:
            _log.warning("credentials cannot be read again", error=str(error))
            return False
        await self._authorize()
        return changed

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is closed: use it inside `async with`")
        return self._session


def _no_credentials(method: str, target: str, seconds: float) -> TimedOut:
    return TimedOut(
        access_of(method, target),
        message=f"no credentials within {seconds:g} s, nothing was sent: does the exec plugin"
        " of the kubeconfig, or the volume of the token file, hang?",
    )


def _no_answer(method: str, target: str, error: Exception, seconds: float) -> ApiError:
    access = access_of(method, target)
    if isinstance(error, TimeoutError):
        return TimedOut(access, message=f"no answer within {seconds:g} s")
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return Unreachable(
            access,
            message=f"TLS: {error}; does the certificate authority belong to this server?",
        )
    return Unreachable(access, message=str(error) or type(error).__name__)


def _seconds(text: str) -> float:
    """A Retry-After in seconds; the API server never sends the date form."""
    try:
        return max(0.0, float(text))
    except ValueError:
        return 0.0
