"""Kubernetes Events about Nodes: what we did and why, beside the object it happened to.

What is about no node is about the controller's own ConfigMap, in its namespace.

Events are a courtesy to people (`kubectl describe node`), never the record: they
must not slow down or fail what they tell about. So `record` only puts a note into a
bounded buffer and never raises; one task sends them, one at a time; what does not
fit, is too frequent or cannot be sent is dropped and counted. So is what waited until
somebody else leads: only the leader says that it did something.

Equal events are one Event object with a count: its name is derived from the node's
UID and the note, so the same note after a restart, or from the other replica, finds
it and counts on. The server deletes Events after an hour by default.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import structlog

from remediator.kube.errors import AlreadyExists, ApiError, NotFound
from remediator.kube.tenure import NotLeading
from remediator.kube.transport import MERGE_PATCH


if TYPE_CHECKING:
    from collections.abc import Callable

    from remediator.kube.transport import ApiClient

_log = structlog.get_logger(__name__)

Kind = Literal["Normal", "Warning"]

_DEFAULT = "default"
"""Events about cluster-scoped objects live in this namespace."""
_MAX_MESSAGE = 1024
"""The API server refuses longer messages of core/v1 Events."""


class Home(NamedTuple):
    """The ConfigMap that notes about no node are about."""

    namespace: str
    name: str


class Note(NamedTuple):
    """One thing to tell about one node, or about none (""); `key` says which are the same."""

    node: str
    uid: str
    kind: Kind
    reason: str
    message: str
    key: str

    @property
    def name(self) -> str:
        """The Event's name: the same for the same note, also in another process."""
        text = f"{self.uid}\0{self.kind}\0{self.reason}\0{self.key}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        # A node name may have 253 characters, as much as an Event's.
        return f"{self.node[:236].rstrip('.-') or 'gpu-remediator'}.{digest}"


class _Sent(NamedTuple):
    """What was sent of a note, when, and how often it came since: told with the next one."""

    total: int
    at: float
    more: int = 0


class _KnownEvent(msgspec.Struct):
    count: int = 1


class EventRecorder:
    """Tells about nodes by Events.

    Args:
        api: the transport.
        check: raises `NotLeading` when nothing may be sent any more; asked before each request.
        home: what notes about no node are about; they are dropped without one.
        count: told of each Event that was `sent`, `dropped` or has `failed`.
        component: who says it (`source.component`).
        instance: which replica says it.
        clock: seconds that only grow; None for the event loop's.
        wall: the time of day, for the Event's timestamps.
        buffer: notes that may wait to be sent.
        dedupe_ttl: seconds within which the same note is only counted, not sent again.
        burst, per_second: how many Events of one reason may be sent at once, and
            how fast that allowance comes back.

    Attributes:
        sent, repeated, dropped, failed: counters; `repeated` notes were counted only.
    """

    def __init__(
        self,
        *,
        api: ApiClient,
        check: Callable[[], None],
        home: Home | None = None,
        count: Callable[[str], None] = lambda _result: None,
        component: str = "gpu-remediator",
        instance: str = "",
        clock: Callable[[], float] | None = None,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        buffer: int = 1000,
        dedupe_ttl: float = 600.0,
        burst: int = 25,
        per_second: float = 1.0,
    ) -> None:
        self.sent = self.repeated = self.dropped = self.failed = 0
        self._api = api
        self._check = check
        self._home = home
        self._count = count
        self._component = component
        self._instance = instance
        self._clock = clock or asyncio.get_running_loop().time
        self._wall = wall
        self._capacity = buffer
        self._ttl = dedupe_ttl
        self._burst = burst
        self._rate = per_second
        self._waiting: deque[Note] = deque()
        self._wakeup = asyncio.Event()
        self._known: dict[str, _Sent] = {}
        self._pending: dict[str, int] = {}
        """By the names of those that wait: how often they came."""
        self._allowance: dict[str, tuple[float, float]] = {}

    def record(
        self,
        *,
        node: str,
        uid: str,
        kind: Kind,
        reason: str,
        message: str,
        key: str | None = None,
    ) -> None:
        """Tell about a node; returns at once and never fails.

        Args:
            node: its name; "": about none.
            uid: its UID.
            kind: Normal or Warning.
            reason: one word in CamelCase.
            message: for people, at most 1,024 characters.
            key: notes of one node and reason with the same key are the same one;
                None takes the message.
        """
        note = Note(node, uid, kind, reason, message, message if key is None else key)
        name = note.name
        known = self._known.get(name)
        if name in self._pending:
            self._pending[name] += 1
            self.repeated += 1
            return
        if known is not None and self._clock() < known.at + self._ttl:
            self._known[name] = known._replace(more=known.more + 1)
            self.repeated += 1
            return
        homeless = not node and self._home is None
        if homeless or len(self._waiting) >= self._capacity or not self._allowed(reason):
            self._drop(1)
            return
        self._pending[name] = 1 if known is None else 1 + known.more
        self._waiting.append(note)
        self._wakeup.set()

    async def run(self) -> None:
        """Send what was recorded, until cancelled."""
        while True:
            while self._waiting:
                await self._send(self._waiting.popleft())
            self._wakeup.clear()
            await self._wakeup.wait()

    async def flush(self, seconds: float) -> None:
        """Before the end: send what waits, for at most `seconds`, with no `run` running."""
        try:
            async with asyncio.timeout(seconds):
                while self._waiting:
                    await self._send(self._waiting.popleft())
        except TimeoutError:
            self._drop(len(self._waiting))

    def has_room(self, reason: str) -> bool:
        """Tell whether a note of this reason would be taken now: for those that can wait."""
        return self._tokens(reason) >= 1 and len(self._waiting) < self._capacity

    def _allowed(self, reason: str) -> bool:
        """Take one from the reason's token bucket."""
        tokens = self._tokens(reason)
        self._allowance[reason] = (tokens - 1 if tokens >= 1 else tokens, self._clock())
        return tokens >= 1

    def _tokens(self, reason: str) -> float:
        now, most = self._clock(), float(self._burst)
        tokens, at = self._allowance.get(reason, (most, now))
        return min(most, tokens + (now - at) * self._rate)

    async def _send(self, note: Note) -> None:
        name = note.name
        count = self._pending.pop(name, 1)
        try:
            await self._create_or_count(note, count)
            self.sent += 1
            self._count("sent")
        except NotLeading:
            self._drop(1)
        except ApiError as error:
            self._fail()
            _log.warning("event not sent", node=note.node, reason=note.reason, error=str(error))
        except Exception:  # noqa: BLE001 - a courtesy must not end the process
            self._fail()
            _log.exception("event not sent", node=note.node, reason=note.reason)
        self._forget_old()

    def _drop(self, events: int) -> None:
        self.dropped += events
        for _ in range(events):
            self._count("dropped")

    def _fail(self) -> None:
        self.failed += 1
        self._count("failed")

    async def _create_or_count(self, note: Note, count: int) -> None:
        name, now = note.name, self._now()
        known = self._known.get(name)
        if known is None:
            try:
                await self._create(note, count, now)
            except AlreadyExists:
                # From before a restart, or from another replica. The answer to a patch tells
                # its count: the verb `get` is not needed.
                known = _Sent(await self._patch(note, {"lastTimestamp": now}), self._clock())
            else:
                self._known[name] = _Sent(count, self._clock())
                return
        total = known.total + count
        body = {"count": total, "lastTimestamp": now, "message": _short(note.message)}
        try:
            await self._patch(note, body)
        except NotFound:  # the server's own TTL was quicker
            await self._create(note, count, now)
            total = count
        self._known[name] = _Sent(total, self._clock())

    async def _patch(self, note: Note, body: dict[str, object]) -> int:
        path = f"{self._path(note)}/{note.name}"
        self._check()
        answer = await self._api.request(
            "PATCH", path, msgspec.json.encode(body), content_type=MERGE_PATCH
        )
        return msgspec.json.decode(answer, type=_KnownEvent).count

    async def _create(self, note: Note, count: int, now: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": note.name, "namespace": self._namespace(note)},
            "involvedObject": self._about(note),
            "type": note.kind,
            "reason": note.reason,
            "message": _short(note.message),
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": count,
        }
        self._check()
        await self._api.request("POST", self._path(note), msgspec.json.encode(body))

    def _namespace(self, note: Note) -> str:
        return _DEFAULT if note.node or self._home is None else self._home.namespace

    def _path(self, note: Note) -> str:
        return f"/api/v1/namespaces/{self._namespace(note)}/events"

    def _about(self, note: Note) -> dict[str, str]:
        if note.node or self._home is None:
            return {"apiVersion": "v1", "kind": "Node", "name": note.node, "uid": note.uid}
        return {"apiVersion": "v1", "kind": "ConfigMap", **self._home._asdict()}

    def _forget_old(self) -> None:
        """Keep the memory of sent notes bounded."""
        if len(self._known) > 2 * self._capacity:
            limit = self._clock() - self._ttl
            self._known = {n: sent for n, sent in self._known.items() if sent.at > limit}

    def _now(self) -> str:
        return self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _short(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 3] + "..."
