"""Alerts and queries: what is there, what is silenced, and what absence proves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from node_agent.contract import Severity
from remediator.decide.facts import AlertFact, ClusterFacts, QueryFact, SourceFact
from remediator.decide.match import Answer, instance_answer, match
from remediator.decide.signal_clauses import absence_proven
from remediator.policy.when import QueryClause
from tests.unit.decide.build import START, alert, alive, node, policy, query_fact


FELL = policy(when=[{"alert": {"name": "GpuFell"}}])
FELL_FOR_1M = policy(when=[{"alert": {"name": "GpuFell", "for": "1m"}}])
PROMQL = "DCGM_FI_DEV_XID_ERRORS == 79"
ASKED = {"promql": PROMQL}
KEY = QueryClause.model_validate(ASKED).key
QUERY = policy(when=[{"query": ASKED}])
FAILING = ClusterFacts(sources={"alertmanager/main": SourceFact(ok=False, since=0, why="refused")})


def test_an_alert_that_names_the_node_holds_and_names_its_instance() -> None:
    found = match(FELL, node(alerts=(alert(),)), START, alive())
    assert found.answer is Answer.HOLDS
    assert found.instances == (alert().instance,)
    assert found.reasons == ("alert GpuFell",)
    assert found.fresh
    assert not found.doubt


@pytest.mark.parametrize(
    ("clause", "holds"),
    [
        ({"name": "GpuFell"}, True),
        ({"name": "Other"}, False),
        ({"labels": {"gpu": "0"}}, True),
        ({"name": "GpuFell", "labels": {"gpu": "0", "severity": "critical"}}, True),
        ({"name": "GpuFell", "labels": {"gpu": "1"}}, False),
        ({"name": "GpuFell", "labels": {"absent": ""}}, False),
        ({"name": "GpuFell", "source": "main"}, True),
        ({"name": "GpuFell", "source": "other"}, False),
    ],
)
def test_name_labels_and_source_must_all_fit(clause: dict[str, Any], holds: bool) -> None:  # noqa: FBT001
    found = match(policy(when=[{"alert": clause}]), node(alerts=(alert(),)), START, alive())
    assert found.holds is holds


@pytest.mark.parametrize(
    ("known", "answer"),
    [
        (alive(), Answer.CLEAR),
        (alive(alive=False), Answer.UNKNOWN),
        (FAILING, Answer.UNKNOWN),
        (ClusterFacts(), Answer.UNKNOWN),
        (
            ClusterFacts(sources={**alive().sources, **alive("second", alive=False).sources}),
            Answer.UNKNOWN,
        ),
    ],
    ids=["proven", "no-watchdog", "failing", "none-configured", "one-of-two-is-not"],
)
def test_absence_proves_only_with_a_living_source(known: ClusterFacts, answer: Answer) -> None:
    assert match(FELL, node(), START, known).answer is answer


def test_a_session_ends_by_the_alerts_own_source() -> None:
    known = ClusterFacts(sources={**alive().sources, **alive("second", alive=False).sources})
    assert instance_answer(alert().instance, node(), START, known) is Answer.CLEAR
    other = alert(source="second").instance
    assert instance_answer(other, node(), START, known) is Answer.UNKNOWN
    assert instance_answer(alert().instance, node(alerts=(alert(),)), START) is Answer.HOLDS
    assert absence_proven("main", known)
    assert not absence_proven("mai", known)


def test_an_alert_waits_out_its_time_by_our_clock_whatever_startsat_says() -> None:
    facts = node(alerts=(alert(starts_at=0.0),))
    assert match(FELL_FOR_1M, facts, START + 59).answer is Answer.PENDING
    assert match(FELL_FOR_1M, facts, START + 59).next_look == START + 60
    assert match(FELL_FOR_1M, facts, START + 60).answer is Answer.HOLDS


def test_a_replaced_scraper_is_the_same_fault_and_does_not_begin_anew() -> None:
    """kubernetes-mixin 843: a new pod of kube-state-metrics changes ``instance``."""
    old = alert(instance="10.0.0.1:8080", pod="ksm-a")
    new = alert(since=START + 50, instance="10.0.0.2:8080", pod="ksm-b")
    assert old.instance == new.instance
    assert old.instance != alert(gpu="1").instance
    found = match(FELL_FOR_1M, node(alerts=(new, old)), START + 60, alive())
    assert found.holds
    assert found.instances == (old.instance,)


def test_only_what_lasted_is_named() -> None:
    young = alert(since=START + 50, gpu="1")
    found = match(FELL_FOR_1M, node(alerts=(alert(), young)), START + 60, alive())
    assert found.instances == (alert().instance,)
    assert found.next_look == START + 110


@pytest.mark.parametrize(
    ("label", "severity"),
    [
        ("critical", Severity.FATAL),
        ("page", Severity.FATAL),
        ("warning", Severity.WARNING),
        ("info", Severity.INFO),
        ("whatever", Severity.WARNING),
    ],
)
def test_severity_is_the_alerts_unless_the_policy_says(label: str, severity: Severity) -> None:
    facts = node(alerts=(alert(severity=label),))
    assert match(FELL, facts, START, alive()).severity is severity
    said = policy(when=[{"alert": {"name": "GpuFell", "severity": "info"}}])
    assert match(said, facts, START, alive()).severity is Severity.INFO


def test_a_silenced_alert_is_there_and_is_said_to_be_silenced() -> None:
    silenced = replace(alert(), suppressed=True)
    found = match(FELL, node(alerts=(silenced,)), START, alive())
    assert found.holds
    assert found.silenced == ("alert GpuFell is silenced or inhibited in main",)
    either = policy(when=[{"xid": {"codes": [79]}}, {"alert": {"name": "GpuFell"}}])
    assert match(either, node(alerts=(silenced,)), START, alive()).silenced


def test_an_alert_of_a_failing_source_still_holds_and_is_doubted() -> None:
    found = match(FELL, node(alerts=(alert(),)), START, FAILING)
    assert found.holds
    assert not found.fresh
    assert found.doubt == "alertmanager/main: refused"


# -- queries -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fact", "now", "answer"),
    [
        (None, START, Answer.UNKNOWN),
        (query_fact(holds=True), START, Answer.HOLDS),
        (query_fact(holds=True), START + 1000, Answer.HOLDS),
        (query_fact(holds=False), START, Answer.CLEAR),
        (query_fact(holds=False), START + 1000, Answer.UNKNOWN),
    ],
    ids=["never-asked", "named", "named-and-stale", "said-well", "said-well-and-stale"],
)
def test_query(fact: QueryFact | None, now: float, answer: Answer) -> None:
    facts = node(queries={} if fact is None else {KEY: fact})
    assert match(QUERY, facts, now).answer is answer
    assert instance_answer(f"query:{KEY}", facts, now) is answer


def test_a_query_waits_out_its_time_and_says_its_value() -> None:
    asked = {**ASKED, "for": "1m"}
    waits = policy(when=[{"query": asked}])
    facts = node(queries={KEY: query_fact(holds=True, value=79.0)})
    assert match(waits, facts, START + 59).next_look == START + 60
    found = match(waits, facts, START + 60)
    assert found.reasons == (f"query {PROMQL} is 79",)
    assert found.instances == (f"query:{KEY}",)


def test_a_query_that_is_not_answered_any_more_is_doubted() -> None:
    facts = node(queries={KEY: query_fact(holds=True, source="main")})
    assert match(QUERY, facts, START).doubt == ""
    assert "not been answered" in match(QUERY, facts, START + 1000).doubt
    failing = ClusterFacts(sources={"prometheus/main": SourceFact(ok=False, since=0, why="503")})
    assert match(QUERY, facts, START, failing).doubt == "prometheus/main: 503"


def test_what_asks_the_same_has_the_same_key_however_long_it_waits() -> None:
    def key(**more: Any) -> str:
        return QueryClause.model_validate(ASKED | more).key

    assert key() == key(**{"for": "5m", "severity": "fatal"})
    others = [
        key(promql="up == 0"),
        key(nodeFrom=["node"]),
        key(interval="1m"),
        key(clearedBy="up"),
        key(source="main"),
    ]
    assert len({key(), *others}) == 6


def test_alerts_are_compared_by_what_they_say() -> None:
    fact = AlertFact(source="a", name="b", since=0, seen=0, starts_at=0)
    assert fact.instance.startswith("alert:a/b:")
