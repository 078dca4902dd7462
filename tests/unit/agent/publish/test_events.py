"""Events tell people what is new, once, and never faster than the API server likes."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog

from node_agent.health.faults import OpenFault
from node_agent.health.fold import observe
from node_agent.health.state import NodeHealth
from node_agent.publish.events import EventRecorder
from tests.unit.agent.health.builders import xid


pytestmark = pytest.mark.looptime


class FakeApi:
    node = "node-1"

    def __init__(self) -> None:
        self.sent: list[tuple[float, dict[str, Any]]] = []

    async def create_event(self, body: bytes) -> None:
        self.sent.append((asyncio.get_running_loop().time(), json.loads(body)))


def faults(*codes: int) -> dict[str, OpenFault]:
    return observe(NodeHealth(), [xid(code, 1.0) for code in codes], boot_id="b").faults


@asynccontextmanager
async def running(api: FakeApi, counts: Counter[str]) -> AsyncIterator[EventRecorder]:
    loop = asyncio.get_running_loop()
    recorder = EventRecorder(
        api=api,  # type: ignore[arg-type]
        clock=loop.time,
        wall=lambda: 0.0,
        log=structlog.wrap_logger(structlog.ReturnLogger(), processors=[]),
        count=lambda result: counts.update([result]),
    )
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_new_and_a_cleared_fault_are_told_and_information_is_not() -> None:
    api = FakeApi()
    async with running(api, Counter()) as recorder:
        recorder.published(faults(79, 31), uid="the-uid")
        await asyncio.sleep(1)
        recorder.published(faults(79, 31), uid="the-uid")
        await asyncio.sleep(1)
        recorder.published({}, uid="the-uid")
        await asyncio.sleep(1)
    assert [(e["type"], e["reason"]) for _, e in api.sent] == [
        ("Warning", "Xid79"),
        ("Normal", "GPUFaultCleared"),
    ]
    about = api.sent[0][1]["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("Node", "node-1", "the-uid")


async def test_faults_of_before_a_restart_are_not_told_again() -> None:
    api = FakeApi()
    async with running(api, Counter()) as recorder:
        recorder.assume(faults(79))
        recorder.published(faults(79), uid="u")
        await asyncio.sleep(1)
    assert api.sent == []


async def test_a_flapping_fault_is_told_once_in_ten_minutes() -> None:
    api = FakeApi()
    async with running(api, Counter()) as recorder:
        for _ in range(20):
            recorder.published(faults(79), uid="u")
            recorder.published({}, uid="u")
            await asyncio.sleep(1)
    assert len(api.sent) == 2


async def test_a_storm_of_news_is_slowed_down_and_bounded() -> None:
    api, counts = FakeApi(), Counter[str]()
    async with running(api, counts) as recorder:
        recorder.published(faults(*range(1000, 1060)), uid="u")
        recorder.published(faults(*range(2000, 2060)), uid="u")
        await asyncio.sleep(0.5)
        assert len(api.sent) == 10
        await asyncio.sleep(600)
    assert counts["dropped"] > 0
    assert counts["ok"] == len(api.sent) == 64
