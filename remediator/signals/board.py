"""Where alerts, answers and nodes meet: facts of each node, and of the cluster, for the fleet.

    polls, webhook --> books --> placing --+
    queries ------> query books -----------+--> board --> Fleet.set_signals, Fleet.surround
    watch of nodes --> index --------------+

`publish` is called after each change, and often enough for silence to be noticed. Only nodes
whose facts changed are touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, Protocol

from remediator.clock import Clock
from remediator.decide.facts import (
    AGENTS,
    WATCH,
    AlertFact,
    ClusterFacts,
    SourceFact,
)
from remediator.decide.sanity import agents_now
from remediator.decide.signal_clauses import ALERTMANAGER, PROMETHEUS, alerts_named, names
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from remediator.policy.when import AlertClause, QueryClause
from remediator.signals.alertbook import AlertBook, Entry
from remediator.signals.alerts import Identity
from remediator.signals.fleet import Fleet
from remediator.signals.placing import Placing
from remediator.signals.queries import (
    INTERVALS_FRESH,
    Answered,
    QueryBook,
    asked_of_nodes,
    queries_of,
    short,
)
from remediator.signals.refused import News, Refusals
from remediator.signals.resolve import NodeIndex, PodKey, PodPlace


AGENTS_SECONDS: Final = 20.0
"""Between two looks at all heartbeats."""
REFUSED_SECONDS: Final = 10.0
"""Between two looks at what is refused, where nothing is new: labels of nodes change, too."""
REFUSED_SOONEST: Final = 1.0
"""Between two looks in a storm: who refuses 20,000 alerts has better things to do."""


class Observer(Protocol):
    """Whoever counts."""

    def unresolved(self, reason: str) -> None:
        """An alert was refused: it names no node."""

    def refused(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Say how many alerts and series are refused now, by source and reason."""

    def sources(self, ok: Mapping[str, bool]) -> None:
        """Say which sources can be trusted now."""


def _ignore(_news: News) -> None:
    """Nobody is to be told: a follower only keeps its view warm."""


class Board:
    """Facts from all sources.

    Args:
        cluster: which sources there are.
        fleet: gets the facts.
        index: the nodes, by what may name them.
        clock: the controller's.
        observer: counts refusals.

    Attributes:
        refused: what is refused now.
        on_refused: called with what of it is new, and asked for by a policy.
        revision: grows when what people see changes.
    """

    def __init__(
        self,
        *,
        cluster: ClusterSpec,
        fleet: Fleet,
        index: NodeIndex,
        clock: Clock,
        observer: Observer,
    ) -> None:
        now = clock.now()
        self.revision = 0
        self.on_refused: Callable[[News], None] = _ignore
        self.books = {one.name: AlertBook(one, now=now) for one in cluster.alertmanagers}
        self.queries: dict[str, QueryBook] = {}
        self.pods: dict[PodKey, PodPlace] = {}
        self._prometheus = {one.name: one for one in cluster.prometheus}
        self._answering = {
            one.name: SourceFact(ok=False, since=now, why="no query has been answered yet")
            for one in cluster.prometheus
        }
        self._placings = {
            name: Placing(book, index=index, pods=self.pods) for name, book in self.books.items()
        }
        self.refused = Refusals(
            books=self.books, placings=self._placings, queries=self.queries, node=fleet.get
        )
        self._refused_at = -math.inf
        self._refused_stale = True
        self._cluster, self._fleet, self._index = cluster, fleet, index
        self._clock, self._observer = clock, observer
        self._watch: SourceFact | None = None
        self._agents: SourceFact | None = None
        self._agents_due = now
        self._since: dict[tuple[str, str], dict[str, float]] = {}
        self._uids: dict[str, str] = {}
        self._index_seen = -1
        self._firing: dict[tuple[str, Identity], AlertFact] = {}
        self._instances: dict[tuple[str, Identity], str] = {}
        self._named: tuple[AlertClause, ...] = ()
        self._unless: tuple[AlertClause, ...] = ()
        self._restated = False
        self._unasked: tuple[QueryClause, ...] = ()
        self._touched: set[str] = set()

    # -- what policies ask -------------------------------------------------------------------

    def use(self, policies: Iterable[RemediationPolicy]) -> None:
        """Ask what these policies ask, and no more what only others did."""
        policies = tuple(policies)
        self._named = alerts_named(policies)
        self.refused.use(self._named, asked_of_nodes(policies))
        self._refused_at = -math.inf
        self._unless = tuple(
            entry.alert
            for policy in policies
            for entry in policy.spec.unless
            if entry.alert is not None
        )
        wanted = queries_of(policies)
        self._unasked = ()
        for key in [key for key in self.queries if key not in wanted]:
            self._touched |= self.queries.pop(key).facts.keys()
        for key, clause in wanted.items():
            source = self._source_of(clause)
            if not source:
                self._unasked = (*self._unasked, clause)
            elif key not in self.queries:
                server = self._prometheus[source]
                self.queries[key] = QueryBook(
                    clause,
                    source=source,
                    lasts=INTERVALS_FRESH * clause.interval + server.timeout,
                    scraper_jobs=server.scraper_jobs,
                )

    def _source_of(self, clause: QueryClause) -> str:
        if clause.source is not None:
            return clause.source if clause.source in self._prometheus else ""
        return next(iter(self._prometheus), "")

    # -- what sources say --------------------------------------------------------------------

    def answered(self, key: str, answer: Answered) -> None:
        """Take in an answer, unless nobody asks any more."""
        book = self.queries.get(key)
        if book is not None:
            shown = list(_troubles(book))
            self._touched |= book.take(answer, self._index, self.pods)
            self.revision += shown != list(_troubles(book))
            self._refused_stale = True

    def misread(self, key: str, *, why: str) -> None:
        """Take in that a query is wrong, or that its answer says nothing about nodes."""
        if key in self.queries and self.queries[key].problem != why:
            self.queries[key].problem = why
            self.revision += 1
            self._refused_stale = True

    def answering(self, source: str, *, why: str) -> None:
        """Take in whether a Prometheus answers; ``why`` "": it does."""
        before = self._answering[source]
        since = before.since if before.ok is not bool(why) else self._clock.now()
        self._answering[source] = SourceFact(ok=not why, since=since, why=why)

    def watching(self, *, why: str) -> None:
        """Take in whether our watch of the nodes goes on; ``why`` "": it does."""
        before = self._watch
        same = before is not None and before.ok is not bool(why)
        since = before.since if same and before is not None else self._clock.now()
        self._watch = SourceFact(ok=not why, since=since, why=why)

    def wanted_pods(self) -> set[PodKey]:
        """Return the pods whose place would help; put them into ``pods``."""
        asking = (*(one.wanted() for one in self._placings.values()), *self._scrapers())
        return {key for keys in asking for key in keys}

    def _scrapers(self) -> Iterator[AbstractSet[PodKey]]:
        return (book.wanted for book in self.queries.values())

    # -- what people see ---------------------------------------------------------------------

    def notes(self) -> tuple[str, ...]:
        """Say what is amiss: sources that fail, and alerts of policies that name no node."""
        known = self._fleet.cluster_facts.sources
        lines = [f"{name}: {one.why}" for name, one in known.items() if not one.ok]
        if self._named and not self.books:
            lines.append("policies ask for alerts, and no Alertmanager is configured")
        lines += self.refused.notes()
        lines += [_left_out(*one) for one in self.books.items() if _is_short(one[1])]
        lines += [line for book in self.queries.values() for line in _troubles(book)]
        for one in self._unasked:
            named = f"{one.source} " if one.source else ""
            lines.append(f"query {short(one)}: no Prometheus {named}is configured")
        return tuple(lines)

    # -- what comes of it --------------------------------------------------------------------

    def publish(self) -> None:
        """Give the fleet what changed."""
        now = self._clock.now()
        if self._index.version != self._index_seen:
            self._forget_nodes()
        matters = False
        for name, placing in self._placings.items():
            book = self.books[name]
            changed = book.take_changed()
            nodes, refused = placing.update(changed)
            self._touched |= nodes
            for one in refused:
                self._observer.unresolved(one.reason.value)
            matters = self._refresh(name, book, changed) or matters
            if changed or nodes or refused:
                self.revision += 1
                self._refused_stale = True
        for node in self._touched:
            self._tell(node)
        self._touched = set()
        if now - self._refused_at >= (REFUSED_SOONEST if self._refused_stale else REFUSED_SECONDS):
            self._look_at_refused(now)
        self._surround(now, matters=matters)

    def _look_at_refused(self, now: float) -> None:
        before = list(self.refused.notes())
        self._refused_at, self._refused_stale = now, False
        for news in self.refused.look():
            self.on_refused(news)
        self._observer.refused(self.refused.counts)
        self.revision += before != list(self.refused.notes())

    def _forget_nodes(self) -> None:
        """Drop what was said of nodes that are gone or others now."""
        self._index_seen = self._index.version
        self._refused_stale = True
        for node, uid in list(self._uids.items()):
            if self._index.uid(node) != uid:
                del self._uids[node]
                self._since.pop((node, uid), None)
                self._touched.add(node)
                for book in self.queries.values():
                    book.forget([node])

    def _refresh(self, name: str, book: AlertBook, changed: set[Identity]) -> bool:
        """Restate the alerts of one source; tell whether an ``unless`` may see it otherwise."""
        relevant = False
        self._restated = self._restated or bool(changed)
        for identity in changed:
            key = (name, identity)
            before, entry = self._firing.pop(key, None), book.entries.get(identity)
            after = None if entry is None else _fact(name, identity, entry)
            self._instances.pop(key, None)
            if after is not None:
                self._firing[key] = after
                self._instances[key] = after.instance
            relevant = relevant or any(
                one is not None and names(clause, one)
                for clause in self._unless
                for one in (before, after)
            )
        return relevant

    def _tell(self, node: str) -> None:
        """Give the fleet all that is known of one node."""
        uid = self._index.uid(node)
        if not uid:
            return
        self._uids[node] = uid
        queries = {
            key: book.facts[node] for key, book in self.queries.items() if node in book.facts
        }
        self._fleet.set_signals(node, alerts=self._alerts_of(node, uid), queries=queries)

    def _alerts_of(self, node: str, uid: str) -> tuple[AlertFact, ...]:
        """Return its alerts. Those of one fault instance share the time it was first seen."""
        found = {
            (name, identity): self._firing[name, identity]
            for name, placing in self._placings.items()
            for identity in placing.on(node)
        }
        before = self._since.get((node, uid), {})
        since: dict[str, float] = {}
        for key, one in found.items():
            instance = self._instances[key]
            known = since.get(instance, before.get(instance, one.since))
            since[instance] = min(one.since, known)
        self._since[node, uid] = since
        return tuple(_since(found[key], since[self._instances[key]]) for key in sorted(found))

    def _surround(self, now: float, *, matters: bool) -> None:
        before = self._fleet.cluster_facts
        sources = self._sources(now)
        queries = {
            key: known
            for key, book in self.queries.items()
            if (known := book.result_at(now)) is not None
        }
        self._observer.sources({name: one.ok for name, one in sources.items()})
        levels = {name: (one.ok, one.alive) for name, one in sources.items()}
        matters = (
            matters
            or levels != {name: (one.ok, one.alive) for name, one in before.sources.items()}
            or queries != before.queries
        )
        alerts = tuple(self._firing.values()) if self._restated else before.alerts
        self._restated = False
        facts = ClusterFacts(
            alerts=alerts, sources=sources, queries=queries, heard=dict(self._heard())
        )
        self.revision += matters
        self._fleet.surround(facts, matters=matters)

    def _heard(self) -> Iterator[tuple[str, float]]:
        for name, alerts in self.books.items():
            if alerts.heard_at is not None:
                yield ALERTMANAGER + name, alerts.heard_at
        for key, query in self.queries.items():
            if query.heard_at is not None:
                yield f"query:{key}", query.heard_at

    def _sources(self, now: float) -> dict[str, SourceFact]:
        found = {ALERTMANAGER + name: book.source(now) for name, book in self.books.items()}
        asked = {book.source for book in self.queries.values()}
        found |= {PROMETHEUS + name: self._answering[name] for name in asked}
        if now >= self._agents_due:
            self._agents_due = now + AGENTS_SECONDS
            self._agents = agents_now(
                self._fleet.all(), sanity=self._cluster.sanity, before=self._agents, now=now
            )
        if self._agents is not None:
            found[AGENTS] = self._agents
        if self._watch is not None:
            found[WATCH] = self._watch
        return found


def _fact(source: str, identity: Identity, entry: Entry) -> AlertFact:
    return AlertFact(
        source=source,
        name=entry.alert.name,
        labels=dict(identity),
        since=entry.since,
        seen=entry.seen,
        starts_at=entry.alert.starts_at,
        suppressed=entry.suppressed,
    )


def _since(fact: AlertFact, at: float) -> AlertFact:
    return fact if fact.since == at else replace(fact, since=at)


def _is_short(book: AlertBook) -> bool:
    return book.left_out > 0 and book.spec.webhook_only  # else a poll has them


def _left_out(name: str, book: AlertBook) -> str:
    return (
        f"Alertmanager {name} left {book.left_out} alerts out of its last call, and nobody polls"
        " it: set `max_alerts: 0` at its receiver"
    )


def _troubles(book: QueryBook) -> Iterator[str]:
    if book.problem:
        yield f"query {short(book.clause)}: {book.problem}"
    if book.wanted and not book.facts:
        yield f"query {short(book.clause)}: where {min(book.wanted)} runs is not known yet"
