"""The agent's two small servers: metrics and health over TCP, operators over a local socket.

The TCP side only reads. What changes something (``set-healthy``) is reachable by the unix
socket alone, whose file mode lets in no one but the agent's own user: who may ``exec``
into the pod, may.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from node_agent.health.conditions import describe
from node_agent.health.operator import TimeError, parse_time


if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from node_agent.health.operator import SetHealthy
    from node_agent.publish.page import Served

SET_HEALTHY: Final = "/set-healthy"
RELEASE: Final = "/release"
CHECK: Final = "/check"
MAX_RELEASE_SECONDS: Final = 24 * 3600.0
"""A release that nobody ends must not leave a node unwatched for ever."""
_MAX_BODY: Final = 4096


class ListenError(Exception):
    """An address cannot be listened on. The text says which, why and which setting it is."""


class SetHealthyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /set-healthy``: an RFC 3339 time; empty means now."""

    before: str = ""


class SetHealthyAnswer(msgspec.Struct, frozen=True):
    """What was cleared, or why nothing may be."""

    cleared: tuple[str, ...] = ()
    refused: str = ""


class ReleaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /release``: for how many seconds; 0 takes the GPUs again."""

    seconds: float


class ReleaseAnswer(msgspec.Struct, frozen=True):
    """``held``: why a process of the agent still holds the driver; empty: none does."""

    held: str = ""
    refused: str = ""


class PublicServer:
    """``/metrics``, ``/healthz`` and ``/readyz``.

    Args:
        page: the metrics page for the headers `Accept` and `Accept-Encoding`.
        ready: why the agent is not ready; empty when it is.
    """

    def __init__(self, *, page: Callable[[str, str], Served], ready: Callable[[], str]) -> None:
        self._page = page
        self._ready = ready
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port.

        Raises:
            ListenError: in use, or not allowed.
        """
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/healthz", self._get_health)
        app.router.add_get("/readyz", self._get_ready)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            raise ListenError(f"cannot listen on {host}:{port} (listen): {error}") from error
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Close the listener and its connections."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _get_metrics(self, request: web.Request) -> web.Response:
        headers = request.headers
        served = self._page(headers.get("Accept", ""), headers.get("Accept-Encoding", ""))
        return web.Response(body=served.body, headers=served.headers)

    async def _get_health(self, _: web.Request) -> web.Response:
        # That this answers is the proof: the loop runs, and a task that dies ends the process.
        return web.Response(text="ok\n")

    async def _get_ready(self, _: web.Request) -> web.Response:
        reason = self._ready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)


class LocalServer:
    """The operators' socket.

    Args:
        set_healthy: applies an operator's word; gets epoch seconds.
        release: closes the handles of the GPUs for so many seconds; says who still holds one.
        check: which views work, and what would make the others work.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        *,
        set_healthy: Callable[[float], Awaitable[SetHealthy]],
        release: Callable[[float], Awaitable[str]],
        check: Callable[[], object],
        wall: Callable[[], float],
    ) -> None:
        self._set_healthy = set_healthy
        self._release = release
        self._check = check
        self._wall = wall
        self._runner: web.AppRunner | None = None
        self._path: Path | None = None

    async def start(self, path: Path) -> None:
        """Listen on this socket, in place of what a former agent left there.

        Raises:
            ListenError: the folder is missing or not writable.
        """
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_post(SET_HEALTHY, self._post_set_healthy)
        app.router.add_post(RELEASE, self._post_release)
        app.router.add_get(CHECK, self._get_check)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.SockSite(self._runner, _bound(path)).start()
        except (OSError, ValueError) as error:
            await self._runner.cleanup()
            raise ListenError(f"cannot listen on {path} (socket): {error}") from error
        self._path = path

    async def stop(self) -> None:
        """Close the socket and remove it."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    async def _post_set_healthy(self, request: web.Request) -> web.Response:
        try:
            asked = msgspec.json.decode(await request.read() or b"{}", type=SetHealthyRequest)
            before = parse_time(asked.before) if asked.before else self._wall()
        except (msgspec.DecodeError, TimeError) as error:
            return _answer(SetHealthyAnswer(refused=str(error)), status=400)
        answer = await self._set_healthy(before)
        if answer.refusal:
            return _answer(SetHealthyAnswer(refused=answer.refusal), status=422)
        return _answer(SetHealthyAnswer(cleared=tuple(describe(f) for f in answer.cleared)))

    async def _post_release(self, request: web.Request) -> web.Response:
        try:
            seconds = msgspec.json.decode(await request.read(), type=ReleaseRequest).seconds
        except msgspec.DecodeError as error:
            return _answer(ReleaseAnswer(refused=str(error)), status=400)
        if not 0 <= seconds <= MAX_RELEASE_SECONDS:
            return _answer(ReleaseAnswer(refused="at most 24h at a time"), status=422)
        return _answer(ReleaseAnswer(held=await self._release(seconds)))

    async def _get_check(self, _: web.Request) -> web.Response:
        return _answer(self._check())


def _bound(path: Path) -> socket.socket:
    """A socket at this path that no one but our own user can connect to, from its birth on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    former = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(former)
    return listener


def _answer(answer: object, *, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(answer), status=status, content_type="application/json"
    )
