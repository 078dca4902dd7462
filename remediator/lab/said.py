"""What a recording holds of alerts and queries: differences of what the controller's board says.

    {"t": 0.0, "said": {"queries": {"0cc1": ["up == 0", "prom", 100.0]}, "sources": {...}}}
    {"t": 1.0, "said": {"alerts": {"main/Lost:5d41": {"source": "main", "labels": {...}, ...}}}}
    {"t": 31.0, "said": {"answers": {"0cc1": {"gpu-1": [true, 1.0]}}, "answered": ["0cc1"]}}
    {"t": 90.4, "said": {"alerts": {"main/Lost:5d41": null}}}

Alerts are all that fire, with all their labels, and the node that each is about. An answer is
recorded by node, and again only when it is otherwise; ``answered`` says that a query was
answered, so that what was not answered for too long grows stale here as it did there. Null takes
away. Times are the recorder's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

import msgspec

from remediator.decide.facts import AlertFact, ClusterFacts, QueryFact, SourceFact
from remediator.decide.signal_clauses import ALERTMANAGER
from remediator.lab.signals import alerts_of, queries_of
from remediator.policy.model import RemediationPolicy
from remediator.signals.sightings import NOTHING_SIGHTED, Sightings


TICK_SECONDS: Final = 1.0
"""How often a recorder looks at what is said."""

_ID_CHARACTERS: Final = 10
_SHOWN: Final = 60

_T = TypeVar("_T")


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """A query that is asked. ``lasts``: seconds for which an answer holds."""

    promql: str
    source: str
    lasts: float


class AlertState(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A firing alert. ``since``: first seen; as ``starts_at``, epoch seconds."""

    source: str
    labels: dict[str, str]
    starts_at: float
    since: float
    node: str = ""
    suppressed: bool = False


class Said(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What changed. See the module."""

    queries: dict[str, Asked] = {}
    sources: dict[str, tuple[bool, bool, str] | None] = {}
    """Whether a source is ok, whether it is alive, and why it is not ok."""
    heard: tuple[str, ...] = ()
    alerts: dict[str, AlertState | None] = {}
    answers: dict[str, dict[str, tuple[bool, float] | None]] = {}
    answered: tuple[str, ...] = ()
    results: dict[str, bool | None] = {}


class Taken(NamedTuple):
    """What a line changed.

    ``nodes``: those of which anything was said, be it the same once more. ``alerts``: that began,
    ended or changed. ``levels``: a source or a result did.
    """

    nodes: frozenset[str]
    alerts: tuple[AlertFact, ...]
    levels: bool


# -- to a line ---------------------------------------------------------------------------------


class Writer:
    """Says what is otherwise than it was said before.

    Args:
        queries: the text of each query that is asked, by its key.
    """

    def __init__(self, queries: Mapping[str, str]) -> None:
        self._texts = queries
        self._asked: dict[str, Asked] = {}
        self._alerts: dict[str, AlertState] = {}
        self._before = NOTHING_SIGHTED

    def difference(self, seen: Sightings) -> Said | None:
        """Return what to write; None where nothing is new."""
        before, self._before = self._before, seen
        alerts = dict(_alerts(seen))
        known, self._alerts = self._alerts, alerts
        around = seen.around
        answers = _by_query(seen)
        found = Said(
            queries=self._newly_asked(answers),
            sources=_changes(_levels(before.around), _levels(around)),
            heard=tuple(one for one in around.heard if one not in before.around.heard),
            alerts=_changes(known, alerts),
            answers=_answers(_by_query(before), answers),
            answered=_answered(_by_query(before), answers),
            results=_changes(before.around.queries, around.queries),
        )
        return None if found == Said() else found

    def _newly_asked(self, answers: Mapping[str, Mapping[str, QueryFact]]) -> dict[str, Asked]:
        """Return the queries that were not named yet, with what their answers tell of them."""
        new = {
            key: Asked(text, *_nature(answers.get(key, {})))
            for key, text in self._texts.items()
            if key not in self._asked or (not self._asked[key].lasts and answers.get(key))
        }
        self._asked |= new
        return new


def _nature(facts: Mapping[str, QueryFact]) -> tuple[str, float]:
    """Return which source answers, and for how long that holds; nothing before it did."""
    one = next(iter(facts.values()), None)
    return ("", 0.0) if one is None else (one.source, round(one.fresh_until - one.seen, 3))


def _alerts(seen: Sightings) -> Iterator[tuple[str, AlertState]]:
    for fact in seen.around.alerts:
        yield _id(fact), _state(fact, "")
    for node, alerts in seen.alerts.items():
        for fact in alerts:
            yield _id(fact), _state(fact, node)


def _id(fact: AlertFact) -> str:
    digest = hashlib.sha256(repr(sorted(fact.labels.items())).encode()).hexdigest()
    return f"{fact.source}/{fact.name}:{digest[:_ID_CHARACTERS]}"


def _state(fact: AlertFact, node: str) -> AlertState:
    return AlertState(
        source=fact.source,
        labels=dict(fact.labels),
        starts_at=round(fact.starts_at, 3),
        since=round(fact.since, 3),
        node=node,
        suppressed=fact.suppressed,
    )


def _levels(facts: ClusterFacts) -> dict[str, tuple[bool, bool, str]]:
    return {name: (one.ok, one.alive, one.why) for name, one in facts.sources.items()}


def _by_query(seen: Sightings) -> dict[str, dict[str, QueryFact]]:
    found: dict[str, dict[str, QueryFact]] = {}
    for node, facts in seen.queries.items():
        for key, fact in facts.items():
            found.setdefault(key, {})[node] = fact
    return found


def _answers(
    before: Mapping[str, Mapping[str, QueryFact]], after: Mapping[str, Mapping[str, QueryFact]]
) -> dict[str, dict[str, tuple[bool, float] | None]]:
    """Return by query the nodes of which it says something else than before; values aside."""
    found: dict[str, dict[str, tuple[bool, float] | None]] = {}
    for key in {*before, *after}:
        was, now = before.get(key, {}), after.get(key, {})
        changes: dict[str, tuple[bool, float] | None] = {
            node: (fact.holds, fact.value)
            for node, fact in now.items()
            if node not in was or (was[node].holds, was[node].since) != (fact.holds, fact.since)
        }
        changes |= dict.fromkeys(was.keys() - now.keys())
        if changes:
            found[key] = changes
    return found


def _answered(
    before: Mapping[str, Mapping[str, QueryFact]], after: Mapping[str, Mapping[str, QueryFact]]
) -> tuple[str, ...]:
    """Return the queries that were answered since."""
    return tuple(
        key for key, now in sorted(after.items()) if _seen(now) != _seen(before.get(key, {}))
    )


def _seen(facts: Mapping[str, QueryFact]) -> float:
    return max((one.seen for one in facts.values()), default=0.0)


def _changes(old: Mapping[str, _T], new: Mapping[str, _T]) -> dict[str, _T | None]:
    found: dict[str, _T | None] = {key: new[key] for key in new if old.get(key) != new[key]}
    return found | dict.fromkeys(key for key in old if key not in new)


# -- and back ----------------------------------------------------------------------------------


class Sayings:
    """What is said at a time of a recording: the fold of its lines."""

    def __init__(self) -> None:
        self._asked: dict[str, Asked] = {}
        self._alerts: dict[str, tuple[str, AlertFact]] = {}
        self._on: dict[str, dict[str, AlertFact]] = {}
        self._of: dict[str, set[str]] = {}
        """By query: the nodes that it speaks of."""
        self._by_node: dict[str, dict[str, QueryFact]] = {}
        self._around = ClusterFacts()

    @property
    def around(self) -> ClusterFacts:
        """Sources, and all alerts."""
        return self._around

    def alerts_on(self, node: str) -> tuple[AlertFact, ...]:
        """Return the alerts about a node."""
        found = self._on.get(node, {})
        return tuple(found[key] for key in sorted(found))

    def queries_on(self, node: str) -> dict[str, QueryFact]:
        """Return what queries say of a node."""
        return dict(self._by_node.get(node, {}))

    def sightings(self) -> Sightings:
        """Return all of it."""
        alerts = {node: self.alerts_on(node) for node in self._on}
        return Sightings(self._around, alerts, {node: dict(f) for node, f in self._by_node.items()})

    def unrecorded(self, policies: Iterable[RemediationPolicy]) -> tuple[str, ...]:
        """Say what these policies ask that the recording does not know."""
        policies = tuple(policies)
        sources = self._around.sources
        without = [one.name for one in policies if any(alerts_of(one))]
        notes = []
        if without and not any(name.startswith(ALERTMANAGER) for name in sources):
            notes.append(
                f"the recording holds no alerts: {', '.join(without)} cannot be told by them"
            )
        queries = {one.key: one.promql for each in policies for one in queries_of(each)}
        notes += [
            f"the recording holds no answer to query {' '.join(text.split())[:_SHOWN]}: what rests"
            " on it cannot be told (record with the policies that ask it)"
            for key, text in queries.items()
            if key not in self._asked
        ]
        return tuple(notes)

    def take(self, said: Said, at: float) -> Taken:
        """Take in a line; ``at``: epoch seconds of the recorder."""
        self._asked |= said.queries
        alerts, nodes = self._take_alerts(said, at)
        nodes |= self._take_answers(said, at)
        before = self._around
        self._surround(said, at, restated=bool(said.alerts))
        levels = _trust(before) != _trust(self._around) or before.queries != self._around.queries
        return Taken(frozenset(nodes), tuple(alerts), levels)

    def _take_alerts(self, said: Said, at: float) -> tuple[list[AlertFact], set[str]]:
        changed: list[AlertFact] = []
        nodes: set[str] = set()
        for key, state in said.alerts.items():
            node, fact = self._alerts.pop(key, ("", None))
            if fact is not None:
                self._on.get(node, {}).pop(key, None)
                changed.append(fact)
                nodes.add(node)
            if state is not None:
                fact = _fact(state, at)
                self._alerts[key] = (state.node, fact)
                changed.append(fact)
                if state.node:
                    self._on.setdefault(state.node, {})[key] = fact
                nodes.add(state.node)
        return changed, nodes - {""}

    def _take_answers(self, said: Said, at: float) -> set[str]:
        nodes: set[str] = set()
        for key, by_node in said.answers.items():
            for node, answer in by_node.items():
                nodes.add(node)
                if answer is None:
                    self._by_node.get(node, {}).pop(key, None)
                    self._of.get(key, set()).discard(node)
                else:
                    asked = self._asked.get(key, _UNASKED)
                    self._of.setdefault(key, set()).add(node)
                    self._by_node.setdefault(node, {})[key] = QueryFact(
                        holds=answer[0],
                        since=at,
                        seen=at,
                        fresh_until=at + asked.lasts,
                        value=answer[1],
                        source=asked.source,
                    )
        for key in said.answered:
            until = at + self._asked.get(key, _UNASKED).lasts
            renewed: dict[
                tuple[bool, float, float], QueryFact
            ] = {}  # most nodes are said the same of
            for node in self._of.get(key, ()):
                known = self._by_node[node]
                fact = known[key]
                same = (fact.holds, fact.since, fact.value)
                if same not in renewed:
                    renewed[same] = replace(fact, seen=at, fresh_until=until)
                known[key] = renewed[same]
                nodes.add(node)
        return nodes

    def _surround(self, said: Said, at: float, *, restated: bool) -> None:
        around = self._around
        sources = dict(around.sources)
        for name, level in said.sources.items():
            before = sources.pop(name, None)
            if level is not None:
                ok, alive, why = level
                same = before is not None and before.ok is ok
                since = before.since if same and before is not None else at
                sources[name] = SourceFact(ok=ok, since=since, why=why, alive=alive)
        results = {**around.queries, **said.results}
        self._around = ClusterFacts(
            alerts=tuple(fact for _, fact in self._alerts.values()) if restated else around.alerts,
            sources=sources,
            queries={key: known for key, known in results.items() if known is not None},
            heard={**dict.fromkeys(said.heard, at), **around.heard},
        )


_UNASKED: Final = Asked("", "", 0.0)


def _fact(state: AlertState, at: float) -> AlertFact:
    return AlertFact(
        source=state.source,
        name=state.labels.get("alertname", ""),
        labels=state.labels,
        since=state.since,
        seen=at,
        starts_at=state.starts_at,
        suppressed=state.suppressed,
    )


def _trust(facts: ClusterFacts) -> dict[str, tuple[bool, bool]]:
    return {name: (one.ok, one.alive) for name, one in facts.sources.items()}
