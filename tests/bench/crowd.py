"""An API server in front of the real one that shows more nodes than the real one could hold.

LIST and WATCH of nodes are answered here: copies of one real Node, each with names, ids and
annotations of its own, in pages and gzipped as the server would. Everything else goes to the real
server. Nothing is kept but one Node, so 20,000 of 25 KiB need no 500 MB here, and no etcd.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
import uuid
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from tests.bench.site import Site


_LISTED: Final = 1_000_000
"""resourceVersion of the LIST; those of events follow."""
_BOOKMARK_SECONDS: Final = 20.0
_HOP: Final = {"host", "content-length", "transfer-encoding", "connection", "content-encoding"}


class Crowd:
    """`count` copies of a node; a context manager, served by a thread.

    Args:
        site: the real server.
        node: the name of the Node that is copied.
        count: how many there are.

    Attributes:
        sent: heartbeats sent so far.
    """

    def __init__(self, site: Site, node: str, *, count: int) -> None:
        self.sent = 0
        self._site = site
        _, raw = site.cluster.api.raw("GET", f"/api/v1/nodes/{node}")
        found = json.loads(raw)
        found.pop("kind"), found.pop("apiVersion")
        self._count = count
        self._template = json.dumps(found, separators=(",", ":"))
        self._name, meta = node, found["metadata"]
        self._uid, self._version = meta["uid"], meta["resourceVersion"]
        self._boot = found["status"]["nodeInfo"]["bootID"]
        self._beat = max(one["lastHeartbeatTime"] for one in found["status"]["conditions"])
        self._beats = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="crowd", daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def beat(self) -> None:
        """Let every node send one heartbeat, as fast as the watcher takes them."""
        self._loop.call_soon_threadsafe(self._beats.set)

    def node(self, number: int, *, version: int, beat: str) -> str:
        """One of the nodes, as JSON."""
        name = f"gpu-{number:05}"
        text = self._template.replace(self._name, name)
        for known, kind in ((self._uid, uuid.NAMESPACE_OID), (self._boot, uuid.NAMESPACE_DNS)):
            text = text.replace(known, str(uuid.uuid5(kind, f"crowd-{name}")))
        text = text.replace(f'"lastHeartbeatTime":"{self._beat}"', f'"lastHeartbeatTime":"{beat}"')
        version_key = '"resourceVersion":'
        return text.replace(f'{version_key}"{self._version}"', f'{version_key}"{version}"', 1)

    async def _start(self) -> None:
        certs = self._site.plane.folder / "certs"
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certs / "apiserver.crt", certs / "apiserver.key")
        tls = ssl.create_default_context(cafile=str(self._site.plane.ca_file))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        app = web.Application()
        app.router.add_get("/api/v1/nodes", self._nodes)
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"https://127.0.0.1:{port}"

    async def _end(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _nodes(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") in {"1", "true"}:
            return await self._watch(request)
        first = int(request.query.get("continue", "0"))
        last = min(first + int(request.query.get("limit", self._count)), self._count)
        items = (self.node(n, version=_LISTED - n, beat=self._beat) for n in range(first, last))
        meta = {"resourceVersion": str(_LISTED)}
        if last < self._count:
            meta["continue"] = str(last)
        head = f'{{"kind":"NodeList","apiVersion":"v1","metadata":{json.dumps(meta)},"items":['
        response = web.Response(text=f"{head}{','.join(items)}]}}", content_type="application/json")
        response.enable_compression()
        return response

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            try:
                await asyncio.wait_for(self._beats.wait(), _BOOKMARK_SECONDS)
            except TimeoutError:
                version = _LISTED + self.sent
                kind = (
                    f'"kind":"Node","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"}}'
                )
                await response.write(f'{{"type":"BOOKMARK","object":{{{kind}}}}}\n'.encode())
                continue
            self._beats.clear()
            for number in range(self._count):
                self.sent += 1
                stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                node = self.node(number, version=_LISTED + self.sent, beat=stamp)
                await response.write(f'{{"type":"MODIFIED","object":{node}}}\n'.encode())

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        headers = {key: value for key, value in request.headers.items() if key.lower() != "host"}
        real = urlsplit(self._site.plane.url)
        target = request.url.with_host(real.hostname or "").with_port(real.port)
        async with self._session.request(
            request.method, target, headers=headers, data=await request.read()
        ) as answer:
            kept = {
                key: value
                for key, value in answer.headers.items()
                if key.lower() not in _HOP or key.lower() == "content-encoding"
            }
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response
