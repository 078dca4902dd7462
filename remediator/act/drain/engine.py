"""Drains one node: plans a pass, sends what it asks for, waits for news, plans again.

    watch --> pods --plan--> requests --> queue --> senders --> replies --+
                ^                                                          |
                +----------------------- news, or time passed <-----------+

Nothing is kept outside this run: another process that drains the same node finds what
this one did in the pods. Cancelling it stops new requests at once; what was accepted by
the server goes on there.

Invariants:
- Before a request leaves, its pod is looked at once more: the same UID, still to leave.
- It is done only when a fresh list, past the watch, has no pod left that has to leave.
- A node that takes new pods is not drained: they would come back for ever.
- Behind its deadline nobody is asked to leave: it only looks whether all are gone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Final, NamedTuple, Protocol

import structlog

from remediator.act.drain.plan import Pass, Past, plan
from remediator.act.drain.rate import EvictionRate
from remediator.act.drain.replies import LAST, Attempt, Reply, attempt, meaning
from remediator.act.drain.report import Progress, ending, line
from remediator.act.drain.view import Pods, Watch
from remediator.kube.errors import ApiError
from remediator.kube.pods import Pod
from remediator.policy.drain import Drain


_log = structlog.get_logger(__name__)

SENDERS: Final = 16
"""Requests under way at a time, for one node."""
HEALTH_SECONDS: Final = 1.0
"""How often the node itself is looked at, at least."""
GAP_SECONDS: Final = 0.05
"""Between two passes, so that a thousand pods that go are not a thousand plans."""
CONFIRM_SECONDS: Final = 2.0
MIN_SPREAD: Final = 0.8
MAX_SPREAD: Final = 1.2


class Health(NamedTuple):
    """What a drain needs to know of the node itself: it is there, takes new pods, is Ready."""

    there: bool = True
    takes_pods: bool = False
    ready: bool = True


class Ended(NamedTuple):
    """How a drain ended. ``note`` is for people; ``clean``: no pod was passed over.

    ``late``: its time was over, and pods were left.
    """

    done: bool
    note: str
    progress: Progress
    late: bool = False

    @property
    def clean(self) -> bool:
        """Tell whether every pod that had to leave is gone."""
        return self.done and not self.progress.passed_over


class PodApi(Protocol):
    """The way to the pods; see :class:`remediator.kube.pods.ApiPods`."""

    async def list_pods(self, node: str) -> tuple[list[Pod], dict[str, str]]:
        """Return a node's pods, and those that cannot be read."""

    async def evict(self, pod: Pod, *, grace: float | None = None) -> None:
        """Ask for an eviction."""

    async def delete(self, pod: Pod, *, grace: float | None = None) -> None:
        """Delete a pod past its budget."""


class Observer(Protocol):
    """Counts what is sent and what holds; never waits, never fails."""

    def answered(self, reply: str) -> None:
        """One eviction or deletion was answered."""

    def blocked_pods(self, node: str, causes: Mapping[str, int]) -> None:
        """So many pods of a node are there for these causes; none: the drain has ended."""


class Unobserved:
    """Counts nothing."""

    def answered(self, reply: str) -> None:
        """See `Observer`."""

    def blocked_pods(self, node: str, causes: Mapping[str, int]) -> None:
        """See `Observer`."""


class _Request(NamedTuple):
    pod: Pod
    kind: str
    grace: float | None


class Drainer:
    """What all drains of a process share.

    Args:
        pods: lists, evicts, deletes.
        watch: follows a node's pods.
        rate: how fast, all together.
        now: seconds; the same clock as ``since``.
        observer: counts.
        rng: spreads repetitions.
    """

    def __init__(
        self,
        *,
        pods: PodApi,
        watch: Watch,
        rate: EvictionRate,
        now: Callable[[], float],
        observer: Observer | None = None,
        rng: Random | None = None,
    ) -> None:
        self.pods = pods
        self.watch = watch
        self.rate = rate
        self.now = now
        self.observer = observer or Unobserved()
        self.rng = rng or Random()  # noqa: S311 - spreads requests, no secret

    async def drain(
        self,
        node: str,
        drain: Drain,
        *,
        since: float,
        health: Callable[[], Health],
        say: Callable[[Progress], None],
        until: float = math.inf,
    ) -> Ended:
        """Drain a node until that is done, or cannot be.

        Args:
            node: its name.
            drain: how.
            since: when it began, perhaps in another process.
            health: the node itself as it is now.
            say: takes the progress after each pass.
            until: its deadline, by the same clock.
        """
        async with self.watch(node) as view:
            one = _Run(
                self, node, drain, since=since, until=until, health=health, say=say, view=view
            )
            try:
                return await one.run()
            finally:
                self.observer.blocked_pods(node, {})


class _Run:
    """One drain of one node."""

    def __init__(
        self,
        has: Drainer,
        node: str,
        drain: Drain,
        *,
        since: float,
        until: float,
        health: Callable[[], Health],
        say: Callable[[Progress], None],
        view: Pods,
    ) -> None:
        self._has = has
        self._node = node
        self._drain = drain
        self._since = since
        self._until = until
        self._health = health
        self._say = say
        self._view = view
        self._attempts: dict[str, Attempt] = {}
        self._terminating: dict[str, float] = {}
        self._seen: set[str] = set()
        self._unready_since: float | None = None
        self._queue: asyncio.Queue[_Request] = asyncio.Queue()
        self._busy: set[str] = set()
        self._progress = Progress()
        self._failure: Exception | None = None

    async def run(self) -> Ended:
        """Go on until it ends."""
        senders = [asyncio.create_task(self._send()) for _ in range(SENDERS)]
        try:
            while True:
                self._view.changed.clear()
                if self._failure is not None:
                    raise self._failure
                health = self._health()
                if not health.there:
                    return self._failed("the node is gone")
                if health.takes_pods:
                    return self._failed(
                        "the node takes new pods, so evicted ones would come back: cordon it"
                        " before it is drained"
                    )
                said = self._pass(health)
                if said is not None and said.done and not self._busy:
                    if await self._confirmed(health):
                        return Ended(
                            done=True, note=ending(self._progress), progress=self._progress
                        )
                    await asyncio.sleep(CONFIRM_SECONDS)
                elif said is not None and not said.done and self._late:
                    left = line(self._progress, self._has.now())
                    return Ended(done=False, note=left, progress=self._progress, late=True)
                await self._pause(said)
        finally:
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)

    def _pass(self, health: Health) -> Pass | None:
        """Plan, and queue what is asked for. None while the pods are not known."""
        if not self._view.synced:
            self._tell(Progress(trouble=self._view.trouble or "they are being listed"))
            return None
        now, pods = self._has.now(), self._view.all()
        self._remember(pods, health, now)
        said = plan(pods, self._drain, self._past(now), now)
        asked = (
            ("evict", said.evict, self._drain.grace_period),
            ("delete", said.delete, self._drain.grace_period),
            ("force", said.force, 0.0),
        )
        for kind, these, grace in () if self._late else asked:
            for pod in these:
                if pod.uid not in self._busy:
                    self._busy.add(pod.uid)
                    self._queue.put_nowait(_Request(pod, kind, grace))
        self._account(said, pods)
        return said

    def _remember(self, pods: list[Pod], health: Health, now: float) -> None:
        """Take in since when pods terminate, and the node is not ready, by our own clock."""
        there = {pod.uid for pod in pods}
        for pod in pods:
            if pod.terminating:
                self._terminating.setdefault(pod.uid, now)
        for known in (self._attempts, self._terminating):
            for uid in [uid for uid in known if uid not in there]:
                del known[uid]
        if health.ready:
            self._unready_since = None
        elif self._unready_since is None:
            self._unready_since = now

    def _past(self, now: float) -> Past:
        unready = self._unready_since
        return Past(
            since=self._since,
            attempts=self._attempts,
            terminating=self._terminating,
            kubelet_gone=unready is not None and now - unready >= self._drain.not_ready_after,
            unreadable=self._view.unreadable,
        )

    def _account(self, said: Pass, pods: list[Pod]) -> None:
        """Say how far it is: pods that had to leave, and are not there any more, are gone."""
        uids = {pod.name: pod.uid for pod in pods}
        staying = {uids[name] for name in said.skipped if name in uids}
        self._seen |= {uids.get(one.pod, one.pod) for one in said.left}
        self._seen |= {uids[name] for name in said.passed_over}
        self._seen -= staying
        gone = len(self._seen - set(uids.values()) - set(self._view.unreadable))
        causes: dict[str, int] = {}
        for one in said.left:
            causes[one.cause.value] = causes.get(one.cause.value, 0) + 1
        self._has.observer.blocked_pods(self._node, causes)
        self._tell(
            Progress(
                total=len(self._seen),
                gone=gone,
                left=tuple(said.left),
                skipped=said.skipped,
                passed_over=tuple(said.passed_over),
                trouble=self._view.trouble if said.left else "",
            )
        )

    @property
    def _late(self) -> bool:
        return self._has.now() >= self._until

    def _tell(self, progress: Progress) -> None:
        self._progress = progress
        self._say(progress)

    def _failed(self, why: str) -> Ended:
        return Ended(done=False, note=why, progress=self._progress)

    async def _confirmed(self, health: Health) -> bool:
        """Look past the watch: a view that lags must not make a node drained."""
        try:
            pods, unreadable = await self._has.pods.list_pods(self._node)
        except ApiError as error:
            self._tell(Progress(trouble=str(error)))
            return False
        now = self._has.now()
        self._remember(pods, health, now)
        return not unreadable and plan(pods, self._drain, self._past(now), now).done

    async def _pause(self, said: Pass | None) -> None:
        """Wait for news, or until the answer can be another one."""
        wait = HEALTH_SECONDS
        if said is not None and said.next_look is not None:
            wait = max(0.0, min(wait, said.next_look - self._has.now()))
        try:
            async with asyncio.timeout(wait):
                await self._view.changed.wait()
        except TimeoutError:
            pass
        await asyncio.sleep(GAP_SECONDS)

    # -- the senders ------------------------------------------------------------------------

    async def _send(self) -> None:
        while True:
            request = await self._queue.get()
            try:
                await self._has.rate.take()
                if self._still_wanted(request):
                    await self._ask(request)
            except Exception as error:  # noqa: BLE001 - raised by whoever runs the drain
                self._failure = error
                return
            finally:
                self._busy.discard(request.pod.uid)
                self._view.changed.set()

    def _still_wanted(self, request: _Request) -> bool:
        """Look once more, right before the request leaves."""
        pod = self._view.get(request.pod.name)
        if pod is None or pod.uid != request.pod.uid or self._health().takes_pods or self._late:
            return False
        now = self._has.now()
        said = plan([pod], self._drain, self._past(now), now)
        return (
            pod in {"evict": said.evict, "delete": said.delete, "force": said.force}[request.kind]
        )

    async def _ask(self, request: _Request) -> None:
        """Send one request and keep what became of it."""
        pods, pod = self._has.pods, request.pod
        send: Callable[..., Awaitable[None]] = (
            pods.evict if request.kind == "evict" else pods.delete
        )
        reply, message, retry_after = Reply.ACCEPTED, "", 0.0
        try:
            await send(pod, grace=request.grace)
        except ApiError as error:
            reply, message = meaning(error)
            retry_after = min(LAST, float(getattr(error, "retry_after", 0.0)))
        if reply is Reply.THROTTLED:
            self._has.rate.pause(max(1.0, retry_after))
        self._attempts[pod.uid] = attempt(
            self._attempts.get(pod.uid),
            reply,
            message,
            now=self._has.now(),
            retry_after=retry_after,
            spread=self._has.rng.uniform(MIN_SPREAD, MAX_SPREAD),
            deletion=request.kind != "evict",
        )
        self._has.observer.answered(reply.value)
        _log.info(
            "pod_asked_to_leave",
            node=self._node,
            pod=pod.name,
            uid=pod.uid,
            how=request.kind,
            reply=reply.value,
            **({"message": message} if message else {}),
        )
