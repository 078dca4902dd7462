"""The requests an agent makes: read its Node, patch its status, create an Event.

And, where it is asked to and allowed to, list the pods and ResourceSlices of its node.

Reading is by narrow structs: a Node is 25 KiB, what we need of it is not. Every request
has a deadline. Nothing is repeated here but what a stale kept connection or an old token
spoils; when to try again is the publisher's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec

from node_agent.publish.access import AccessError
from node_agent.publish.sockets import Sockets


if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from node_agent.publish.access import Access

_KEEP_SECONDS: Final = 80.0
"""The API server closes connections that were idle for 90 s; we must be first."""
_MAX_ANSWER: Final = 16 << 20
_OK: Final = 300
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429

STRATEGIC_MERGE: Final = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """The request had no effect that we know of. Try again later."""

    retry_after: float = 0.0


class ApiUnavailableError(ApiError):
    """No answer, or none that means anything: network, time-out, 5xx, 429."""


class ApiRefusedError(ApiError):
    """Not allowed. The text names the RBAC rule that is missing."""


class ApiRejectedError(ApiError):
    """The server takes the request for wrong (4xx). Repeating it unchanged is useless."""


class NodeMissingError(ApiError):
    """There is no Node of this name (yet, or any more)."""


class SeenCondition(msgspec.Struct, frozen=True, rename="camel"):
    """A condition on the Node. Times are kept as the text that the server gave."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class _Meta(msgspec.Struct, frozen=True):
    uid: str = ""
    annotations: dict[str, str] | None = None


class _NodeInfo(msgspec.Struct, frozen=True):
    boot_id: str = msgspec.field(default="", name="bootID")


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    conditions: list[SeenCondition] | None = None
    node_info: _NodeInfo = _NodeInfo()


class _Node(msgspec.Struct, frozen=True):
    metadata: _Meta
    status: _Status = _Status()


class NodeView(msgspec.Struct, frozen=True):
    """What the agent needs to know of its Node."""

    uid: str
    boot_id: str
    annotations: dict[str, str]
    conditions: dict[str, SeenCondition]


def decode_node(raw: bytes) -> NodeView:
    """Read a Node object.

    Raises:
        ApiUnavailableError: it is none; something between us and the server answered.
    """
    try:
        node = msgspec.json.decode(raw, type=_Node)
    except (msgspec.DecodeError, ValueError) as error:
        raise ApiUnavailableError(f"the answer is not a Node object: {error}") from error
    return NodeView(
        uid=node.metadata.uid,
        boot_id=node.status.node_info.boot_id,
        annotations=node.metadata.annotations or {},
        conditions={c.type: c for c in node.status.conditions or ()},
    )


class NodeApi:
    """One node's client; an async context manager. Keeps its connection warm between requests.

    Args:
        access: server and identity.
        node: name of the Node object.
        timeout: deadline of one request in seconds, connecting included.
        clock: seconds that only grow.
    """

    def __init__(
        self, *, access: Access, node: str, timeout: float, clock: Callable[[], float]
    ) -> None:
        self.node = node
        self._access = access
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._seconds = timeout
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._sockets = Sockets()

    async def __aenter__(self) -> Self:
        """Open the pool; no connection is made yet."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=4, keepalive_timeout=_KEEP_SECONDS, socket_factory=self._sockets.make
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            headers={"User-Agent": "gpu-remediator-node-agent", "Accept": "application/json"},
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            await self._sockets.close()
            self._session = None

    async def read(self) -> NodeView:
        """The Node from the API server's cache (``resourceVersion=0``): no read of etcd.

        Raises:
            ApiError: the subclass says why.
        """
        path = f"/api/v1/nodes/{self.node}?resourceVersion=0"
        return decode_node(await self._request("GET", path, None, "get", "nodes"))

    async def list_objects(self, path: str, *, resource: str) -> bytes:
        """The body of a list request that one of the optional roles allows.

        Raises:
            ApiError: the subclass says why.
        """
        return await self._request("GET", path, None, "list", resource)

    async def patch_status(self, body: bytes) -> NodeView:
        """Strategic-merge patch of ``nodes/status``; the Node after it.

        Raises:
            ApiError: the subclass says why.
        """
        path = f"/api/v1/nodes/{self.node}/status"
        return decode_node(await self._request("PATCH", path, body, "patch", "nodes/status"))

    async def create_event(self, body: bytes) -> None:
        """Create a core/v1 Event; those about Nodes live in the namespace ``default``.

        Raises:
            ApiError: the subclass says why.
        """
        path = "/api/v1/namespaces/default/events"
        await self._request("POST", path, body, "create", "events")

    async def _request(
        self, method: str, path: str, body: bytes | None, verb: str, resource: str
    ) -> bytes:
        status, answer, retry_after = await self._send(method, path, body)
        if status in {_UNAUTHORIZED, _FORBIDDEN}:
            # Perhaps the token was rotated, or bound to another pod, since it was read.
            status, answer, retry_after = await self._send(method, path, body, again=True)
        if status < _OK:
            return answer
        raise _error(
            status,
            _said(answer),
            what=f"{method} {path}",
            verb=verb,
            resource=resource,
            retry_after=retry_after,
        )

    async def _send(
        self, method: str, path: str, body: bytes | None, *, again: bool = False
    ) -> tuple[int, bytes, float]:
        try:
            return await self._send_once(method, path, body, again=again)
        except aiohttp.ServerDisconnectedError:
            # A kept connection that the server closed at this very moment. Our patches and
            # reads can be repeated; an Event is created under the same name, so also that.
            return await self._send_once(method, path, body, again=False)

    async def _send_once(
        self, method: str, path: str, body: bytes | None, *, again: bool
    ) -> tuple[int, bytes, float]:
        if self._session is None:
            raise ApiUnavailableError("the client is closed")
        try:
            authorization = self._access.authorization(now=self._clock(), again=again)
        except AccessError as error:
            raise ApiUnavailableError(str(error)) from error
        headers = {"Authorization": authorization} if authorization else {}
        if body is not None:
            headers["Content-Type"] = STRATEGIC_MERGE if method == "PATCH" else "application/json"
        tls: ssl.SSLContext | bool = self._access.tls() or True
        url = self._access.server + path
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, ssl=tls, allow_redirects=False
            ) as response:
                answer = await response.read()
                return response.status, answer, _seconds(response.headers.get("Retry-After", ""))
        except aiohttp.ServerDisconnectedError:
            raise
        except TimeoutError as error:
            raise ApiUnavailableError(f"no answer within {self._seconds:g} s from {url}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiUnavailableError(f"cannot reach the API server: {error}") from error


class _Said(msgspec.Struct, frozen=True):
    message: str = ""


def _said(answer: bytes) -> str:
    try:
        return msgspec.json.decode(answer, type=_Said).message
    except (msgspec.DecodeError, ValueError):
        return answer[:200].decode("utf-8", "replace")


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _error(
    status: int, said: str, *, what: str, verb: str, resource: str, retry_after: float
) -> ApiError:
    text = f"{what}: {status} {said}".rstrip()
    if status in {_UNAUTHORIZED, _FORBIDDEN}:
        return ApiRefusedError(
            f"{text}. The agent needs the verb `{verb}` on `{resource}` "
            "(deploy/agent/rbac.yaml) and a token bound to its own pod on this node"
        )
    if status == _NOT_FOUND and resource != "events":
        return NodeMissingError(f"{text}. Is NODE_AGENT_NODE_NAME the Node's name?")
    error: ApiError = ApiUnavailableError(text)
    if _UNAUTHORIZED < status < 500 and status not in {408, 409, _TOO_MANY}:  # noqa: PLR2004
        error = ApiRejectedError(text)
    error.retry_after = retry_after
    return error
