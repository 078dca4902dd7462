"""Answers of Prometheus to facts: which nodes a query names, and since when.

No data is no answer about any node: a node that is not in a result is neither bad nor well. To
be well it has to be in the result of ``clearedBy``. What is no vector, is too large, or carries
times that are far from ours is refused as a whole; what was known before then grows stale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from remediator.decide.facts import QueryFact
from remediator.policy.model import RemediationPolicy
from remediator.policy.sources import SCRAPER_JOBS
from remediator.policy.when import QueryClause
from remediator.signals.resolve import (
    EXPORTED,
    INSTANCE,
    JOB,
    NODE,
    Found,
    NodeIndex,
    PodKey,
    PodPlace,
    Reason,
    Refused,
    Rules,
    Subject,
    Wanted,
    host_of,
    resolve,
)


MAX_SERIES: Final = 50_000
INTERVALS_FRESH: Final = 3
"""An answer holds for so many intervals, and the time that a query may take."""
_MAX_SHOWN: Final = 80
_NO_NUMBER: Final = Refused(Reason.NO_NUMBER, "NaN, or a histogram: it says nothing")
_Target = tuple[str, str]
"""Job and instance."""
_POINT: Final = 2
"""Items of a point: its time and its value."""


class QueryUnreadableError(ValueError):
    """An answer that says nothing about nodes; ``str()`` says why, and what to write."""


class ClockError(ValueError):
    """An answer of another time than ours: nothing that this server says can be placed."""


class Sample(NamedTuple):
    """One series of a vector; its value is NaN where it has no number."""

    labels: Mapping[str, str]
    value: float


class Answered(NamedTuple):
    """What came back for one clause. ``cleared`` None: not asked, or not answered."""

    named: tuple[Sample, ...]
    cleared: tuple[Sample, ...] | None
    at: float


def read_vector(result: Any, *, now: float, skew: float) -> tuple[Sample, ...]:
    """Read ``data.result`` of an instant query.

    The value of a series without a number (a histogram) is NaN.

    Args:
        result: the decoded JSON.
        now: epoch seconds.
        skew: seconds that a sample's time may differ from it.

    Raises:
        QueryUnreadableError: it is no vector, or too long.
        ClockError: it is of another time.
    """
    if not isinstance(result, list):
        raise QueryUnreadableError("the answer is no result of a query")
    if len(result) == _POINT and not isinstance(result[0], dict):
        raise QueryUnreadableError(
            "the result is one number or text without labels, and names no node:"
            " write a query that gives a vector"
        )
    if len(result) > MAX_SERIES:
        raise QueryUnreadableError(
            f"{len(result)} series, and at most {MAX_SERIES} are read: narrow the query"
        )
    return tuple(_sample(one, now, skew) for one in result)


def _sample(series: Any, now: float, skew: float) -> Sample:
    if not isinstance(series, dict):
        raise QueryUnreadableError("the answer is no result of a query")
    if "values" in series or "histograms" in series:
        raise QueryUnreadableError(
            "the result is a range of values: write an instant query, without [5m] at its end"
        )
    labels: Any = series.get("metric")
    point: Any = series.get("value", series.get("histogram"))
    try:
        if not isinstance(labels, dict) or not isinstance(point, list) or len(point) != _POINT:
            raise QueryUnreadableError("the answer is no result of a query")
        at = float(point[0])
        value = math.nan if "histogram" in series else float(point[1])
    except (TypeError, ValueError, OverflowError):
        raise QueryUnreadableError("the answer is no result of a query") from None
    if not abs(at - now) <= skew:
        raise ClockError(
            f"its clock and ours differ by {abs(at - now):.0f} s, and at most {skew:.0f} s are"
            " believed: check the time on both sides"
        )
    return Sample({str(key): str(text) for key, text in labels.items()}, value)


def queries_of(policies: Iterable[RemediationPolicy]) -> dict[str, QueryClause]:
    """Return every query that policies ask, by its key."""
    found = (one for policy in policies for one in _clauses(policy))
    return {one.key: one for one in found}


def asked_of_nodes(policies: Iterable[RemediationPolicy]) -> frozenset[str]:
    """Return the keys of the queries in ``when``: one in ``unless`` need not name a node."""
    entries = (entry for policy in policies for entry in policy.spec.when)
    return frozenset(one.key for entry in entries for one in entry.each("query"))


def short(clause: QueryClause) -> str:
    """Return a query as people see it in one line."""
    return " ".join(clause.promql.split())[:_MAX_SHOWN]


def _clauses(policy: RemediationPolicy) -> Iterator[QueryClause]:
    for entry in policy.spec.when:
        yield from entry.each("query")
    yield from (entry.query for entry in policy.spec.unless if entry.query is not None)


class QueryBook:
    """The facts that one clause gives about nodes.

    Args:
        clause: what is asked.
        source: the name of the Prometheus that is asked.
        lasts: seconds for which an answer holds.
        scraper_jobs: values of ``job`` that speak of others than the node they run on.
    """

    def __init__(
        self,
        clause: QueryClause,
        *,
        source: str,
        lasts: float,
        scraper_jobs: tuple[str, ...] = SCRAPER_JOBS,
    ) -> None:
        self.clause = clause
        self.source = source
        self.facts: dict[str, QueryFact] = {}
        self.refused: tuple[Refused, ...] = ()
        self.problem = ""
        self.has_result: bool | None = None
        self.heard_at: float | None = None
        """When the first answer came; None: none did yet."""
        self.wanted: frozenset[PodKey] = frozenset()
        """Pods of scrapers whose place would tell whether their series speak of others."""
        self._places: dict[PodKey, PodPlace] = {}
        self._rules = Rules(clause.node_from, scraper_jobs=scraper_jobs)
        self._lasts = lasts
        self._fresh_until = 0.0

    def result_at(self, now: float) -> bool | None:
        """Tell whether there is any result, for ``unless``; None: not known now."""
        return self.has_result if now < self._fresh_until else None

    def take(
        self, answered: Answered, index: NodeIndex, pods: Mapping[PodKey, PodPlace]
    ) -> set[str]:
        """Take in an answer; return the nodes about which anything was or is known.

        A series whose scraper has no known place yet says nothing: see ``wanted``.
        """
        before, at = self.facts, answered.at
        told, well = _numbers(answered.named), _numbers(answered.cleared or ())
        self._place((*told, *well), pods)
        named, refused = self._nodes(told, index)
        cleared, unclear = self._nodes(well, index)
        refused += [_NO_NUMBER] * (len(answered.named) - len(told))
        unclear += [_NO_NUMBER] * (len(answered.cleared or ()) - len(well))
        of_cleared = (one._replace(why=f"in clearedBy: {one.why}") for one in unclear)
        self.refused, self.has_result = (*refused, *of_cleared), bool(told)
        self.problem, self._fresh_until = "", at + self._lasts
        self.heard_at = at if self.heard_at is None else self.heard_at
        self.facts = {
            node: self._fact(before.get(node), value, at, holds=True)
            for node, value in named.items()
        }
        for node, value in cleared.items():
            if node not in self.facts:
                self.facts[node] = self._fact(before.get(node), value, at, holds=False)
        return {*before, *self.facts}

    def forget(self, nodes: Iterable[str]) -> None:
        """Forget nodes that are gone, or that are others of the same name now."""
        for node in nodes:
            self.facts.pop(node, None)

    def _nodes(
        self, samples: Iterable[Sample], index: NodeIndex
    ) -> tuple[dict[str, float], list[Refused]]:
        samples = tuple(samples)
        speak_of = self._speak_of(samples, index)
        found: dict[str, float] = {}
        refused = []
        for one in samples:
            others = speak_of.get(_target(one), frozenset())
            answer = resolve(
                Subject(one.labels, speaks_of=others), self._rules, index, self._places
            )
            if isinstance(answer, Wanted):
                self.wanted |= {answer.pod}
            elif isinstance(answer, Found):
                found[answer.node] = max(one.value, found.get(answer.node, one.value))
            elif isinstance(answer, Refused):
                refused.append(answer)
        return found, refused

    def _place(self, samples: Iterable[Sample], pods: Mapping[PodKey, PodPlace]) -> None:
        """Take in where scrapers run. A place that grew old counts until it is known anew."""
        jobs = self._rules.scraper_jobs
        targets = {_target(one) for one in samples if one.labels.get(JOB) in jobs}
        keys = {PodKey(ip=host_of(instance)) for _, instance in targets}
        known = {**self._places, **pods}
        self._places = {key: known[key] for key in keys if key in known}
        self.wanted = frozenset(self._places.keys() - pods.keys())

    def _speak_of(
        self, samples: Iterable[Sample], index: NodeIndex
    ) -> Mapping[_Target, AbstractSet[str]]:
        """Return by target the nodes that a scraper of others names: of one alone it may be."""
        found: dict[_Target, set[str]] = {}
        for one in samples:
            if one.labels.get(JOB) in self._rules.scraper_jobs and EXPORTED not in one.labels:
                found.setdefault(_target(one), set()).update(index.named(one.labels.get(NODE, "")))
        return found

    def _fact(self, before: QueryFact | None, value: float, at: float, *, holds: bool) -> QueryFact:
        same = before is not None and before.holds is holds and at < before.fresh_until
        return QueryFact(
            holds=holds,
            since=before.since if same and before is not None else at,
            seen=at,
            fresh_until=at + self._lasts,
            value=value,
            source=self.source,
        )


def _numbers(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    return tuple(one for one in samples if not math.isnan(one.value))


def _target(sample: Sample) -> _Target:
    """Return what was scraped."""
    return sample.labels.get(JOB, ""), sample.labels.get(INSTANCE, "")
