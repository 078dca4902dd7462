"""What sources say that nothing is done about: counted, shown to people, told once.

    placings, query books --> what is refused now --> by source and reason: a gauge
                                                  --> of what policies ask for: notes, Events

Refusals are levels, as all else: of an alert for as long as it fires, of a series for as long as
it is in the answer. They live in memory alone. After a restart, or by the next leader, each is
found anew from what its source says; the Event about it is the same one, with a higher count.

A signal about a node that is none of ``gpuNodes`` is not refused where alerts are placed: it is
about that node, and a session that the node is in goes on by it. It is refused here, since
nothing is begun on such a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from remediator.decide.facts import AlertFact, NodeFacts
from remediator.decide.signal_clauses import ALERTMANAGER, PROMETHEUS, names
from remediator.policy.when import AlertClause
from remediator.signals.alertbook import AlertBook
from remediator.signals.alerts import Alert
from remediator.signals.placing import Placing
from remediator.signals.queries import QueryBook, short
from remediator.signals.resolve import Reason


OUTSIDE: Final = "outside_gpu_nodes"
UNREADABLE: Final = "unreadable"
"""The whole answer to a query: no vector, too long, or an error in the query."""
TOO_MANY: Final = "too_many"
"""Alerts of a call of the webhook that there was no room for."""
LEFT_OUT: Final = "left_out"
"""Alerts that a call of the webhook did not hold: ``max_alerts`` of the receiver."""
MAX_NAMED: Final = 5
"""Lines about refused alerts in the status; the metric counts all."""
_NODES_NAMED: Final = 3

Key = tuple[str, str, str]
"""Source, signal and reason: what is one refusal for people."""


@dataclass(slots=True)
class RefusedSignal:
    """Alerts of one name, or series of one query, that are refused for one reason.

    ``source`` as in the status (``alertmanager/main``); ``alert``: its name, "" of a query;
    ``why``: of one of them; ``nodes``: those that it may be about, if any.
    """

    source: str
    signal: str
    reason: str
    why: str
    alert: str = ""
    count: int = 0
    nodes: set[str] = field(default_factory=set)

    @property
    def key(self) -> Key:
        """What makes it one."""
        return (self.source, self.signal, self.reason)


class News(NamedTuple):
    """A refusal that was not there before; ``nodes``: new ones of it, none if it names none."""

    refused: RefusedSignal
    nodes: tuple[str, ...]


class Refusals:
    """All that is refused now.

    Args:
        books, placings: of alerts, by the name of their Alertmanager.
        queries: by key.
        node: the facts of a node, by name.

    Attributes:
        named: what policies ask for.
        counts: alerts and series by source and reason, also those that no policy asks for.
    """

    def __init__(
        self,
        *,
        books: Mapping[str, AlertBook],
        placings: Mapping[str, Placing],
        queries: Mapping[str, QueryBook],
        node: Callable[[str], NodeFacts | None],
    ) -> None:
        self.named: dict[Key, RefusedSignal] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self._books, self._placings, self._queries = books, placings, queries
        self._node = node
        self._alerts: tuple[AlertClause, ...] = ()
        self._names: frozenset[str | None] | None = frozenset()
        """Of the alerts that are asked for; None: some are asked for by their labels alone."""
        self._asked: frozenset[str] = frozenset()

    def use(self, alerts: tuple[AlertClause, ...], queries: frozenset[str]) -> None:
        """Take for named what these clauses, and queries of these keys, ask of nodes."""
        self._alerts, self._asked = alerts, queries
        by_name = all(one.name for one in alerts)
        self._names = frozenset(one.name for one in alerts) if by_name else None

    def look(self) -> tuple[News, ...]:
        """Look at all anew; return what is new of what policies ask for."""
        before = self.named
        self.named, self.counts = {}, Counter()
        for name, placing in self._placings.items():
            self._look_at_alerts(name, placing)
        for key, book in self._queries.items():
            if key in self._asked:
                self._look_at_query(book)
        return tuple(chain.from_iterable(_news(one, before) for one in self.named.values()))

    def all(self) -> tuple[News, ...]:
        """Return all that policies ask for, as if it were new."""
        return tuple(News(one, tuple(sorted(one.nodes))) for one in self.named.values())

    def notes(self) -> Iterator[str]:
        """Say in words what policies ask for and do not get; first what is about no node."""
        alerts = [one for one in self.named.values() if one.alert]
        alerts.sort(key=lambda one: one.reason == OUTSIDE)
        yield from (words(one) for one in alerts[:MAX_NAMED])
        if len(alerts) > MAX_NAMED:
            yield f"{len(alerts) - MAX_NAMED} more kinds of alerts that policies name are refused"
        yield from (
            words(one)
            for one in self.named.values()
            if not one.alert and one.reason != UNREADABLE  # the board says what is wrong with it
        )

    # -- alerts ------------------------------------------------------------------------------

    def _look_at_alerts(self, name: str, placing: Placing) -> None:
        source = ALERTMANAGER + name
        if self._books[name].turned_away:
            self.counts[source, TOO_MANY] += self._books[name].turned_away
        if self._books[name].left_out:
            self.counts[source, LEFT_OUT] += self._books[name].left_out
        reasons = Counter(one.reason for one in placing.refusals())
        self.counts.update({(source, reason.value): n for reason, n in reasons.items()})
        for one in placing.refusals() if self._alerts else ():
            if self.is_named(name, one.alert):
                self._add_alert(source, one.alert, one.reason.value, one.why, one.nodes)
        for node, identities in placing.placed():
            if not identities or not self._outside(node):
                continue
            self.counts[source, OUTSIDE] += len(identities)
            for identity in identities:
                alert = self._books[name].entries[identity].alert
                if self.is_named(name, alert):
                    self._add_alert(source, alert, OUTSIDE, "", (node,))

    def _add_alert(
        self, source: str, alert: Alert, reason: str, why: str, nodes: tuple[str, ...]
    ) -> None:
        signal = f"alert {alert.name} of {source.removeprefix(ALERTMANAGER)}"
        made = RefusedSignal(source, signal, reason, why, alert.name)
        self._add(made, 1, nodes)

    def is_named(self, source: str, alert: Alert) -> bool:
        """Tell whether any policy asks for this alert of this Alertmanager."""
        if self._names is not None and alert.name not in self._names:
            return False
        fact = AlertFact(
            source=source,
            name=alert.name,
            labels=dict(alert.identity),
            since=0.0,
            seen=0.0,
            starts_at=0.0,
        )
        return any(names(clause, fact) for clause in self._alerts)

    # -- queries -----------------------------------------------------------------------------

    def _look_at_query(self, book: QueryBook) -> None:
        source, signal = PROMETHEUS + book.source, f"query {short(book.clause)}"
        if book.problem:
            self.counts[source, UNREADABLE] += 1
            self._add(RefusedSignal(source, signal, UNREADABLE, book.problem), 1, ())
        for one in book.refused:
            self.counts[source, one.reason.value] += 1
            self._add(RefusedSignal(source, signal, one.reason.value, one.why), 1, one.nodes)
        for node, fact in book.facts.items():
            if fact.holds and self._outside(node):
                self.counts[source, OUTSIDE] += 1
                self._add(RefusedSignal(source, signal, OUTSIDE, ""), 1, (node,))

    # -- both --------------------------------------------------------------------------------

    def _add(self, one: RefusedSignal, count: int, nodes: tuple[str, ...]) -> None:
        known = self.named.setdefault(one.key, one)
        known.count += count
        known.nodes.update(nodes)

    def _outside(self, node: str) -> bool:
        facts = self._node(node)
        return facts is not None and not facts.gpu and facts.session is None


def _news(one: RefusedSignal, before: Mapping[Key, RefusedSignal]) -> Iterator[News]:
    known = before.get(one.key)
    fresh = one.nodes if known is None else one.nodes - known.nodes
    if known is None or fresh:
        yield News(one, tuple(sorted(fresh)))


def words(one: RefusedSignal) -> str:
    """Say in one line what is refused, and why."""
    if one.reason == OUTSIDE:
        return f"{one.signal} is about {_outside(one.nodes)}"
    if one.alert:
        more = f", and {one.count - 1} more like it" if one.count > 1 else ""
        return f"{one.signal} is about no node: {one.why}{more}"
    if one.reason == UNREADABLE:
        return f"{one.signal}: {one.why}"
    if one.reason == Reason.NO_NUMBER:
        return f"{one.signal}: {one.count} series have no number ({one.why})"
    return f"{one.signal}: {one.count} series are about no node, such as: {one.why}"


def _outside(nodes: set[str]) -> str:
    named = ", ".join(sorted(nodes)[:_NODES_NAMED])
    more = f" and {len(nodes) - _NODES_NAMED} more nodes" if len(nodes) > _NODES_NAMED else ""
    are = "which is no GPU node" if len(nodes) == 1 else "which are no GPU nodes"
    return (
        f"{named}{more}, {are} by `gpuNodes` in RemediatorConfig: nothing is done there;"
        " if they are, correct that selector"
    )
