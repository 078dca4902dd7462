"""A session that nothing will ever end by itself says so to people, once."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.decide.facts import ClusterFacts
from remediator.policy.when import QueryClause
from tests.unit.decide.build import Bench, alert, alive, node, policy, query_fact


QUERY = QueryClause.model_validate({"promql": "up == 0"})
ALERT: dict[str, Any] = {"alert": {"name": "GpuFell"}}


def born_of(kind: str, known: ClusterFacts) -> Bench:
    """One node in a session that an alert or a query began, and which is gone now."""
    when = ALERT if kind == "alert" else {"query": {"promql": "up == 0"}}
    made = Bench(policy(when=[when], recover={"when": "cleared", "for": "10m"}))
    made.known = known
    alerts = (alert(),) if kind == "alert" else ()
    queries = {QUERY.key: query_fact(holds=True)} if kind == "query" else {}
    made.see(node(alerts=alerts, queries=queries))
    made.one()
    assert made.cordoned()
    made.one(seconds=60.0)
    assert "by hand" not in made.texts()
    made.change(alerts=(), queries={})
    made.one(seconds=1.0)
    return made


@pytest.mark.parametrize(("kind", "known"), [
    ("alert", alive(alive=False)),
    ("alert", ClusterFacts()),
    ("query", ClusterFacts()),
])  # fmt: skip
def test_people_are_told_once_that_only_they_can_end_it(kind: str, known: ClusterFacts) -> None:
    made = born_of(kind, known)
    assert "by hand" not in made.texts(), "it may come back at once"
    for _ in range(3):
        made.one(seconds=600.0)
    assert made.cordoned()
    assert sum("ends by hand" in f"{one}" for one in made.sent.values()) == 1
    assert "remediator cancel n1" in made.texts()


def test_nobody_is_told_so_where_the_absence_is_proven() -> None:
    made = born_of("alert", alive())
    for _ in range(3):
        made.one(seconds=600.0)
    assert "ends by hand" not in made.texts()
    assert not made.cordoned()
