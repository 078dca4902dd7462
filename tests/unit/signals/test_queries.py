"""Answers of Prometheus: what is a vector, what is not, and what follows for nodes."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.decide.facts import QueryFact
from remediator.policy.when import QueryClause
from remediator.signals.queries import (
    Answered,
    ClockError,
    QueryBook,
    QueryUnreadableError,
    Sample,
    read_vector,
)
from remediator.signals.resolve import NodeIndex, PodKey, PodPlace, Reason
from tests.unit.signals.test_resolve import node


NOW = 1_780_000_000.0


def series(value: str = "79", at: float = NOW, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [at, value]}


def read(result: object) -> tuple[Sample, ...]:
    return read_vector(result, now=NOW, skew=60.0)


def test_a_vector_is_read() -> None:
    assert read([series(Hostname="n1")]) == (Sample({"Hostname": "n1"}, 79.0),)


def test_no_data_is_an_empty_vector() -> None:
    assert read([]) == ()


def test_series_without_a_number_say_nothing_and_are_counted(index: NodeIndex) -> None:
    histogram = {"metric": {"node": "n1"}, "histogram": [NOW, {"count": "1"}]}
    silent = read([series("NaN", node="n1"), histogram])
    made = book()
    made.take(Answered(silent, silent, NOW), index, {})
    assert not made.facts
    assert made.result_at(NOW) is False, "no result, for an unless"
    assert [one.reason for one in made.refused] == [Reason.NO_NUMBER] * 4
    assert [one.why.startswith("in clearedBy: ") for one in made.refused] == [False] * 2 + [
        True
    ] * 2
    assert read([series("+Inf", node="n1")])[0].value == float("inf")


@pytest.mark.parametrize(
    ("result", "said"),
    [
        pytest.param([NOW, "1"], "write a query that gives a vector", id="scalar"),
        pytest.param([NOW, "text"], "write a query that gives a vector", id="string"),
        pytest.param([{"metric": {}, "values": [[NOW, "1"]]}], "instant query", id="matrix"),
        pytest.param({"a": 1}, "no result", id="mapping"),
        pytest.param(None, "no result", id="nothing"),
        pytest.param(["x", "y", "z"], "no result", id="texts"),
        pytest.param([{"metric": {}, "value": []}], "no result", id="no point"),
        pytest.param([{"metric": {}, "value": [NOW, "x"]}], "no result", id="no number"),
        pytest.param([{"metric": [], "value": [NOW, "1"]}], "no result", id="no labels"),
        pytest.param([{}], "no result", id="empty"),
        pytest.param([series()] * 50_001, "narrow the query", id="too many"),
    ],
)
def test_what_is_no_vector_is_refused_with_a_way_out(result: object, said: str) -> None:
    with pytest.raises(QueryUnreadableError, match=said):
        read(result)


@pytest.mark.parametrize("at", [NOW - 61, NOW + 61, float("nan"), float("inf")])
def test_a_lying_clock_is_not_believed(at: float) -> None:
    with pytest.raises(ClockError, match="check the time"):
        read([series(at=at)])


def book(**changes: object) -> QueryBook:
    clause = QueryClause.model_validate({"promql": "x", "interval": "30s", **changes})
    return QueryBook(clause, source="main", lasts=100.0)


@pytest.fixture
def index() -> NodeIndex:
    made = NodeIndex()
    for name in ("n1", "n2"):
        made.on_event(None, node(name))
    return made


def ksm(node: str, instance: str = "10.244.0.9:8080", **more: str) -> Sample:
    return Sample({"job": "kube-state-metrics", "instance": instance, "node": node, **more}, 1.0)


OF_KSM = PodKey(ip="10.244.0.9")


def test_the_node_of_kube_state_metrics_itself_is_never_meant(index: NodeIndex) -> None:
    """https://github.com/kubernetes/kube-state-metrics/issues/1927."""
    made, pods = book(), {OF_KSM: PodPlace("n1")}
    one = Answered((ksm("n1"),), None, 10.0)
    made.take(one, index, {})
    assert not made.facts
    assert not made.refused
    assert made.wanted == {OF_KSM}, "first where it runs"
    made.take(one, index, pods)
    assert [refused.reason for refused in made.refused] == [Reason.SCRAPER]
    assert not made.facts
    made.take(Answered((ksm("n2"),), None, 20.0), index, pods)
    assert made.facts.keys() == {"n2"}, "it runs elsewhere, so it keeps its labels"
    made.take(Answered((ksm("n1"), ksm("n2")), None, 30.0), index, {})
    assert made.facts.keys() == {"n1", "n2"}, "it speaks of several nodes"
    assert made.wanted == {OF_KSM}, "the place grew old"
    made.take(Answered((ksm("n1", exported_node="n2"),), None, 40.0), index, {})
    assert made.facts.keys() == {"n2"}
    made.take(Answered((Sample({"node": "n1"}, 1.0),), None, 50.0), index, pods)
    assert made.facts.keys() == {"n1"}
    assert not made.wanted


def test_a_series_of_cleared_by_that_names_no_node_is_refused_too(index: NodeIndex) -> None:
    made = book()
    made.take(Answered((), read([series(node="elsewhere"), series(node="n1")]), NOW), index, {})
    assert [one.why for one in made.refused] == ["in clearedBy: node=elsewhere names no node"]
    assert not made.facts["n1"].holds


def test_two_labels_that_name_different_nodes_are_refused(index: NodeIndex) -> None:
    made = book()
    made.take(Answered((Sample({"node": "n1", "Hostname": "n2"}, 1.0),), None, 1.0), index, {})
    assert [refused.reason for refused in made.refused] == [Reason.CONFLICT]


def answered(at: float, *nodes: str, cleared: tuple[str, ...] | None = None) -> Answered:
    def samples(names: tuple[str, ...]) -> tuple[Sample, ...]:
        return tuple(Sample({"node": name}, 1.0) for name in names)

    return Answered(samples(nodes), None if cleared is None else samples(cleared), at)


def test_a_node_in_the_result_holds_since_the_first_answer(index: NodeIndex) -> None:
    made = book()
    made.take(answered(10.0, "n1"), index, {})
    made.take(answered(40.0, "n1"), index, {})
    assert made.facts == {
        "n1": QueryFact(
            holds=True, since=10.0, seen=40.0, fresh_until=140.0, value=1.0, source="main"
        )
    }


def test_to_be_absent_says_nothing(index: NodeIndex) -> None:
    made = book()
    made.take(answered(10.0, "n1"), index, {})
    assert made.take(answered(40.0), index, {}) == {"n1"}
    assert made.facts == {}


def test_well_is_who_is_in_the_result_of_cleared_by(index: NodeIndex) -> None:
    made = book(clearedBy="y")
    made.take(answered(10.0, "n1", cleared=("n1", "n2")), index, {})
    assert made.facts["n1"].holds, "a node in both is not well"
    assert not made.facts["n2"].holds


def test_a_silence_of_the_server_begins_the_time_anew(index: NodeIndex) -> None:
    made = book()
    made.take(answered(10.0, "n1"), index, {})
    made.take(answered(500.0, "n1"), index, {})
    assert made.facts["n1"].since == 500.0


def test_an_old_result_is_not_known_any_more(index: NodeIndex) -> None:
    made = book()
    assert made.result_at(0.0) is None
    made.take(answered(10.0), index, {})
    assert made.result_at(20.0) is False
    assert made.result_at(110.0) is None


def test_ten_thousand_series_are_read_and_placed() -> None:
    index = NodeIndex()
    for number in range(10_000):
        index.on_event(None, node(f"n{number}"))
    made = book()
    result = [series(node=f"n{number}") for number in range(10_000)]
    made.take(Answered(read(result), None, 0.0), index, {})
    assert len(made.facts) == 10_000


def test_series_about_no_node_are_said(index: NodeIndex) -> None:
    made = book()
    made.take(answered(10.0, "n1", "elsewhere"), index, {})
    assert set(made.facts) == {"n1"}
    assert [one.why for one in made.refused] == ["node=elsewhere names no node"]
