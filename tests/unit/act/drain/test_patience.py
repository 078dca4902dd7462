"""A server that asks for patience gets it, but not for hours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from remediator.act.drain.engine import Drainer, Health
from remediator.act.drain.rate import EvictionRate
from remediator.act.drain.replies import LAST
from remediator.kube.access import access_of
from remediator.kube.errors import ServerError, Throttled
from remediator.kube.pods import Owner, Pod
from remediator.policy.drain import Drain


pytestmark = pytest.mark.looptime

ACCESS = access_of("POST", "/api/v1/namespaces/team/pods/db/eviction")
POD = Pod(name="team/db", uid="u1", owner=Owner(kind="ReplicaSet", name="db"))


class Yard:
    """One pod whose eviction is answered with an error; keeps when it was asked for."""

    def __init__(self, error: Throttled | ServerError) -> None:
        self.changed = asyncio.Event()
        self.synced = True
        self.trouble = ""
        self.unreadable: Mapping[str, str] = {}
        self.asked: list[float] = []
        self.error = error

    def all(self) -> list[Pod]:
        return [POD]

    def get(self, name: str) -> Pod | None:
        return POD if name == POD.name else None

    async def list_pods(self, node: str) -> tuple[list[Pod], dict[str, str]]:
        return [POD] if node else [], {}

    async def evict(self, pod: Pod, *, grace: float | None = None) -> None:
        assert (pod, grace) == (POD, None)
        self.asked.append(asyncio.get_running_loop().time())
        raise self.error

    async def delete(self, pod: Pod, *, grace: float | None = None) -> None:
        raise AssertionError(f"{pod.name} {grace}")


@pytest.mark.parametrize("kind", [Throttled, ServerError])
@pytest.mark.parametrize(("says", "longest"), [(3600.0, LAST), (30.0, 30.0)])
async def test_an_absurd_retry_after_is_no_reason_to_stop_for_hours(
    kind: type[Throttled | ServerError], says: float, longest: float
) -> None:
    error = kind(ACCESS, status=429, message="later")
    error.retry_after = says
    yard = Yard(error)

    @asynccontextmanager
    async def watch(_node: str) -> AsyncIterator[Yard]:
        yield yard

    now = asyncio.get_running_loop().time
    drainer = Drainer(pods=yard, watch=watch, rate=EvictionRate(per_second=100, burst=1), now=now)
    drained = drainer.drain("n1", Drain(), since=0.0, health=Health, say=lambda _: None)
    task = asyncio.create_task(drained)
    await asyncio.sleep(200.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    first, second, *_ = yard.asked
    assert second - first == pytest.approx(longest, abs=2.0)
