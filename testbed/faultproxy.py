r"""A proxy before the real API server that misbehaves on demand.

Plain HTTP on 127.0.0.1 in front, the server's TLS behind. Without a rule it forwards
everything, watches included; a rule makes some requests hang, break, or get another
answer. Rules can be added and cleared while requests are under way.

    async with FaultProxy(plane.url, ca_file=plane.ca_file, token=token) as proxy:
        proxy.add(Answer(410, reason="Expired"), path=r"/nodes\?.*watch=1", times=1)
        ...
        proxy.clear()

It runs on the event loop of whoever opened it.
"""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import aiohttp
from aiohttp import web

from remediator.kube.sockets import Sockets


_HOP_BY_HOP = {"connection", "host", "transfer-encoding", "content-length", "keep-alive"}


@dataclass(frozen=True)
class Hang:
    """Take the request and never answer, until the rule is cleared: then break the connection."""


@dataclass(frozen=True)
class Drop:
    """Break the connection; with `forwarded`, only after the server has carried it out."""

    forwarded: bool = False


@dataclass(frozen=True)
class Slow:
    """Forward the request after some seconds."""

    seconds: float


@dataclass(frozen=True)
class Answer:
    """Answer instead of the server, as it would refuse: a Status object."""

    status: int
    reason: str = ""
    retry_after: int | None = None
    message: str = "made up by the fault proxy"


@dataclass(frozen=True)
class Freeze:
    """A half-open connection: after the answer's head nothing arrives any more.

    With `skip_lines`, so many lines are let through first.
    """

    skip_lines: int = 0


@dataclass(frozen=True)
class Inject:
    """Put `line` before the first line of the answer; with `end`, break off after it."""

    line: bytes
    end: bool = False


@dataclass(frozen=True)
class Cut:
    """Break the connection in the middle of the answer's body, after so many bytes."""

    after: int


@dataclass(frozen=True)
class Strike:
    """Call `hit` in place of the answer, and break off; the server has carried it out by then.

    With `forwarded` false it never sees the request.
    """

    hit: Callable[[], None]
    forwarded: bool = True


Action = Hang | Drop | Slow | Answer | Freeze | Inject | Cut | Strike


class Write(NamedTuple):
    """A changing request that the server has answered."""

    method: str
    target: str
    body: bytes
    status: int


@dataclass
class Rule:
    """An action for the requests of `method` (any if empty) whose target matches `path`.

    The first `skip` of them pass; `seen` counts all.
    """

    action: Action
    method: str
    path: re.Pattern[str]
    times: int | None
    body: bytes = b""
    skip: int = 0
    seen: int = 0
    hits: int = 0
    cleared: asyncio.Event = field(default_factory=asyncio.Event)

    def takes(self, method: str, target: str, body: bytes) -> bool:
        """Count a request that the rule is about; tell whether it is acted on."""
        if (
            self.cleared.is_set()
            or (self.method and method not in self.method.split("|"))
            or self.path.search(target) is None
            or self.body not in body
        ):
            return False
        self.seen += 1
        return self.seen > self.skip and (self.times is None or self.hits < self.times)


class FaultProxy:
    """The proxy; an async context manager.

    Args:
        upstream: base URL of the API server.
        ca_file: its certificate authority; None for a server without TLS.
        token: bearer token for requests that carry none.

    Attributes:
        requests: (method, target) of all requests, in order of arrival.
        writes: those that change something, in the order of the server's answers.
    """

    def __init__(self, upstream: str, *, ca_file: Path | None = None, token: str = "") -> None:
        self.requests: list[tuple[str, str]] = []
        self.writes: list[Write] = []
        self._upstream = upstream
        self._ca_file = ca_file
        self._token = token
        self._rules: list[Rule] = []
        self._open: dict[int, web.Request] = {}  # by id: requests have no hash
        self._runner: web.AppRunner | None = None
        self._client: aiohttp.ClientSession | None = None
        self._sockets = Sockets()
        self._port = 0

    @property
    def url(self) -> str:
        """Where to send requests to."""
        return f"http://127.0.0.1:{self._port}"

    def add(
        self,
        action: Action,
        *,
        method: str = "",
        path: str = "",
        body: bytes = b"",
        skip: int = 0,
        times: int | None = None,
    ) -> Rule:
        """Do `action` to requests from now on; the latest matching rule counts.

        Args:
            action: what to do.
            method: HTTP method, or several as in `POST|PATCH`; empty for any.
            path: regular expression, searched in path and query.
            body: a part of the request's body; empty for any.
            skip: how many requests pass before the first that counts.
            times: how many requests; None for all.
        """
        rule = Rule(action, method, re.compile(path), times, body, skip)
        self._rules.insert(0, rule)
        return rule

    def clear(self) -> None:
        """Drop all rules; requests that hang or are frozen get their connection broken."""
        for rule in self._rules:
            rule.cleared.set()
        self._rules.clear()

    def break_connections(self) -> None:
        """Break every connection on which a request is under way, watches above all."""
        for request in tuple(self._open.values()):
            _abort(request)

    def count(self, method: str, path: str = "") -> int:
        """How many requests of `method` whose target matches `path` have arrived."""
        return sum(m == method and re.search(path, t) is not None for m, t in self.requests)

    async def __aenter__(self) -> Self:
        """Open the port."""
        tls = ssl.create_default_context(cafile=str(self._ca_file)) if self._ca_file else False
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls, socket_factory=self._sockets.make),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Break all connections and close the port."""
        self.clear()
        self.break_connections()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._client is not None:
            await self._client.close()
        await self._sockets.close()

    # -- one request -----------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        target = request.raw_path
        self.requests.append((request.method, target))
        self._open[id(request)] = request
        try:
            body = await request.read()
            rules = tuple(self._rules)
            rule = next((r for r in rules if r.takes(request.method, target, body)), None)
            if rule is None:
                return await self._forward(request, None)
            rule.hits += 1
            return await self._act(request, rule)
        except (aiohttp.ClientError, ConnectionError):
            return _abort(request)  # the server broke off: so do we
        finally:
            self._open.pop(id(request), None)

    async def _act(self, request: web.Request, rule: Rule) -> web.StreamResponse:
        match rule.action:
            case Hang():
                await rule.cleared.wait()
                return _abort(request)
            case Drop(forwarded=False):
                return _abort(request)
            case Strike(hit=hit, forwarded=False):
                hit()
                return _abort(request)
            case Slow(seconds=seconds):
                await asyncio.sleep(seconds)
                return await self._forward(request, None)
            case Answer() as answer:
                return _status(answer)
            case _:
                return await self._forward(request, rule)

    async def _forward(self, request: web.Request, rule: Rule | None) -> web.StreamResponse:
        if self._client is None:  # pragma: no cover
            raise RuntimeError("the proxy is closed")
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        if self._token:
            headers.setdefault("Authorization", f"Bearer {self._token}")
        async with self._client.request(
            request.method,
            self._upstream + request.raw_path,
            headers=headers,
            data=await request.read() or None,
            allow_redirects=False,
        ) as answer:
            if request.method != "GET":
                write = Write(request.method, request.raw_path, await request.read(), answer.status)
                self.writes.append(write)
            if rule is not None and isinstance(rule.action, Drop | Strike):
                await answer.read()
                if isinstance(rule.action, Strike):
                    rule.action.hit()
                return _abort(request)
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            response.enable_chunked_encoding()
            await response.prepare(request)
            async for part in _spoilt(answer.content.iter_any(), rule):
                if part is None:
                    return _abort(request)
                await response.write(part)
            with suppress(ConnectionError):
                await response.write_eof()
            return response


async def _spoilt(parts: AsyncIterator[bytes], rule: Rule | None) -> AsyncIterator[bytes | None]:
    """The body as the rule wants it; None where the connection breaks."""
    action = rule.action if rule is not None else None
    passed = 0
    if isinstance(action, Inject):
        yield action.line + b"\n"
        if action.end:
            yield None
            return
    if rule is not None and isinstance(action, Freeze) and action.skip_lines == 0:
        await rule.cleared.wait()
        yield None
        return
    async for part in parts:
        if isinstance(action, Cut) and passed + len(part) > action.after:
            yield part[: action.after - passed]
            yield None
            return
        yield part
        passed += part.count(b"\n") if isinstance(action, Freeze) else len(part)
        if rule is not None and isinstance(action, Freeze) and passed >= action.skip_lines:
            await rule.cleared.wait()
            yield None
            return


def _abort(request: web.Request) -> web.Response:
    """Reset the connection instead of answering."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _status(answer: Answer) -> web.Response:
    details = {} if answer.retry_after is None else {"retryAfterSeconds": answer.retry_after}
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": answer.message,
        "reason": answer.reason,
        "details": details,
        "code": answer.status,
    }
    headers = {} if answer.retry_after is None else {"Retry-After": str(answer.retry_after)}
    return web.Response(
        status=answer.status,
        body=json.dumps(body).encode(),
        content_type="application/json",
        headers=headers,
    )
