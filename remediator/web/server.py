"""``/healthz``, ``/readyz`` and ``/metrics``. Nothing here changes anything.

- ``/healthz``: the process works. Answering proves that the event loop runs; the
  `alive` checks say what else could be stuck (the elector). A failing one means: restart me.
- ``/readyz``: this replica has a synced view of the cluster, leader or not. A follower
  is ready, because it can take over at once, and because a Deployment whose follower is
  never ready never finishes a rollout. What only the leader may answer (a
  webhook) needs a readiness of its own, on a port of its own; it comes as a further
  application, served by another :class:`Server`.
- ``/metrics``: text for Prometheus.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

from aiohttp import web
from aiohttp.typedefs import Handler

from remediator.web.door import Door, Dropped, Patience
from remediator.web.unreadable import Unreadable


Check = Callable[[], str]
"""Returns "" when all is well, else what is wrong, in words."""

_SHUTDOWN_SECONDS: Final = 3.0
PATIENCE: Final = Patience()
_MAX_BODY: Final = 64 * 1024


def make_app(
    *,
    alive: Mapping[str, Check],
    ready: Mapping[str, Check],
    metrics: Callable[[], bytes],
    metrics_type: str,
) -> web.Application:
    """Return the application.

    Args:
        alive: checks of ``/healthz`` by name.
        ready: checks of ``/readyz`` by name.
        metrics: the text to scrape.
        metrics_type: its Content-Type.
    """

    async def healthz(_: web.Request) -> web.Response:
        return answer(alive)

    async def readyz(_: web.Request) -> web.Response:
        return answer(ready)

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": metrics_type})

    app = web.Application(client_max_size=_MAX_BODY)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", scrape)
    return app


class ListenError(OSError):
    """The address cannot be listened on; ``str()`` says which and why."""


class Server:
    """Serves an application while the context is open; then lets requests end, for 3 s at most.

    Args:
        app: from `make_app`.
        host: "" for every address, IPv4 and IPv6.
        port: 0 for any free one; see `port` afterwards.
        tls: None for plain HTTP.
        flag: by which the address was chosen, for errors.
        patience: with connections that only wait.
        on_drop: told of each of them that was dropped.
        on_unreadable: told of each request that was none, and so never came to the application.
    """

    def __init__(
        self,
        app: web.Application,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        flag: str = "--listen",
        patience: Patience = PATIENCE,
        on_drop: Callable[[Dropped], None] = lambda _: None,
        on_unreadable: Callable[[], None] = lambda: None,
    ) -> None:
        self.host = host
        self.port = port
        self._flag = flag
        app.middlewares.append(self._answering)
        self._runner = web.AppRunner(
            app,
            handle_signals=False,  # signals are the composition root's
            access_log=None,
            logger=Unreadable(on_unreadable=on_unreadable),
            shutdown_timeout=_SHUTDOWN_SECONDS,
            keepalive_timeout=patience.idle,
        )
        self._door = Door(self._protocol, tls=tls, patience=patience, on_drop=on_drop)

    async def __aenter__(self) -> Self:
        """Listen. Raises ListenError."""
        await self._runner.setup()
        try:
            self.port = await self._door.open(self.host, self.port)
        except OSError as error:
            await self._runner.cleanup()
            raise ListenError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror or error};"
                f" choose another address by {self._flag}"
            ) from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop listening and wait for requests under way."""
        await self._door.close()
        await self._runner.cleanup()

    def _protocol(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None, "it is made by setup"  # noqa: S101 - for the type checker
        return server()

    @web.middleware
    async def _answering(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let the door know which connections only wait."""
        self._door.busy(request.protocol)
        try:
            return await handler(request)
        finally:
            self._door.idle(request.protocol)


def answer(checks: Mapping[str, Check]) -> web.Response:
    """Say of each check whether it is well: 200 if all are, else 503."""
    lines, failed = [], False
    for name, check in checks.items():
        trouble = check()
        failed = failed or bool(trouble)
        lines.append(f"[-] {name}: {trouble}" if trouble else f"[+] {name}: ok")
    text = "\n".join([*lines, "not ok" if failed else "ok"]) + "\n"
    return web.Response(text=text, status=503 if failed else 200)
