"""Keeps a store equal to the API server's state: LIST once, WATCH for ever.

    LIST in pages --> synced --> WATCH from there --> ends or fails --> WATCH again
         ^                                                  |
         +------------------- 410 Gone ---------------------+

Invariants:
- The store only moves forward, and after each LIST it equals what the server had.
  A LIST is compared with the store: what is gone is removed, what is unchanged
  stays silent.
- No failure spins: every repetition after one waits, longer each time, with jitter.
  An answer with Retry-After is heeded.
- No silence is trusted: the server ends each watch after about five minutes, sends
  bookmarks each minute, and a watch without a byte for `read_timeout` is dropped and
  resumed where it was. What a half-open connection swallowed comes then.
- The view's age is known: `staleness` is the time since the server last said
  anything, and `on_gap` tells how long we were blind, once we see again.

Periodic re-LISTs are left out on purpose: a watch that resumes by version loses
nothing, and 5,000 nodes are 130 MB.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from urllib.parse import urlencode

import structlog

from remediator.kube.access import access_of
from remediator.kube.backoff import Backoff
from remediator.kube.codec import Codec, DecodeError, Event, Named, WireObject
from remediator.kube.errors import ApiError, Gone, ServerError, Unreachable, from_status
from remediator.kube.lines import LineSplitter, LineTooLongError


if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from remediator.kube.store import Store

_log = structlog.get_logger(__name__)

W = TypeVar("W", bound=WireObject)
T = TypeVar("T", bound=Named)


class Api(Protocol):
    """What the reflector needs of the transport."""

    async def request(
        self,
        method: str,
        target: str,
        *,
        compressed: bool = ...,
        timeout: float | None = ...,  # noqa: ASYNC109 - as the transport has it
    ) -> bytes:
        """Make one call."""

    def stream(
        self, target: str, *, read_timeout: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a watch."""


@dataclass(frozen=True)
class ReflectorTimings:
    """How patient a reflector is; all in seconds but the first.

    Attributes:
        page_size: objects in one LIST answer; 250 nodes are about 6 MB of JSON.
        list_timeout: for one page. It may be longer than the lease allows between two renewals:
            nothing is written while it lasts but with preconditions, renewals have connections
            of their own, and a server so slow that a page takes 20 s must not be asked for
            the first page for ever. How old the view is meanwhile, `staleness` says.
        watch_timeout: after which the server ends a watch; varied by 10 %, so that
            the watches of all replicas do not end together.
        read_timeout: silence after which a watch is taken for dead. The server sends
            a bookmark about every minute.
        backoff_base, backoff_cap: bounds of the wait after a failure.
        gap: a view older than this, when it is current again, was blind (`on_gap`).
    """

    page_size: int = 250
    list_timeout: float = 30.0
    watch_timeout: float = 300.0
    read_timeout: float = 90.0
    backoff_base: float = 0.2
    backoff_cap: float = 30.0
    gap: float = 30.0


class Reflector(Generic[W, T]):
    """Mirrors one collection into a store.

    Args:
        api: the transport.
        path: of the collection, such as `/api/v1/nodes`.
        codec: reads its objects.
        store: what is kept equal to the server; nobody else writes to it.
        selector: further query parameters, such as `fieldSelector`.
        on_gap: called with the seconds that we were blind, when the view is current again.
        failed: told of each failure.
        clock: seconds that only grow; None for the event loop's.
        sleep: waits between attempts.
        rng: where jitter comes from.

    Attributes:
        synced: set after the first complete LIST; never unset.
        unreadable: names of objects that are there but cannot be read, and why. The
            store keeps the last readable version of such an object.
        last_error: the last failure, None once a LIST or a watch has worked since.
        lists, watches, failures: counters.
    """

    def __init__(
        self,
        *,
        api: Api,
        path: str,
        codec: Codec[W, T],
        store: Store[T],
        selector: dict[str, str] | None = None,
        timings: ReflectorTimings | None = None,
        on_gap: Callable[[float], None] = lambda _seconds: None,
        failed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Random | None = None,
    ) -> None:
        self.path = path
        self.synced = asyncio.Event()
        self.unreadable: dict[str, str] = {}
        self.last_error: ApiError | None = None
        self.lists = self.watches = self.failures = 0
        self._api = api
        self._codec = codec
        self._store = store
        self._selector = selector or {}
        self._timings = timings or ReflectorTimings()
        self._on_gap = on_gap
        self._failed = failed
        self._clock = clock or asyncio.get_running_loop().time
        self._sleep = sleep
        self._rng = rng or Random()  # noqa: S311 - jitter, no secret
        self._backoff = Backoff(
            base=self._timings.backoff_base, cap=self._timings.backoff_cap, rng=self._rng
        )
        self._version = ""
        self._seen = self._clock()
        self._blind_since: float | None = None
        self._whole_lists = False

    @property
    def staleness(self) -> float:
        """Seconds since the server last said anything; up to a minute or so is normal."""
        return self._clock() - self._seen

    @property
    def sees(self) -> bool:
        """Whether the view is of now. Silence is normal for a minute; after a failure it is not."""
        timings = self._timings
        patience = timings.read_timeout if self.last_error is None else timings.gap
        return self.synced.is_set() and self.staleness <= patience

    async def run(self) -> None:
        """Mirror until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except Gone as error:
                self._version = ""
                await self._wait_after(error)
            except ApiError as error:
                await self._wait_after(error)
            except (DecodeError, LineTooLongError) as error:
                self._version = ""
                await self._wait_after(self._error(ServerError, str(error)))

    # -- LIST --------------------------------------------------------------------------

    async def _list(self) -> None:
        """Read the whole collection page by page and bring the store in line with it."""
        present: set[str] = set()
        unreadable: dict[str, str] = {}
        token = ""
        while True:
            try:
                body = await self._api.request(
                    "GET",
                    self._target(limit=self._page_size, **{"continue": token} if token else {}),
                    compressed=True,
                    timeout=self._timings.list_timeout,
                )
            except Gone:
                # The token outlived the server's history between two pages. If paging is
                # slower than compaction it will happen again: take all in one answer.
                self._whole_lists = bool(token)
                raise
            page = self._codec.page(body)
            del body
            self._activity()
            for item in page.items:
                name = item.metadata.name
                present.add(name)
                self._store.upsert(self._codec.narrow(item, self._store.get(name)))
            unreadable |= page.unreadable
            token = page.continue_token
            if not token:
                break
        self._finish_list(present, unreadable, page.resource_version)

    def _finish_list(self, present: set[str], unreadable: dict[str, str], version: str) -> None:
        for name in [n for n in self._store.names() if n not in present and n not in unreadable]:
            self._store.remove(name)
        for name, problem in unreadable.items():
            if self.unreadable.get(name) != problem:
                _log.warning("unreadable object", path=self.path, object=name, problem=problem)
        self.unreadable = unreadable
        self._version = version
        self._whole_lists = False
        self.lists += 1
        self._works()
        self.synced.set()

    @property
    def _page_size(self) -> int:
        return 0 if self._whole_lists else self._timings.page_size

    # -- WATCH -------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Follow the changes until the server ends the watch."""
        timings = self._timings
        seconds = timings.watch_timeout * self._rng.uniform(0.9, 1.1)
        target = self._target(
            watch=1,
            allowWatchBookmarks="true",
            resourceVersion=self._version,
            timeoutSeconds=max(1, round(seconds)),
        )
        started, before = self._clock(), self._version
        self.watches += 1
        splitter = LineSplitter()
        try:
            async with self._api.stream(target, read_timeout=timings.read_timeout) as chunks:
                self._works()
                async for chunk in chunks:
                    self._activity()
                    for line in splitter.feed(chunk):
                        self._apply(self._codec.event(line))
        finally:
            useful = self._version != before or self._clock() - started >= timings.backoff_cap
            if useful:
                self._backoff.reset()
        if not useful and self._clock() - started < 1.0:
            raise self._error(Unreachable, "the watch ended at once")

    def _apply(self, event: Event[W]) -> None:
        if event.error is not None:
            error = event.error
            raise from_status(access_of("GET", self.path + "?watch=1"), error.code or 500, error)
        if event.unreadable is not None:
            name, problem = event.unreadable
            _log.warning("unreadable object", path=self.path, object=name, problem=problem)
            self.unreadable[name] = problem
            if event.type == "DELETED":
                self._forget(name)
            return
        item = event.object
        if item is None:
            return
        name = item.metadata.name
        if event.type in {"ADDED", "MODIFIED"}:
            if self.unreadable:
                self.unreadable.pop(name, None)
            self._store.upsert(self._codec.narrow(item, self._store.get(name)))
        elif event.type == "DELETED":
            self._forget(name)
        self._version = item.metadata.resource_version or self._version

    def _forget(self, name: str) -> None:
        self.unreadable.pop(name, None)
        self._store.remove(name)

    # -- both --------------------------------------------------------------------------

    def _error(self, kind: type[ApiError], message: str) -> ApiError:
        return kind(access_of("GET", self.path), message=message)

    def _target(self, **query: object) -> str:
        return f"{self.path}?{urlencode({**self._selector, **query})}"

    def _activity(self) -> None:
        """The server said something. Was our own process asleep before that?"""
        if self.staleness > 2 * self._timings.read_timeout and self._blind_since is None:
            self._blind_since = self._seen
        self._seen = self._clock()

    def _works(self) -> None:
        """A LIST or a watch is through to the server: we see again."""
        self._activity()
        self.last_error = None
        if self._blind_since is not None:
            blind = self._seen - self._blind_since
            self._blind_since = None
            if blind > self._timings.gap and self.synced.is_set():
                self._on_gap(blind)

    async def _wait_after(self, error: ApiError) -> None:
        self.failures += 1
        self._failed()
        self.last_error = error
        if self._blind_since is None:
            self._blind_since = self._seen
        wait = self._backoff.next(getattr(error, "retry_after", 0.0))
        _log.info("watch interrupted", path=self.path, error=str(error), wait_s=round(wait, 2))
        await self._sleep(wait)
