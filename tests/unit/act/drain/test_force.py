"""Past the kubelet only as long as it is gone: looked at once more when the request leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from remediator.act.drain.engine import Drainer, Health
from remediator.act.drain.rate import EvictionRate
from remediator.kube.pods import Owner, Pod
from remediator.policy.drain import Drain


pytestmark = pytest.mark.looptime

POD = Pod(
    name="team/job",
    uid="u1",
    owner=Owner(kind="ReplicaSet", name="job"),
    deleted="2026-01-01T00:00:00Z",
    deletion_grace=1.0,
)


class Yard:
    """One pod that is terminating for ever; keeps what was asked of it."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.synced = True
        self.trouble = ""
        self.unreadable: Mapping[str, str] = {}
        self.deleted: list[float] = []

    def all(self) -> list[Pod]:
        return [POD]

    def get(self, name: str) -> Pod | None:
        return POD if name == POD.name else None

    async def list_pods(self, node: str) -> tuple[list[Pod], dict[str, str]]:
        return [POD] if node else [], {}

    async def evict(self, pod: Pod, *, grace: float | None = None) -> None:
        raise AssertionError(f"{pod.name} terminates already {grace}")

    async def delete(self, pod: Pod, *, grace: float | None = None) -> None:
        assert (pod, grace) == (POD, 0.0)
        self.deleted.append(asyncio.get_running_loop().time())


@pytest.mark.parametrize("back", [True, False])
async def test_a_kubelet_that_came_back_meanwhile_saves_its_pods(*, back: bool) -> None:
    yard, rate, ready = Yard(), EvictionRate(per_second=100, burst=1), [False]

    @asynccontextmanager
    async def watch(_node: str) -> AsyncIterator[Yard]:
        yield yard

    now = asyncio.get_running_loop().time
    drainer = Drainer(pods=yard, watch=watch, rate=rate, now=now)
    keys = {"notReadyAfter": "60s", "forceDelete": {"after": "10s"}}
    drain = Drain.model_validate(keys)
    task = asyncio.create_task(
        drainer.drain(
            "n1", drain, since=0.0, health=lambda: Health(ready=ready[0]), say=lambda _: None
        )
    )
    await asyncio.sleep(50.0)
    rate.pause(60.0)  # the API server asks for patience; the request waits for its turn
    await asyncio.sleep(30.0)
    ready[0] = back
    await asyncio.sleep(5.0)
    ready[0] = False
    await asyncio.sleep(40.0)
    assert bool(yard.deleted) is not back
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
