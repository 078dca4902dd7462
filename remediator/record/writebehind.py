"""One ConfigMap key kept equal to something in memory, behind the back of whoever changes it.

`WriteBehind.touch` says that it may have changed and returns at once. One task
looks, encodes and writes: at most once per `interval`, only what differs from what was
written last, later and later while the API server refuses, and never giving up,
because the newest value replaces the ones that were not written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, Generic, Protocol, TypeVar

import structlog

from remediator.kube.backoff import Backoff
from remediator.kube.errors import ApiError, Conflict, NotFound
from remediator.kube.lease import NotLeading
from remediator.kube.objects import ConfigMap


T = TypeVar("T")

_LONGEST_BACKOFF: Final = 60.0

_log = structlog.get_logger(__name__)


class ConfigMapStore(Protocol):
    """What is needed of `remediator.kube.configmap.ConfigMaps`."""

    async def read(self, name: str) -> ConfigMap | None:
        """Return the ConfigMap, None if there is none."""

    async def write(
        self, name: str, data: Mapping[str, str | None], *, known: ConfigMap | None
    ) -> ConfigMap:
        """Set keys; raises Conflict or NotFound when ``known`` is not the present version."""


class Document:
    """One ConfigMap of which we are the only writer; others' keys in it stay.

    Whoever changed it meanwhile is overruled for our keys: that is a person's edit, or a
    leader whose time has ended (and whose next write the lease forbids).
    """

    def __init__(self, configmaps: ConfigMapStore, name: str) -> None:
        self.name = name
        self._configmaps = configmaps
        self._known: ConfigMap | None = None

    async def read(self) -> Mapping[str, str]:
        """Return its texts by key, none if it does not exist. Raises ApiError."""
        self._known = await self._configmaps.read(self.name)
        return self._known.data if self._known else {}

    async def write(self, data: Mapping[str, str | None]) -> None:
        """Set keys, None removes one. Raises ApiError, NotLeading."""
        try:
            self._known = await self._configmaps.write(self.name, data, known=self._known)
        except (Conflict, NotFound):
            await self.read()
            self._known = await self._configmaps.write(self.name, data, known=self._known)


def beginning(text: str, size: int) -> str:
    """Return as much of a text as fits into so many bytes of UTF-8."""
    return text.encode()[:size].decode(errors="ignore")


class WriteBehind(Generic[T]):
    """Keeps one document up to date. Run `run` as one task.

    Args:
        document: where to.
        snapshot: the present value; called in the loop, at most once per interval.
        encode: its texts by key.
        same: whether two values are alike but for what is not worth a write.
        interval: seconds between two writes, at least.
        refresh: seconds after which it is written though nothing changed; None never.
        rng: jitter of the back-off.

    Attributes:
        written, failed: counters of writes.
        problem: why the last write failed, "" if it did not.
    """

    def __init__(
        self,
        *,
        document: Document,
        snapshot: Callable[[], T],
        encode: Callable[[T], Mapping[str, str | None]],
        same: Callable[[T, T], bool] = lambda one, other: one == other,
        interval: float,
        refresh: float | None = None,
        rng: Random | None = None,
    ) -> None:
        self.written = self.failed = 0
        self.problem = ""
        self._document = document
        self._snapshot = snapshot
        self._encode = encode
        self._same = same
        self._interval = interval
        self._refresh = refresh
        self._touched = asyncio.Event()
        self._last: T | None = None
        self._backoff = Backoff(
            base=max(interval, 1.0),
            cap=_LONGEST_BACKOFF,
            rng=rng or Random(),  # noqa: S311 - jitter
        )

    def touch(self) -> None:
        """Say that the value may have changed."""
        self._touched.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            due = await self._wait()
            self._touched.clear()
            wait = await self._write(force=due)
            await asyncio.sleep(wait)

    async def flush(self, timeout: float) -> bool:  # noqa: ASYNC109 - part of the meaning
        """Before the end, with `run` ended: write what was not, once, within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._write(force=False)
        except TimeoutError:
            return False
        return not self.problem

    async def _wait(self) -> bool:
        """Wait for a change; return True if the refresh was due instead."""
        try:
            async with asyncio.timeout(self._refresh):
                await self._touched.wait()
        except TimeoutError:
            return True
        return False

    async def _write(self, *, force: bool) -> float:
        """Write if there is something new; return the seconds to wait before the next look."""
        value = self._snapshot()
        if not force and self._last is not None and self._same(self._last, value):
            return self._interval
        try:
            await self._document.write(self._encode(value))
        except (ApiError, NotLeading) as error:
            return self._not_written(error)
        self._last = value
        self.written += 1
        self._backoff.reset()
        if self.problem:
            _log.info("configmap_written_again", configmap=self._document.name)
            self.problem = ""
        return self._interval

    def _not_written(self, error: Exception) -> float:
        self.failed += 1
        self._touched.set()
        if str(error) != self.problem:
            self.problem = str(error)
            _log.warning("configmap_not_written", configmap=self._document.name, reason=str(error))
        return self._backoff.next(getattr(error, "retry_after", 0.0))
