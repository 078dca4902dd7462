"""Writes the `Remediation` objects, behind everybody's back.

    decided, written --> told --> one task: records in memory, create, write status, prune

Invariants:
- Nothing waits for it, and nothing rests on it: even what it is told is worked in later, a few at
  a time, so that a storm's cordons do not wait for the making of their records.
- Where the kind or the permission is missing, the view is off: that is said once, and looked at
  again every `RETRY_SECONDS`.
- One write at a time, and a pause after each, the longer the more the API server has to do: a storm
  of sessions is recorded minutes later, and costs it no more than `PACE_SECONDS` and `YIELD` allow.
- A new leader goes on with what the objects say; what ended while nobody looked is closed as
  Unknown. While what stands on a node cannot be read, nothing is known to have ended there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any, Final, Protocol

import msgspec
import structlog
from pydantic import ValidationError

from remediator.decide.decision import Decision, PatchNode
from remediator.decide.facts import NodeFacts
from remediator.decide.look import unusable_session
from remediator.decide.session import Session
from remediator.kube.backoff import Backoff
from remediator.kube.custom import CustomObject
from remediator.kube.errors import AlreadyExists, ApiError, Denied, Invalid, NotFound
from remediator.kube.lease import NotLeading
from remediator.policy.cluster import Remediations
from remediator.record.remediation import (
    Remediation,
    approve,
    begin,
    finish,
    follow,
    hold,
    lose,
    name_of,
    written,
)


PACE_SECONDS: Final = 0.05
YIELD: Final = 5.0
"""So many times longer than a write took is the pause after it."""
MAX_PAUSE_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 300.0
PRUNE_SECONDS: Final = 600.0
GRACE_SECONDS: Final = 60.0
"""That the mirror of nodes may be behind our own writes."""
MAX_WAITING: Final = 5000
"""Records that are not written yet; the oldest ended ones are dropped first."""
MAX_TOLD: Final = 4000
"""News that is not worked in yet; beyond it the oldest is, at once."""
TAKEN_IN_AT_ONCE: Final = 8
"""News worked in for each write: more than one session makes, so that a storm's writes join."""

_BOTH: Final = {"apiVersion": "gpu-remediator.io/v1alpha1", "kind": "Remediation"}
_log = structlog.get_logger(__name__)


class Objects(Protocol):
    """What is needed of `remediator.kube.custom.CustomObjects`."""

    async def read_all(self) -> list[CustomObject]:
        """Return all objects."""

    async def create(self, document: dict[str, Any]) -> None:
        """Create one; raises AlreadyExists, NotFound (no such kind)."""

    async def write_status(self, name: str, status: dict[str, Any]) -> None:
        """Merge into a status; raises NotFound."""

    async def delete(self, name: str) -> None:
        """Delete one, if it is there."""


class Chronicle:
    """Keeps `Remediation` objects in step with the sessions on nodes.

    Args:
        objects: where they are.
        kept: how many, and how long.
        nodes: the facts of all nodes now.
        now: epoch seconds.
        sleep: waits; injected for tests.

    Attributes:
        off: why nothing is written now, "" if it is.
        written, failed: counters of writes.
    """

    def __init__(
        self,
        *,
        objects: Objects,
        kept: Remediations,
        nodes: Callable[[], Iterable[NodeFacts]],
        now: Callable[[], float],
        sleep: Callable[[float], Any] = asyncio.sleep,
        rng: Random | None = None,
    ) -> None:
        self.off = ""
        self.written = self.failed = 0
        self._objects = objects
        self._kept = kept
        self._nodes = nodes
        self._now = now
        self._sleep = sleep
        self._open: dict[str, Remediation] = {}
        self._ending: dict[str, Session] = {}
        self._waiting: dict[str, Remediation] = {}
        self._told: deque[Callable[[], None]] = deque()
        self._there: dict[str, str] = {}
        """Objects that exist: when their session ended (RFC 3339), "" if it has not."""
        self._changed = asyncio.Event()
        self._backoff = Backoff(base=1.0, cap=60.0, rng=rng or Random())  # noqa: S311 - jitter

    # -- being told: returns at once ----------------------------------------------------------

    def decided(self, now: Decision) -> None:
        """Take in what holds a session now, and the last state of one that ends."""
        self._tell(partial(self._decided, now, self._now()))

    def written_to(self, patch: PatchNode, facts: NodeFacts) -> None:
        """Take in a write to a node that is done; ``facts`` are from before it."""
        self._tell(partial(self._written_to, patch, facts, self._now()))

    def _tell(self, news: Callable[[], None]) -> None:
        if self.off:
            return  # whoever takes over when there is a view again reads the sessions
        self._told.append(news)
        self._take_in(len(self._told) - MAX_TOLD)
        self._changed.set()

    # -- working it in ------------------------------------------------------------------------

    def _take_in(self, most: int) -> None:
        """Work in so many of the oldest news."""
        for _ in range(min(most, len(self._told))):
            self._told.popleft()()

    def _take_in_behind(self, earlier: Iterable[Remediation]) -> None:
        """Work in all news on top of what an earlier leader recorded of the same sessions."""
        open_ = {one.spec.node_uid: one for one in earlier if not one.ended}
        self._open = open_ | self._open
        self._take_in(len(self._told))
        for uid, one in open_.items():
            if self._open.get(uid) is one:
                del self._open[uid]  # no news of it

    def _decided(self, now: Decision, at: float) -> None:
        if now.ended is not None:
            self._ending[now.uid] = now.ended
        record = self._open.get(now.uid)
        if record is not None:
            self._put(now.uid, hold(record, now, at))

    def _written_to(self, patch: PatchNode, facts: NodeFacts, at: float) -> None:
        uid, session = patch.uid, patch.session
        if isinstance(session, Session):
            record = self._record_of(uid, session, patch.name)
            self._put(uid, approve(follow(record, session, patch), patch, facts))
        elif session is None and unusable_session(facts):
            known = self._open.get(uid)
            if known is not None:  # what became of it cannot be read
                self._put(uid, lose(known, patch.why, now=at))
        elif session is None and isinstance(facts.session, Session):
            last = self._ending.pop(uid, facts.session)
            record = self._record_of(uid, last, patch.name)
            record = finish(approve(record, patch, facts), patch, facts, last=last, now=at)
            self._put(uid, record)

    def _record_of(self, uid: str, session: Session, node: str) -> Remediation:
        known = self._open.get(uid)
        if known is not None and known.spec.session == session.id:
            return known
        if known is not None:
            self._put(uid, lose(known, "another session took its place", now=self._now()))
        return begin(session, node=node)

    def _put(self, uid: str, record: Remediation) -> None:
        if self._open.get(uid) is record:
            return
        if record.ended:
            self._open.pop(uid, None)
        else:
            self._open[uid] = record
        self._waiting[record.name] = record
        self._shed()

    def _shed(self) -> None:
        if len(self._waiting) > MAX_WAITING:
            ended = (name for name, one in self._waiting.items() if one.ended)
            self._waiting.pop(next(ended, next(iter(self._waiting))))

    # -- writing ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write until cancelled."""
        known = False
        while True:
            try:
                if not known:
                    await self._take_over()
                    known = True
                await self._write_all()
                await self._wait()
            except (Denied, NotFound) as error:
                known = False
                await self._turn_off(error)
            except (ApiError, NotLeading) as error:
                self.failed += 1
                _log.debug("remediation_not_written", reason=str(error))
                await self._sleep(self._backoff.next(getattr(error, "retry_after", 0.0)))

    async def flush(self, timeout: float) -> None:  # noqa: ASYNC109 - part of the meaning
        """Before the end, with `run` ended: write what was not, within ``timeout`` seconds."""
        if self.off:
            return
        try:
            async with asyncio.timeout(timeout):
                self._take_in(len(self._told))
                while self._waiting:
                    await self._write_one()
        except (TimeoutError, ApiError, NotLeading) as error:
            _log.debug("remediation_not_written", reason=str(error))

    async def _turn_off(self, error: ApiError) -> None:
        """Say once that there is no view, and look again much later."""
        if not self.off:
            _log.warning("remediations_off", reason=str(error))
        self.off = str(error)
        for kept in (self._told, self._ending, self._open, self._waiting):
            kept.clear()
        await self._sleep(RETRY_SECONDS)

    async def _take_over(self) -> None:
        """Go on with the objects there are; begin one for each session that has none."""
        found = {one.name: one for one in await self._objects.read_all()}
        self._take_in_behind(filter(None, map(_read, found.values())))
        if self.off:
            _log.info("remediations_on")
            self.off = ""
        self._there = {name: one.status.get("ended") or "" for name, one in found.items()}
        sessions = {
            facts.session.id: facts
            for facts in self._nodes()
            if isinstance(facts.session, Session) and not unusable_session(facts)
        }
        for facts in sessions.values():
            if facts.uid not in self._open and isinstance(facts.session, Session):
                known = _read(found.get(name_of(facts.session.id)))
                record = known if known is not None and not known.ended else None
                record = record or begin(facts.session, node=facts.name)
                self._open[facts.uid] = record = follow(record, facts.session)
                self._waiting[record.name] = record
        frozen = {one.uid for one in self._nodes() if unusable_session(one)}
        mine = {name_of(one) for one in sessions} | {one.name for one in self._open.values()}
        for name, ended in self._there.items():
            record_there = _read(found[name])
            if ended or name in mine | self._waiting.keys() or record_there is None:
                continue
            if record_there.spec.node_uid in frozen - self._open.keys():
                self._open[record_there.spec.node_uid] = record_there
                continue
            why = "no controller saw how it ended"
            self._waiting[name] = lose(record_there, why, now=self._now())

    async def _write_all(self) -> None:
        while self._told or self._waiting:
            self._take_in(TAKEN_IN_AT_ONCE)
            began = self._now()
            if self._waiting:
                await self._write_one()
            pause = max(PACE_SECONDS, YIELD * (self._now() - began))
            await self._sleep(min(pause, MAX_PAUSE_SECONDS))
        self._compare()
        await self._prune()
        self._backoff.reset()

    async def _write_one(self) -> None:
        name, record = next(iter(self._waiting.items()))
        status = record.status.model_dump(mode="json", by_alias=True)
        try:
            if name not in self._there:
                await self._create(record)
            try:
                await self._objects.write_status(name, status)
            except NotFound:  # a person deleted it
                await self._create(record)
                await self._objects.write_status(name, status)
        except Invalid as error:
            _log.warning("remediation_refused", remediation=name, reason=str(error))
            self.failed += 1
        self.written += 1
        self._there[name] = record.status.ended or ""
        if self._waiting.get(name) is record:
            del self._waiting[name]

    async def _create(self, record: Remediation) -> None:
        try:
            await self._objects.create(
                {
                    "apiVersion": record.api_version,
                    "kind": record.kind,
                    "metadata": {
                        "name": record.name,
                        "labels": {"app.kubernetes.io/managed-by": "gpu-remediator"},
                    },
                    "spec": record.spec.model_dump(mode="json", by_alias=True),
                }
            )
        except AlreadyExists:
            return

    def _compare(self) -> None:
        """Take in what no write of ours was answered about: sessions that began, or are gone."""
        nodes = {one.uid: one for one in self._nodes()}
        for one in nodes.values():
            begun = one.session
            if not isinstance(begun, Session) or one.uid in self._open or unusable_session(one):
                continue
            if self._there.get(name_of(begun.id)):
                continue  # it has ended, and the mirror is behind
            self._put(one.uid, follow(begin(begun, node=one.name), begun))
        for uid, record in list(self._open.items()):
            facts = nodes.get(uid)
            session = facts.session if facts is not None else None
            if isinstance(session, Session) and session.id == record.spec.session:
                continue
            if facts is not None and unusable_session(facts):
                continue  # it may be this one
            if record.spec.started > written(max(0.0, self._now() - GRACE_SECONDS)):
                continue  # the watch may be behind the write
            why = "the node is gone" if facts is None else "the session is gone from the node"
            self._put(uid, lose(record, why, now=self._now()))
        if self._waiting:
            self._changed.set()

    async def _prune(self) -> None:
        """Delete ended ones that are too many or too old, the oldest first."""
        oldest = written(max(0.0, self._now() - self._kept.max_age))
        ended = sorted((at, name) for name, at in self._there.items() if at)
        surplus = ended[: max(0, len(ended) - self._kept.keep)]
        for name in dict.fromkeys(
            [name for _, name in surplus] + [name for at, name in ended if at < oldest]
        ):
            await self._objects.delete(name)
            self._there.pop(name, None)
            await self._sleep(PACE_SECONDS)

    async def _wait(self) -> None:
        """Wait for news, or until it is time to prune."""
        try:
            async with asyncio.timeout(PRUNE_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()


def _read(found: CustomObject | None) -> Remediation | None:
    """Read an object; None if there is none, or it is not one that this program wrote."""
    if found is None:
        return None
    document = _BOTH | {"spec": found.spec, "status": found.status}
    try:
        return Remediation.model_validate_json(msgspec.json.encode(document), strict=False)
    except ValidationError:
        return None
