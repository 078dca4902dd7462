"""When the agent writes to its Node: at once, together, seldom, and never less than it knows."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import structlog

from node_agent.contract import (
    FAULTS_ANNOTATION,
    Condition,
    ConditionStatus,
    ConditionType,
)
from node_agent.health.conditions import Desired
from node_agent.publish.node_api import ApiUnavailableError, NodeView, SeenCondition
from node_agent.publish.publisher import Publisher


pytestmark = pytest.mark.looptime

START = 1_800_000_000.0
HEARTBEAT = 300.0


class FakeApi:
    """A Node that keeps what is patched; `away` makes every request fail."""

    node = "node-1"

    def __init__(self) -> None:
        self.away = False
        self.attempts: list[float] = []
        self.writes: list[tuple[float, dict[str, Any]]] = []
        self.view = NodeView(uid="uid", boot_id="boot", annotations={}, conditions={})

    async def read(self) -> NodeView:
        self._answer()
        return self.view

    async def patch_status(self, body: bytes) -> NodeView:
        self._answer()
        patch = json.loads(body)
        self.writes.append((self.now(), patch))
        annotations = {**self.view.annotations, **patch.get("metadata", {}).get("annotations", {})}
        conditions = {
            c["type"]: SeenCondition(
                c["type"], c["status"], c["reason"], c["message"], c["lastTransitionTime"]
            )
            for c in patch["status"]["conditions"]
        }
        self.view = NodeView(
            uid="uid",
            boot_id="boot",
            annotations=annotations,
            conditions={**self.view.conditions, **conditions},
        )
        return self.view

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def _answer(self) -> None:
        self.attempts.append(self.now())
        if self.away:
            raise ApiUnavailableError("the API server is away")


def wanted(
    status: str = "False",
    *,
    reason: str = "NoFault",
    counts: int = 0,
    made: Callable[[int], object] = lambda _: None,
) -> Desired:
    """`made` is told each time the annotation with these counts is made."""
    condition = Condition(ConditionType.XID_ERROR, ConditionStatus(status), reason, "")

    def report() -> str:
        made(counts)
        return f'{{"counts":{counts}}}'

    return Desired((condition,), report, {}, (status, reason))


@asynccontextmanager
async def running(api: FakeApi) -> AsyncIterator[Publisher]:
    loop = asyncio.get_running_loop()

    def ignore(*_: object) -> None: ...

    publisher = Publisher(
        api=api,  # type: ignore[arg-type]
        heartbeat=HEARTBEAT,
        coalesce=0.1,
        counts_interval=10.0,
        clock=loop.time,
        wall=lambda: START + loop.time(),
        random=random.Random(1),  # noqa: S311 - the same jitter each time
        log=structlog.wrap_logger(structlog.ReturnLogger(), processors=[]),
        read=ignore,
        wrote=ignore,
        failed=ignore,
    )
    task = asyncio.create_task(publisher.run())
    await asyncio.sleep(0)
    try:
        yield publisher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_change_is_written_at_once_and_what_follows_goes_together() -> None:
    api = FakeApi()
    async with running(api) as publisher:
        publisher.submit(wanted())
        await asyncio.sleep(50)
        for number in range(5):
            publisher.submit(wanted("True", reason=f"Xid{number}"))
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
    times = [at for at, _ in api.writes]
    assert times == pytest.approx([0, 50, 50.1], abs=0.002)
    assert api.writes[-1][1]["status"]["conditions"][0]["reason"] == "Xid4"


async def test_a_heartbeat_does_not_delay_a_change_behind_it() -> None:
    api = FakeApi()
    async with running(api) as publisher:
        publisher.submit(wanted())
        await asyncio.sleep(0.001)
        publisher.submit(wanted("True", reason="Xid79"))
        await asyncio.sleep(0.01)
    assert len(api.writes) == 2


async def test_nothing_is_written_before_there_is_something_to_say() -> None:
    api = FakeApi()
    async with running(api):
        await asyncio.sleep(1000)
    assert api.writes == []


async def test_heartbeats_come_with_jitter_and_without_the_annotation() -> None:
    api = FakeApi()
    async with running(api) as publisher:
        publisher.submit(wanted())
        await asyncio.sleep(4 * HEARTBEAT)
    gaps = [b - a for (a, _), (b, _) in zip(api.writes, api.writes[1:], strict=False)]
    assert len(gaps) >= 3
    assert all(0.9 * HEARTBEAT <= gap <= 1.1 * HEARTBEAT + 0.01 for gap in gaps)
    assert len({round(gap, 3) for gap in gaps}) > 1
    first, *rest = (patch for _, patch in api.writes)
    assert FAULTS_ANNOTATION in first["metadata"]["annotations"]
    assert all("metadata" not in patch for patch in rest)
    beats = [patch["status"]["conditions"][0] for patch in rest]
    assert {beat["lastTransitionTime"] for beat in beats} == {
        first["status"]["conditions"][0]["lastTransitionTime"]
    }
    assert len({beat["lastHeartbeatTime"] for beat in beats}) == len(beats)


async def test_the_transition_time_of_an_earlier_agent_is_kept() -> None:
    api = FakeApi()
    since = "2020-01-01T00:00:00Z"
    seen = SeenCondition("GPUXidError", "False", "NoFault", "", since)
    api.view = NodeView(uid="u", boot_id="b", annotations={}, conditions={"GPUXidError": seen})
    async with running(api) as publisher:
        publisher.submit(wanted())
        await asyncio.sleep(1)
        publisher.submit(wanted("True"))
        await asyncio.sleep(1)
    times = [patch["status"]["conditions"][0]["lastTransitionTime"] for _, patch in api.writes]
    assert times == [since, "2027-01-15T08:00:01Z"]


async def test_a_storm_of_counts_costs_one_write_per_interval() -> None:
    api, made = FakeApi(), list[int]()
    async with running(api) as publisher:
        publisher.submit(wanted("True"))
        for number in range(1, 3000):
            publisher.submit(wanted("True", counts=number, made=made.append))
            await asyncio.sleep(0.01)
        await asyncio.sleep(20)
    assert len(api.writes) <= 5
    assert len(made) == len(api.writes)  # what was never written was not put in words
    last = api.writes[-1][1]["metadata"]["annotations"][FAULTS_ANNOTATION]
    assert last == '{"counts":2999}'


async def test_away_and_back_the_latest_state_is_written_and_attempts_are_few() -> None:
    api = FakeApi()
    async with running(api) as publisher:
        publisher.submit(wanted())
        await asyncio.sleep(1)
        api.away = True
        for number in range(60):
            publisher.submit(wanted("True", reason=f"Xid{number}"))
            await asyncio.sleep(10)
        attempts = len(api.attempts)
        api.away = False
        await asyncio.sleep(31)
    assert attempts < 60
    assert len(api.writes) == 2
    assert api.writes[-1][1]["status"]["conditions"][0]["reason"] == "Xid59"


async def test_an_api_server_that_is_away_at_the_start_is_waited_for() -> None:
    api = FakeApi()
    api.away = True
    async with running(api) as publisher:
        publisher.submit(wanted("True"))
        await asyncio.sleep(100)
        api.away = False
        await asyncio.sleep(31)
    assert len(api.writes) == 1


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda v: NodeView(v.uid, v.boot_id, v.annotations, {}), id="condition"),
        pytest.param(lambda v: NodeView(v.uid, v.boot_id, {}, v.conditions), id="annotation"),
        pytest.param(
            lambda v: NodeView(
                v.uid, v.boot_id, {FAULTS_ANNOTATION: '{"version":1}'}, v.conditions
            ),
            id="overwritten annotation",
        ),
        pytest.param(
            lambda v: NodeView(
                v.uid,
                v.boot_id,
                v.annotations,
                {k: msgspec.structs.replace(c, reason="x") for k, c in v.conditions.items()},
            ),
            id="overwritten reason",
        ),
    ],
)
async def test_what_others_remove_or_change_is_written_again(
    spoil: Callable[[NodeView], NodeView],
) -> None:
    api = FakeApi()
    async with running(api) as publisher:
        publisher.submit(wanted("True", counts=3))
        await asyncio.sleep(1)
        publisher.look(api.view)
        await asyncio.sleep(1)
        assert len(api.writes) == 1
        api.view = spoil(api.view)
        publisher.look(api.view)
        await asyncio.sleep(1)
    assert len(api.writes) == 2
    assert api.view.conditions["GPUXidError"].status == "True"
    assert api.view.conditions["GPUXidError"].reason == "NoFault"
    assert api.view.annotations[FAULTS_ANNOTATION] == '{"counts":3}'


async def test_counts_that_are_not_written_yet_are_no_work_of_others() -> None:
    api = FakeApi()
    async with running(api) as publisher:
        publisher.submit(wanted("True", counts=3))
        await asyncio.sleep(1)
        publisher.submit(wanted("True", counts=4))
        publisher.look(api.view)
        await asyncio.sleep(1)
        assert len(api.writes) == 1
        await asyncio.sleep(10)
    assert len(api.writes) == 2
