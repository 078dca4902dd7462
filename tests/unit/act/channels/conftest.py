"""Receivers on 127.0.0.1 that behave as the services say that they do, and messages for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from remediator.act.envelope import Envelope, pack
from remediator.decide.decision import SendMessage, Urgency


NOW = 1_800_000_000.0
SESSION = "0f3c9a5{}-19b2c3d4e5f"


def message(node: int = 1, what: str = "1", **more: Any) -> SendMessage:
    """A message of the session of a node."""
    fields: dict[str, Any] = {
        "key": f"{SESSION.format(node)}/bus/{what}",
        "to": ("oncall",),
        "title": f"n{node}: Xid 79",
        "text": "policy bus holds this node (cordoned)",
        "node": f"n{node}",
        "policy": "bus",
        "step": 1,
        "urgency": Urgency.WARNING,
    }
    return SendMessage(**{**fields, **more})


def end(node: int = 1, policy: str = "bus") -> SendMessage:
    """The message that a policy let go of a node."""
    return message(
        node,
        "end",
        key=f"{SESSION.format(node)}/{policy}/end",
        title=f"n{node}: session ended",
        text="Xid 79 cleared",
        policy=policy,
        step=None,
        urgency=Urgency.INFO,
        resolves=True,
    )


def envelope(*messages: SendMessage, dry_run: bool = False) -> Envelope:
    """Messages as the outbox packs them."""
    return pack(messages or (message(),), channel="oncall", dry_run=dry_run, created=NOW)


class Service:
    """A server that notes what it got, and answers as `answer` says."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], Any]] = []
        self.url = ""
        self.answers: list[web.Response] = []
        """To be given first, in this order."""
        self.answer: Callable[[str, Any], web.Response] = lambda _path, _body: web.Response()

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.got.append((request.path, dict(request.headers), body))
        return self.answers.pop(0) if self.answers else self.answer(request.path, body)

    @property
    def bodies(self) -> list[Any]:
        return [body for _, _, body in self.got]


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    app = web.Application()
    app.router.add_post("/{path:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def secret_file(tmp_path: Path) -> Callable[[str], str]:
    """Write a secret into a file; its name."""

    def write(text: str) -> str:
        path = tmp_path / f"secret-{len(list(tmp_path.iterdir()))}"
        path.write_text(text + "\n")
        return str(path)

    return write
