"""Leader election by a Lease: at most one replica acts, whatever hangs, dies or sleeps.

Who leads may act only while `is_fresh()`, which is less than `renew_deadline`
after the *start* of the last successful renewal, by CLOCK_BOOTTIME: a clock that
also runs while the machine is suspended. A follower takes over `duration` after it
last saw the lease change, so between the leader's last act and the follower's
first lie at least `duration - renew_deadline` seconds, less one call in flight,
which its `resourceVersion` precondition makes harmless.

- Every call is bounded by what is left until the deadline; any failure of any kind
  counts as "not renewed".
- The work runs inside `lead`: if it ends or dies, nobody renews for it any more; if
  the lease is lost, it is cancelled and `LeaseLost` ends the process.
- If the event loop itself hangs, a thread outside it ends the process before anyone
  else can lead.
- On an orderly end the lease is released, so that the follower need not wait.

Expiry is judged by the own clock since the lease was last seen to change, never by
comparing clocks of two machines: the times in the Lease are for people. Time in which
we did not look does not count: a follower whose clock jumps begins its wait anew.

Longer than other modules, since what acquires, keeps and gives back shares one state, the fence,
and the proof that there are never two is read in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, NoReturn, Protocol

import msgspec
import structlog

from remediator.kube.codec import Codec, WireLease, narrow_lease
from remediator.kube.errors import AlreadyExists, Conflict, Denied, NotFound
from remediator.kube.tenure import LeaseLost, LeaseTimings, NotLeading, boot_time
from remediator.kube.transport import JSON, MERGE_PATCH
from remediator.kube.watchdog import Watchdog, end_process


if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from remediator.kube.objects import Lease

__all__ = ["Elector", "LeaseLost", "LeaseTimings", "NotLeading", "boot_time"]

_log = structlog.get_logger(__name__)


class Api(Protocol):
    """What the elector needs of the transport; give it a client of its own."""

    async def request(
        self,
        method: str,
        target: str,
        body: bytes | None = ...,
        *,
        content_type: str = ...,
        timeout: float | None = ...,  # noqa: ASYNC109 - as the transport has it
    ) -> bytes:
        """Make one call."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Elector:
    """One candidate for one Lease.

    Args:
        api: a transport that nobody else uses.
        namespace, name: of the Lease; it is created when missing.
        identity: unique per process; seen by people in `holderIdentity`. Who restarts under the
            same one leads again at once; of two that share one the elder ends.
        timings: see `LeaseTimings`.
        clock: seconds that only grow, also through suspend.
        wall: the time of day, for the Lease's timestamps only.
        sleep: waits between attempts.
        rng: where jitter comes from.
        end_process: called by the watchdog thread; must not return in production.

    Attributes:
        leader: the holder as last seen, "" when there is none.
        transitions: how often the lease has changed hands, as last seen.
        terms: how often we became leader.
    """

    def __init__(
        self,
        *,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        timings: LeaseTimings | None = None,
        clock: Callable[[], float] = boot_time,
        wall: Callable[[], datetime] = _utc_now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Random | None = None,
        end_process: Callable[[str], None] = end_process,
    ) -> None:
        self.identity = identity
        self.leader = ""
        self.transitions = 0
        self.terms = 0
        self._api = api
        self._namespace = namespace
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._target = f"{self._collection}/{name}"
        self._name = name
        self._timings = timings or LeaseTimings()
        self._clock = clock
        self._wall = wall
        self._sleep = sleep
        self._rng = rng or Random()  # noqa: S311 - jitter, no secret
        self._codec = Codec(WireLease, narrow_lease)
        self._end_process = end_process
        self._acquired = ""
        self._version = ""
        self._renewed: float | None = None
        self._kept = False
        """Whether the lease is left to ourselves, between two bodies of `lead`."""
        self._observed: tuple[str, float] = ("", 0.0)
        self._looked = 0.0

    # -- the fence ---------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        """Whether we hold the lease, fresh or not."""
        return self._renewed is not None

    def is_fresh(self) -> bool:
        """Whether a write may be sent now."""
        renewed = self._renewed
        return renewed is not None and self._clock() < renewed + self._timings.renew_deadline

    def check(self) -> None:
        """Call right before each write.

        Raises:
            NotLeading: the write must not be sent.
        """
        if not self.is_fresh():
            raise NotLeading(f"the lease {self._name} is not (or no longer) ours")

    # -- the life of a candidate -------------------------------------------------------

    @contextlib.asynccontextmanager
    async def lead(self, *, keep: Callable[[], bool] = lambda: False) -> AsyncIterator[None]:
        """Wait until we lead, run the body while we do, release the lease at its end.

        The body is cancelled when the lease is lost.

        Args:
            keep: asked at the body's end: whether we lead again at once. Then the lease is left
                as it is, ours until it expires, and until then nothing may be written.

        Raises:
            LeaseLost: the lease was lost; the process should end.
            Denied: RBAC does not let us use the Lease.
        """
        await self.acquire()
        spare = self._timings.duration - self._timings.renew_deadline
        watchdog = Watchdog(self._overdue, self._end_process, period=spare / 8)
        watchdog.start()
        body = asyncio.current_task()
        if body is None:  # pragma: no cover - a coroutine always runs in a task
            raise RuntimeError("lead() needs a running task")
        lost: list[LeaseLost] = []

        async def renew() -> None:
            try:
                await self._keep()
            except LeaseLost as error:
                lost.append(error)
                body.cancel()

        renewal = asyncio.create_task(renew(), name="lease renewal")
        try:
            yield
        except asyncio.CancelledError:
            if not lost:
                raise
            body.uncancel()
        finally:
            renewal.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewal
            if not lost and keep():
                self._renewed, self._kept = None, True
            elif not lost:
                await self.release()
            watchdog.stop()
        if lost:
            raise lost[0]

    async def acquire(self) -> None:
        """Wait until we lead.

        Raises:
            Denied: RBAC does not let us use the Lease; waiting would not help.
        """
        while True:
            try:
                async with asyncio.timeout(self._timings.call_timeout):
                    if await self._try_acquire():
                        self.terms += 1
                        _log.info("leading", lease=self._name, identity=self.identity)
                        return
            except Denied:
                raise
            except NotFound:  # a Lease that is missing is created: it is the namespace
                do = f"kubectl create namespace {self._namespace}"
                _log.warning("lease not acquired", lease=self._name, error="no namespace", do=do)
            except Exception as error:  # noqa: BLE001 - any failure means: not acquired
                _log.warning("lease not acquired", lease=self._name, error=_text(error))
            # A look is one small GET. Twice as often as the leader renews, a released lease is
            # taken over within a second.
            await self._sleep(self._timings.retry_period * self._rng.uniform(0.25, 0.5))

    async def release(self) -> None:
        """Give the lease back, if it is still ours, so that a follower need not wait.

        Call it only when no write can follow. Never fails: then it simply expires.
        """
        if not self.is_fresh() and not self._kept:
            self._renewed = None
            return
        self._renewed, self._kept = None, False  # from here on no write passes the fence
        try:
            async with asyncio.timeout(self._timings.call_timeout):
                await self._give_back()
            _log.info("lease released", lease=self._name)
        except Exception as error:  # noqa: BLE001 - it expires by itself
            _log.warning("lease not released", lease=self._name, error=_text(error))

    async def _give_back(self) -> None:
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
        try:
            await self._patch(spec, self._timings.call_timeout)
        except Conflict:
            # The renewal that was under way when we stopped may have gone through.
            lease = await self._read()
            if lease is None or lease.holder != self.identity:
                return
            self._version = lease.resource_version
            await self._patch(spec, self._timings.call_timeout)

    # -- acquiring ---------------------------------------------------------------------

    async def _try_acquire(self) -> bool:
        started = self._clock()
        if started - self._looked > self._timings.duration - self._timings.renew_deadline:
            self._observed = ("", 0.0)  # our clock jumped, or we slept: that time proves nothing
        self._looked = started
        lease = await self._read()
        if lease is None:
            return await self._create(started)
        if not self._is_free(lease):
            return False
        transitions = lease.transitions + (lease.holder != self.identity)
        self._version = lease.resource_version
        self._acquired = self._now()
        try:
            await self._write(started, transitions)
        except Conflict:
            return False  # another candidate was quicker
        return True

    async def _read(self) -> Lease | None:
        try:
            body = await self._api.request("GET", self._target, timeout=self._timings.call_timeout)
        except NotFound:
            return None
        lease = self._codec.one(body)
        self.leader, self.transitions = lease.holder, lease.transitions
        return lease

    def _is_free(self, lease: Lease) -> bool:
        """Released, ours from before, or unchanged for its whole duration by our clock."""
        now = self._clock()
        if lease.resource_version != self._observed[0]:
            self._observed = (lease.resource_version, now)
        if lease.holder in {"", self.identity}:
            return True
        # The holder's own duration counts, not ours: it may have been started with another.
        patience = max(lease.duration, 1.0)
        return now >= self._observed[1] + patience

    async def _create(self, started: float) -> bool:
        self._acquired = self._now()
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": self._spec(0),
        }
        try:
            body = await self._api.request(
                "POST",
                self._collection,
                msgspec.json.encode(lease),
                content_type=JSON,
                timeout=self._timings.call_timeout,
            )
        except AlreadyExists:
            return False
        self._took(started, self._codec.one(body))
        return True

    # -- keeping -----------------------------------------------------------------------

    async def _keep(self) -> NoReturn:
        """Renew until that fails for too long.

        Raises:
            LeaseLost: always, in the end.
        """
        while True:
            await self._sleep(min(self._timings.retry_period, max(0.0, self._left())))
            if self._left() <= 0:
                raise LeaseLost(
                    f"the lease {self._name} could not be renewed for"
                    f" {self._timings.renew_deadline:g} s"
                )
            try:
                async with asyncio.timeout(min(self._timings.call_timeout, self._left())):
                    await self._renew()
            except LeaseLost:
                raise
            except Exception as error:  # noqa: BLE001 - any failure means: not renewed
                _log.warning("lease not renewed", lease=self._name, error=_text(error))

    def _left(self) -> float:
        """Seconds until we must have stopped."""
        if self._renewed is None:
            return 0.0
        return self._renewed + self._timings.renew_deadline - self._clock()

    async def _renew(self) -> None:
        started = self._clock()
        try:
            await self._write(started, self.transitions)
        except (Conflict, NotFound):
            # Somebody wrote to it, or our own write went through and its answer was lost.
            lease = await self._read()
            if lease is None:
                raise LeaseLost(f"the lease {self._name} was deleted") from None
            if lease.holder != self.identity:
                raise LeaseLost(
                    f"the lease {self._name} is now held by {lease.holder or 'nobody'}"
                ) from None
            if lease.acquired != self._acquired:
                raise LeaseLost(
                    f"the lease {self._name} was taken by another process that is {self.identity},"
                    " too: every replica needs an --identity of its own"
                ) from None
            self._version = lease.resource_version
            await self._write(started, lease.transitions)

    # -- both --------------------------------------------------------------------------

    async def _write(self, started: float, transitions: int) -> None:
        """Write us in as the holder; the lease is fresh from `started` on."""
        left = self._timings.call_timeout
        if self._renewed is not None:
            left = min(left, self._left())
        self._took(started, self._codec.one(await self._patch(self._spec(transitions), left)))

    def _took(self, started: float, lease: Lease) -> None:
        self._renewed, self._kept = started, False
        self._version = lease.resource_version
        self.leader, self.transitions = lease.holder, lease.transitions

    async def _patch(self, spec: dict[str, object], seconds: float) -> bytes:
        body = {"metadata": {"resourceVersion": self._version}, "spec": spec}
        return await self._api.request(
            "PATCH",
            self._target,
            msgspec.json.encode(body),
            content_type=MERGE_PATCH,
            timeout=max(0.001, seconds),
        )

    def _spec(self, transitions: int) -> dict[str, object]:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._timings.duration)),
            "acquireTime": self._acquired,
            "renewTime": self._now(),
            "leaseTransitions": transitions,
        }

    def _now(self) -> str:
        return self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _overdue(self) -> str:
        """Why the process must end now; "" while all is well. Called from a thread.

        Half-way between the renew deadline and the lease's duration: late enough for
        an orderly end, early enough that nobody else leads yet.
        """
        renewed, timings = self._renewed, self._timings
        if renewed is None:
            return ""
        limit = (timings.renew_deadline + timings.duration) / 2
        age = self._clock() - renewed
        if age < limit:
            return ""
        return f"still running {age:.1f} s after the last renewal of the lease {self._name}"


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
