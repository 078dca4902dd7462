"""Everything that asks other programs: polls, queries, places of pods; for a process's whole life.

A follower asks as the leader does, so that it takes over with facts, and with their ages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import structlog

from remediator.clock import Clock
from remediator.kube.podplace import PodFinder
from remediator.kube.sockets import http_session
from remediator.policy.cluster import ClusterSpec
from remediator.policy.when import QueryClause
from remediator.signals.alertmanager import Poller
from remediator.signals.alerts import Report
from remediator.signals.board import Board
from remediator.signals.prometheus import (
    PrometheusServer,
    QueryRefusedError,
    SourceFailedError,
)
from remediator.signals.queries import (
    Answered,
    ClockError,
    QueryUnreadableError,
    Sample,
    read_vector,
)
from remediator.signals.resolve import PodKey, PodPlace


_log = structlog.get_logger(__name__)

TICK_SECONDS: Final = 1.0
GATHER_SECONDS: Final = 0.02
"""How long news may wait for more, so that a storm of webhook calls is one step."""
PLACE_LASTS: Final = 600.0
NO_PLACE_LASTS: Final = 60.0
MAX_PLACES: Final = 20_000
PLACES_AT_ONCE: Final = 50
MAX_PLACES_ONCE: Final = 500
"""Pods looked for where somebody looks once; an alert of another one names no node then."""
WATCH_SILENT: Final = 120.0
"""Seconds without a word of the API server; its bookmarks come about once a minute."""
RETRY_SECONDS: Final = 10.0


class Feeds:
    """The sources of RemediatorConfig.

    Args:
        cluster: which there are.
        board: takes in what they say.
        clock: the controller's.
        finder: finds pods.
        watch_staleness: seconds since the watch of nodes said anything.
        servers: of Prometheus; made from the configuration if not given.
    """

    def __init__(
        self,
        *,
        cluster: ClusterSpec,
        board: Board,
        clock: Clock,
        finder: PodFinder,
        watch_staleness: Callable[[], float],
        servers: dict[str, PrometheusServer] | None = None,
    ) -> None:
        self._cluster = cluster
        self._board = board
        self._clock = clock
        self._finder = finder
        self._staleness = watch_staleness
        self._servers = servers or {one.name: PrometheusServer(one) for one in cluster.prometheus}
        self._pollers: dict[str, Poller] = {}
        self._news = asyncio.Event()
        self._places: dict[PodKey, float] = {}
        self._due: dict[str, float] = {}
        self.pending = 0
        """Alerts of webhook calls that are not facts yet."""

    def told(self, source: str, report: Report) -> None:
        """Take in a webhook call for an Alertmanager. Raises BookFullError."""
        self._board.books[source].told(report, self._clock.now())
        self.pending += len(report.firing) + len(report.resolved)
        if source in self._pollers:
            self._pollers[source].poke()
        self._news.set()

    async def run(self) -> None:
        """Ask until cancelled."""
        async with http_session(trust_env=False) as session, asyncio.TaskGroup() as tasks:
            for name, book in self._board.books.items():
                if book.spec.urls:
                    self._pollers[name] = Poller(
                        book, session=session, clock=self._clock, news=self._news.set
                    )
                    tasks.create_task(self._pollers[name].run())
            for server in self._servers.values():
                tasks.create_task(self._ask(server))
            tasks.create_task(self._publish())
            tasks.create_task(self._place())

    async def once(self) -> None:
        """Ask every source once, then where the pods run that they speak of, and publish.

        A server that does not answer one query is not asked the others.
        """
        async with http_session(trust_env=False) as session, asyncio.TaskGroup() as tasks:
            for book in self._board.books.values():
                poller = Poller(book, session=session, clock=self._clock, news=self._news.set)
                tasks.create_task(poller.once())
            for server in self._servers.values():
                tasks.create_task(self._ask_once(server))
        self._board.publish()
        if await self._find_places(MAX_PLACES_ONCE):
            for server in self._servers.values():
                await self._ask_once(server, wanting=True)
            self._board.publish()

    # -- facts -------------------------------------------------------------------------------

    async def _publish(self) -> None:
        """Publish what is new, and once a second what may have grown old."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._news.wait()
                    await asyncio.sleep(GATHER_SECONDS)
            self._news.clear()
            self.pending = 0
            silent = self._staleness()
            why = f"nothing heard for {silent:.0f} s" if silent > WATCH_SILENT else ""
            self._board.watching(why=why)
            self._board.publish()

    # -- queries -----------------------------------------------------------------------------

    async def _ask(self, server: PrometheusServer) -> None:
        """Ask what is due of one server, one query after the other."""
        while True:
            key = self._next(server.spec.name)
            if key is None:
                await asyncio.sleep(TICK_SECONDS / 4)
                continue
            clause = self._board.queries[key].clause
            wait = clause.interval
            if not await self._answer(server, key, clause):
                wait = min(wait, RETRY_SECONDS)
            self._due[key] = self._clock.now() + wait

    async def _ask_once(self, server: PrometheusServer, *, wanting: bool = False) -> None:
        """Ask all queries of one server; ``wanting``: those only that lacked the place of a pod."""
        for key, book in self._board.queries.items():
            asked = book.source == server.spec.name and (book.wanted or not wanting)
            if asked and not await self._answer(server, key, book.clause):
                return

    def _next(self, source: str) -> str | None:
        """Return the query of a server that has been due the longest."""
        now = self._clock.now()
        for key in [key for key in self._due if key not in self._board.queries]:
            del self._due[key]
        due = [
            (self._due.get(key, 0.0), key)
            for key, book in self._board.queries.items()
            if book.source == source and self._due.get(key, 0.0) <= now
        ]
        return min(due)[1] if due else None

    async def _answer(self, server: PrometheusServer, key: str, clause: QueryClause) -> bool:
        """Ask one query, and what clears it; tell whether the server answered both."""
        name = server.spec.name
        try:
            named = await self._vector(server, clause.promql)
            cleared = None
            if clause.cleared_by is not None:
                cleared = await self._vector(server, clause.cleared_by)
        except (QueryRefusedError, QueryUnreadableError) as error:
            self._board.misread(key, why=str(error))
            self._board.answering(name, why="")
            _log.warning("query_failed", source=name, promql=clause.promql, reason=str(error))
        except (SourceFailedError, ClockError) as error:
            self._board.answering(name, why=str(error))
            _log.warning("prometheus_failed", source=name, reason=str(error))
            self._news.set()
            return False
        else:
            self._board.answering(name, why="")
            self._board.answered(key, Answered(named, cleared, self._clock.now()))
        self._news.set()
        return True

    async def _vector(self, server: PrometheusServer, promql: str) -> tuple[Sample, ...]:
        result = await server.query(promql)
        return read_vector(result, now=self._clock.now(), skew=server.spec.max_clock_skew)

    # -- places of pods ----------------------------------------------------------------------

    async def _place(self) -> None:
        """Find out where the pods run that alerts speak of; forget what is old."""
        while True:
            now = self._clock.now()
            for key in [key for key, until in self._places.items() if until <= now]:
                del self._places[key]
                self._board.pods.pop(key, None)
            if await self._find_places(PLACES_AT_ONCE):
                self._news.set()
            await asyncio.sleep(TICK_SECONDS / 4)

    async def _find_places(self, limit: int) -> bool:
        """Find at most so many pods; tell whether any was wanted."""
        wanted = sorted(self._board.wanted_pods() - self._places.keys())[:limit]
        for key in wanted if len(self._places) < MAX_PLACES else ():
            place = await self._finder.find(key.namespace, key.name, key.ip)
            self._board.pods[key] = PodPlace(place.node, place.created)
            lasts = PLACE_LASTS if place.node else NO_PLACE_LASTS
            self._places[key] = self._clock.now() + lasts
        return bool(wanted)
