"""aiohttp and nothing else: what the floor, the bare loop, the load and the watcher are made of."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Self

import aiohttp
import msgspec


MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE: Final = "application/strategic-merge-patch+json"
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_BUFFER: Final = 1 << 20


class Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """The server answered with 300 or more."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


class Meta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str
    uid: str
    resource_version: str


class Spec(msgspec.Struct, frozen=True, gc=False):
    unschedulable: bool = False


class Condition(msgspec.Struct, frozen=True, gc=False):
    type: str
    status: str
    reason: str = ""


class Status(msgspec.Struct, frozen=True, gc=False):
    conditions: tuple[Condition, ...] = ()

    def shows(self, kind: str, status: str) -> bool:
        return any(one.type == kind and one.status == status for one in self.conditions)


class Node(msgspec.Struct, frozen=True, gc=False):
    metadata: Meta
    spec: Spec = Spec()
    status: Status = Status()


class Event(msgspec.Struct, frozen=True, gc=False):
    type: str
    object: Node


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str


class Answer(msgspec.Struct):
    metadata: _ListMeta


class Wire:
    """One identity on one API server; an async context manager.

    Args:
        url: the API server.
        token: bearer token.
        ca_file: what to trust.
        connections: at most so many at a time.
    """

    def __init__(self, url: str, *, token: str, ca_file: Path, connections: int = 100) -> None:
        self._url = url
        self._authorization = f"Bearer {token}"
        self._tls = ssl.create_default_context(cafile=str(ca_file))
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self._event = msgspec.json.Decoder(Event)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections, ssl=self._tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=60),
            headers={"Authorization": self._authorization, "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(
        self, method: str, path: str, body: bytes | None, kind: str, *, accept: str = ""
    ) -> bytes:
        """One request; the answer's bytes. Raises Refused."""
        headers = {"Content-Type": kind, "Accept": accept or "application/json"}
        assert self._session is not None
        async with self._session.request(
            method, self._url + path, data=body, headers=headers
        ) as response:
            answer = await response.read()
            if response.status >= 300:
                raise Refused(response.status, f"{method} {path}: {answer[:300]!r}")
            return answer

    async def patch(self, path: str, body: bytes, kind: str, *, accept: str = "") -> bytes:
        """PATCH. Raises Refused."""
        return await self.call("PATCH", path, body, kind, accept=accept)

    async def newest(self) -> str:
        """The resourceVersion of the collection of nodes now."""
        raw = await self.call("GET", "/api/v1/nodes?limit=1", None, "", accept=METADATA_LIST)
        return msgspec.json.decode(raw, type=Answer).metadata.resource_version

    async def watch(self, since: str) -> AsyncIterator[list[Event]]:
        """Watch all nodes from this version on; what each chunk from the socket completed.

        The server ends a watch whose reader it finds too slow: it is taken up again behind the
        last event, so that none is missed and none is counted twice. Never ends by itself.
        """
        while True:
            async for events in self._watch_once(since):
                if events:
                    since = events[-1].object.metadata.resource_version
                yield events

    async def _watch_once(self, since: str) -> AsyncIterator[list[Event]]:
        assert self._session is not None
        rest = b""
        async with self._session.get(
            f"{self._url}/api/v1/nodes?watch=1&resourceVersion={since}",
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=_BUFFER,
        ) as response:
            if response.status >= 300:
                raise Refused(response.status, await response.text())
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                yield [self._event.decode(line) for line in lines]
