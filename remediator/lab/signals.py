"""Alerts and queries of a lab, as the controller's sources would tell them.

All sources work from the start, with a watchdog that fires; a timeline may say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from remediator.decide.facts import AlertFact, ClusterFacts, QueryFact, SourceFact
from remediator.lab.given import AlertGiven, QueryGiven, SourceGiven
from remediator.lab.run import Lab
from remediator.policy.base import Model
from remediator.policy.model import RemediationPolicy
from remediator.policy.when import AlertClause, QueryClause


MAIN: Final = "main"
_FOREVER: Final = float("inf")


class Signals:
    """What fires now and what queries answer, by node."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._alerts: dict[str, tuple[AlertFact, ...]] = {}
        self._queries: dict[str, dict[str, QueryFact]] = {}
        self._around = ClusterFacts()
        policies = [one.policy for one in lab.policies.active.values()]
        self._asked = [one for policy in policies for one in queries_of(policy)]
        names = {one.source or MAIN for policy in policies for one in alerts_of(policy)}
        if names or self._asked:
            for name in names:
                self.source(SourceGiven(name=f"alertmanager/{name}"))
            for name in {one.source or MAIN for one in self._asked}:
                self.source(SourceGiven(name=f"prometheus/{name}"))

    def known(self, promql: str) -> bool:
        """Tell whether a policy asks this query."""
        return any(promql == one.promql for one in self._asked)

    def source(self, given: SourceGiven) -> None:
        """Have a source work, or not."""
        fact = SourceFact(ok=given.ok, since=self._lab.now, why=given.why, alive=given.alive)
        self._tell(sources={**self._around.sources, given.name: fact})

    def alert(self, names: tuple[str, ...], given: AlertGiven) -> None:
        """Have an alert fire or end, for these nodes; without any: beside the nodes."""
        now = self._lab.now
        for name in names or ("",):
            fact = AlertFact(
                source=given.source,
                name=given.name,
                labels={
                    "alertname": given.name,
                    **given.labels,
                    **({"node": name} if name else {}),
                },
                since=now,
                seen=now,
                starts_at=now,
                suppressed=given.suppressed,
            )
            others = [one for one in self._alerts.get(name, ()) if one.instance != fact.instance]
            before = [one for one in self._alerts.get(name, ()) if one.instance == fact.instance]
            if before:
                fact = replace(fact, since=before[0].since, starts_at=before[0].starts_at)
            self._alerts[name] = (*others, fact) if given.firing else tuple(others)
            self._tell(alerts=tuple(one for each in self._alerts.values() for one in each))
            if name:
                self._set(name)

    def query(self, name: str, given: QueryGiven) -> None:
        """Have a query's answer name a node or not."""
        now = self._lab.now
        known = self._queries.setdefault(name, {})
        for one in self._asked:
            if one.promql != given.promql:
                continue
            holds = given.says == "faulty"
            self._tell(queries={**self._around.queries, one.key: holds})
            before = known.pop(one.key, None)
            if given.says != "nothing":
                since = before.since if before is not None and before.holds is holds else now
                known[one.key] = QueryFact(
                    holds=holds,
                    since=since,
                    seen=now,
                    fresh_until=_FOREVER,
                    value=1.0,
                    source=one.source or MAIN,
                )
        self._set(name)

    def _set(self, name: str) -> None:
        queries = dict(self._queries.get(name, {}))
        self._lab.set_signals(name, alerts=self._alerts.get(name, ()), queries=queries)

    def _tell(self, **changes: Any) -> None:
        self._around = replace(self._around, **changes)
        self._lab.set_around(self._around)


def queries_of(policy: RemediationPolicy) -> Iterator[QueryClause]:
    """Yield the queries of a policy, wherever they stand."""
    return (one for one in _models(policy.spec) if isinstance(one, QueryClause))


def alerts_of(policy: RemediationPolicy) -> Iterator[AlertClause]:
    """Yield the alerts of a policy, wherever they stand."""
    return (one for one in _models(policy.spec) if isinstance(one, AlertClause))


def _models(value: Any) -> Iterator[Model]:
    """Yield the models within a model, itself first."""
    if isinstance(value, Model):
        yield value
        for name in type(value).model_fields:
            yield from _models(getattr(value, name))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _models(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _models(one)
