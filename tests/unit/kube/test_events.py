"""Which notes become Events, and when the same one is sent again. The API server is of paper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from remediator.kube.access import access_of
from remediator.kube.client import ApiClient
from remediator.kube.errors import AlreadyExists, NotFound
from remediator.kube.events import EventRecorder
from tests.unit.held import held


pytestmark = pytest.mark.looptime
HOUR = 3600.0


class Events:
    """Keeps Events by name."""

    def __init__(self) -> None:
        self.there: dict[str, dict[str, Any]] = {}

    async def request(self, method: str, target: str, body: bytes, **_: Any) -> bytes:
        said = msgspec.json.decode(body)
        name = said["metadata"]["name"] if method == "POST" else target.rpartition("/")[2]
        if method == "POST" and name in self.there:
            raise AlreadyExists(access_of(method, target))
        if method == "PATCH" and name not in self.there:
            raise NotFound(access_of(method, target))
        self.there[name] = {**self.there.get(name, {}), **said}
        return msgspec.json.encode(self.there[name])


@asynccontextmanager
async def recording(server: Events, **settings: Any) -> AsyncIterator[EventRecorder]:
    made = EventRecorder(api=cast("ApiClient", server), check=lambda: None, **settings)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def tell(recorder: EventRecorder, *, key: str = "budget", node: str = "n1") -> None:
    recorder.record(
        node=node, uid="u", kind="Warning", reason="Held", message=f"held by {key}", key=key
    )


async def test_a_note_that_was_repeated_is_sent_again_when_its_time_is_over() -> None:
    """The server has forgotten the Event by then: who looks at the node would see nothing."""
    server = Events()
    async with recording(server, dedupe_ttl=600.0) as recorder:
        for _ in range(3):
            tell(recorder)
            await asyncio.sleep(60)
        assert (recorder.sent, recorder.repeated) == (1, 2)

        for day in range(2, 5):
            server.there.clear()
            await asyncio.sleep(24 * HOUR)
            tell(recorder)
            await asyncio.sleep(1)
            assert (recorder.sent, len(server.there)) == (day, 1)
            tell(recorder)


async def test_how_often_it_was_repeated_is_told_with_the_next_one() -> None:
    server = Events()
    async with recording(server, dedupe_ttl=600.0) as recorder:
        for seconds in (1, 1, 1, 700, 1):
            tell(recorder)
            await asyncio.sleep(seconds)
        (event,) = server.there.values()
        assert event["count"] == 5


async def test_notes_that_were_repeated_once_are_not_kept_for_ever() -> None:
    async def told(numbers: range) -> int:
        for number in numbers:
            for _ in range(2):
                tell(recorder, key=str(number), node=f"n{number}")
                await asyncio.sleep(30)
        server.there.clear()
        return held(recorder)

    server = Events()
    async with recording(server, buffer=10) as recorder:
        few = await told(range(100))
        assert await told(range(100, 400)) <= few + 20
