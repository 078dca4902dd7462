"""The elector in virtual time, against a Lease that behaves like the API server's.

What is claimed above all: whatever happens to the server, the connections, the
work or the clock, two candidates never hold a fresh lease at the same time.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest

from remediator.kube.access import access_of
from remediator.kube.errors import AlreadyExists, Conflict, Forbidden, NotFound, Unreachable
from remediator.kube.lease import Elector, LeaseLost, LeaseTimings, NotLeading


pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


class LeaseServer:
    """One Lease with versions and preconditions; can hang, break and lose answers."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.writes: list[dict[str, Any]] = []
        self.broken: set[str] = set()
        self.hung: set[str] = set()
        self.loses_answers_to: set[str] = set()
        self.denied = False

    def client(self, who: str) -> "LeaseClient":
        return LeaseClient(self, who)

    def answer(self, method: str, target: str, body: bytes | None) -> bytes:
        access = access_of(method, target)
        if self.denied:
            raise Forbidden(access, status=403)
        if method == "GET":
            if self.lease is None:
                raise NotFound(access, status=404)
            return json.dumps(self.lease).encode()
        change = json.loads(body or b"{}")
        if method == "POST":
            if self.lease is not None:
                raise AlreadyExists(access, status=409)
            self.lease = change
        else:
            if self.lease is None:
                raise NotFound(access, status=404)
            if change["metadata"]["resourceVersion"] != str(self.version):
                raise Conflict(access, status=409)
            self.lease["spec"] |= change["spec"]
        self.version += 1
        self.lease["metadata"] = {"name": "lead", "resourceVersion": str(self.version)}
        self.writes.append(dict(self.lease["spec"]))
        return json.dumps(self.lease).encode()


class LeaseClient:
    """The transport of one candidate."""

    def __init__(self, server: LeaseServer, who: str) -> None:
        self.server = server
        self.who = who

    async def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        content_type: str = "",
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> bytes:
        del content_type, timeout
        await asyncio.sleep(0.01)
        if self.who in self.server.hung:
            await asyncio.get_running_loop().create_future()
        if self.who in self.server.broken:
            raise Unreachable(access_of(method, target), message="connection reset")
        answer = self.server.answer(method, target, body)
        if self.who in self.server.loses_answers_to and method != "GET":
            raise Unreachable(access_of(method, target), message="answer lost")
        return answer


class Candidate:
    """One replica: an elector, its task, and when it was fresh."""

    def __init__(self, server: LeaseServer, name: str, timings: LeaseTimings) -> None:
        self.name = name
        self.skew = 0.0
        self.ended: list[str] = []
        self.worked = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.elector = Elector(
            api=server.client(name),
            namespace="ns",
            name="lead",
            identity=name,
            timings=timings,
            clock=lambda: loop.time() + self.skew,
            rng=Random(name),  # noqa: S311
            end_process=self.ended.append,
        )
        self.task: asyncio.Task[None] | None = None
        self.on_start: Callable[[], None] = lambda: None

    def start(self, work: Callable[[], Any] | None = None) -> None:
        self.on_start()
        self.task = asyncio.create_task(self._run(work))
        # A lost lease that nobody awaits is no news to the test.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _run(self, work: Callable[[], Any] | None) -> None:
        async with self.elector.lead():
            self.worked.set()
            await (work() if work else asyncio.Event().wait())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self.task


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


class Watcher:
    """Looks all the time that at most one candidate is fresh.

    Started within the test: a timer from a fixture would be on the real clock.
    """

    def __init__(self, candidates: list[Candidate]) -> None:
        self._candidates = candidates
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._task or asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0.1)

    def look(self) -> None:
        fresh = [c.name for c in self._candidates if c.elector.is_fresh()]
        assert len(fresh) <= 1, "two leaders"

    async def end(self) -> None:
        self.look()
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@pytest.fixture
async def candidates(server: LeaseServer) -> AsyncIterator[list[Candidate]]:
    """Two of them; at every tick at most one is fresh."""
    made = [Candidate(server, name, LeaseTimings()) for name in ("a", "b")]
    watcher = Watcher(made)
    for candidate in made:
        candidate.on_start = watcher.start
    yield made
    await watcher.end()
    for candidate in made:
        await candidate.stop()


def now() -> float:
    return asyncio.get_running_loop().time()


async def led(candidate: Candidate, within: float) -> float:
    """Seconds until the candidate leads."""
    start = now()
    await asyncio.wait_for(candidate.worked.wait(), within)
    return now() - start


async def test_first_lease_is_created_and_kept(
    server: LeaseServer, candidates: list[Candidate]
) -> None:
    a, b = candidates
    a.start()
    await led(a, 1)
    b.start()
    await asyncio.sleep(600)

    assert a.elector.is_fresh()
    assert not b.worked.is_set()
    assert {write["holderIdentity"] for write in server.writes} == {"a"}
    assert server.writes[-1]["leaseTransitions"] == 0
    assert server.writes[-1]["leaseDurationSeconds"] == 15
    assert server.writes[-1]["renewTime"].endswith("Z")
    assert b.elector.leader == "a"


async def test_orderly_end_hands_over_within_two_seconds(
    server: LeaseServer, candidates: list[Candidate]
) -> None:
    a, b = candidates
    a.start()
    await led(a, 1)
    b.start()
    await asyncio.sleep(60)
    await a.stop()

    assert await led(b, 10) < 2.5
    assert server.writes[-1]["leaseTransitions"] == 2 - 1
    assert not a.elector.is_fresh()


async def test_a_lease_that_is_kept_lets_nobody_else_lead_and_nothing_be_written(
    server: LeaseServer, candidates: list[Candidate]
) -> None:
    a, b = candidates
    async with a.elector.lead(keep=lambda: True):
        b.start()
        await asyncio.sleep(60)
    assert not a.elector.leading
    assert not a.elector.is_fresh()
    await asyncio.sleep(5)
    assert not b.elector.leading
    changes = server.writes[-1]["leaseTransitions"]

    async with a.elector.lead():
        assert a.elector.is_fresh()
        assert server.writes[-1]["leaseTransitions"] == changes
    assert await led(b, 10) < 2.5


async def test_a_lease_that_was_kept_can_still_be_given_back(
    candidates: list[Candidate],
) -> None:
    a, b = candidates
    async with a.elector.lead(keep=lambda: True):
        b.start()
        await asyncio.sleep(10)
    await a.elector.release()
    assert await led(b, 10) < 2.5


async def test_a_lease_that_was_kept_and_is_not_used_expires(
    server: LeaseServer, candidates: list[Candidate]
) -> None:
    a, b = candidates
    async with a.elector.lead(keep=lambda: True):
        b.start()
        await asyncio.sleep(10)
    assert await led(b, 30) > 10
    await a.elector.release()
    assert b.elector.is_fresh(), "what somebody else holds by now is not given back"
    assert server.writes[-1]["holderIdentity"] == "b"


@pytest.mark.parametrize("trouble", ["hung", "broken"])
async def test_leader_without_server_stops_before_another_leads(
    server: LeaseServer, candidates: list[Candidate], trouble: str
) -> None:
    a, b = candidates
    a.start()
    await led(a, 1)
    b.start()
    await asyncio.sleep(30)
    start = now()
    getattr(server, trouble).add("a")

    assert a.task is not None
    with pytest.raises(LeaseLost):
        await a.task
    assert now() - start <= 10.1
    took = await led(b, 30)
    assert now() - start <= 15 + 2 + 2
    assert took > 0
    assert server.writes[-1]["leaseTransitions"] == 1


async def test_short_trouble_loses_nothing(
    server: LeaseServer, candidates: list[Candidate]
) -> None:
    a, b = candidates
    a.start()
    await led(a, 1)
    b.start()
    for kind in (server.hung, server.broken, server.loses_answers_to):
        kind.add("a")
        await asyncio.sleep(5)
        kind.clear()
        await asyncio.sleep(5)

    assert a.elector.is_fresh()
    assert a.elector.terms == 1
    assert not b.worked.is_set()


async def test_dead_worker_is_not_kept_in_office(
    server: LeaseServer, candidates: list[Candidate]
) -> None:
    a, b = candidates

    async def die() -> None:
        await asyncio.sleep(5)
        raise ValueError("bug")

    a.start(die)
    await led(a, 1)
    b.start()

    assert a.task is not None
    with pytest.raises(ValueError, match="bug"):
        await a.task
    assert not a.elector.leading
    assert await led(b, 5) < 2.5
    assert server.writes[-1]["holderIdentity"] == "b"


async def test_paused_leader_may_not_write_when_it_wakes(
    server: LeaseServer, candidates: list[Candidate]
) -> None:
    a, _ = candidates
    a.start()
    await led(a, 1)
    await asyncio.sleep(1)

    a.skew += 60.0  # a suspended machine: its boot clock went on, the loop's did not

    assert not a.elector.is_fresh()
    with pytest.raises(NotLeading):
        a.elector.check()
    assert a.task is not None
    with pytest.raises(LeaseLost):
        await a.task
    assert server.writes[-1]["holderIdentity"] == "a", "it must not release what may be another's"


@pytest.mark.parametrize("jump", [4.0, 16.0, 3600.0])
async def test_paused_follower_does_not_take_a_lease_that_was_renewed(
    candidates: list[Candidate], jump: float
) -> None:
    a, b = candidates
    a.start()
    await led(a, 1)
    b.start()
    await asyncio.sleep(10)
    for _ in range(30):  # at any moment between two renewals
        b.skew += jump
        await asyncio.sleep(1.9)

    assert a.elector.is_fresh()
    assert not b.worked.is_set()


async def test_lease_taken_by_another_is_lost_at_once(
    server: LeaseServer, candidates: list[Candidate]
) -> None:
    a, _ = candidates
    a.start()
    await led(a, 1)
    assert server.lease is not None
    server.version += 1
    server.lease["metadata"]["resourceVersion"] = str(server.version)
    server.lease["spec"]["holderIdentity"] = "someone"
    start = now()

    assert a.task is not None
    with pytest.raises(LeaseLost, match="someone"):
        await a.task
    assert now() - start < 2.2


async def test_of_two_replicas_with_one_identity_the_elder_ends_and_says_why(
    server: LeaseServer,
) -> None:
    elder, younger = (Candidate(server, "same", LeaseTimings()) for _ in range(2))
    elder.start()
    await led(elder, 1)
    await asyncio.sleep(5)
    younger.start()
    await led(younger, 1)
    start = now()

    assert elder.task is not None
    with pytest.raises(LeaseLost, match="--identity"):
        await elder.task
    assert now() - start < LeaseTimings().retry_period + 0.2
    await asyncio.sleep(30)
    assert younger.elector.is_fresh()
    await younger.stop()


async def test_deleted_lease_is_lost(server: LeaseServer, candidates: list[Candidate]) -> None:
    a, _ = candidates
    a.start()
    await led(a, 1)
    server.lease = None

    assert a.task is not None
    with pytest.raises(LeaseLost, match="deleted"):
        await a.task


async def test_missing_permission_ends_the_wait(
    server: LeaseServer, candidates: list[Candidate]
) -> None:
    a, _ = candidates
    server.denied = True
    a.start()

    assert a.task is not None
    with pytest.raises(Forbidden, match="leases"):
        await a.task


async def test_release_follows_a_renewal_whose_answer_was_lost(
    server: LeaseServer, candidates: list[Candidate]
) -> None:
    a, _ = candidates
    a.start()
    await led(a, 1)
    server.loses_answers_to.add("a")
    await asyncio.sleep(2.5)
    server.loses_answers_to.clear()
    await a.stop()

    assert server.writes[-1]["holderIdentity"] == ""


async def test_random_troubles_never_make_two_leaders(
    server: LeaseServer, candidates: list[Candidate]
) -> None:
    rng = Random(7)  # noqa: S311
    kinds = (server.hung, server.broken, server.loses_answers_to)
    for _ in range(100):
        for candidate in candidates:
            if candidate.task is None or candidate.task.done():
                candidate.start()
        kind, who = rng.choice(kinds), rng.choice("ab")
        kind.add(who)
        await asyncio.sleep(rng.uniform(0.1, 20))
        kind.discard(who)
        if rng.random() < 0.2:
            await rng.choice(candidates).stop()

    assert sum(candidate.elector.terms for candidate in candidates) > 5


async def test_watchdog_ends_a_process_whose_loop_hangs() -> None:
    ended = threading.Event()
    skew = [0.0]
    timings = LeaseTimings(duration=0.5, renew_deadline=0.4, retry_period=0.1)
    elector = Elector(
        api=LeaseServer().client("a"),
        namespace="ns",
        name="lead",
        identity="a",
        timings=timings,
        clock=lambda: skew[0],
        end_process=lambda _reason: ended.set(),
    )
    async with elector.lead():
        skew[0] = 0.44
        assert not ended.wait(0.1), "between the deadline and half-way there is time to stop"
        skew[0] = 0.46

        # The loop does nothing here: this wait blocks it.
        assert ended.wait(5)
        skew[0] = 0.0


@pytest.mark.parametrize(("duration", "deadline", "retry"), [(10, 10, 2), (15, 3, 2), (15, 10, 0)])
async def test_times_that_allow_two_leaders_are_refused(
    duration: float, deadline: float, retry: float
) -> None:
    with pytest.raises(ValueError, match="renew deadline"):
        LeaseTimings(duration=duration, renew_deadline=deadline, retry_period=retry)
