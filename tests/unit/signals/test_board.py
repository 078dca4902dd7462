"""Alerts and queries become facts of nodes, by what changed; `unless` and sources concern all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from remediator.decide.facts import AlertFact
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from remediator.signals.alertbook import BookFullError
from remediator.signals.alerts import Alert, Report
from remediator.signals.board import REFUSED_SECONDS, REFUSED_SOONEST, Board
from remediator.signals.fleet import Fleet
from remediator.signals.queries import Answered, Sample
from remediator.signals.resolve import NodeIndex, PodKey, PodPlace
from tests.unit.held import held
from tests.unit.signals.test_resolve import node


PEER = "http://one"
CPU = {"cpu-only": "true"}


class Observer:
    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.counts: dict[tuple[str, str], int] = {}

    def unresolved(self, reason: str) -> None:
        self.reasons[reason] += 1

    def refused(self, counts: Mapping[tuple[str, str], int]) -> None:
        self.counts = {key: count for key, count in counts.items() if count}

    def sources(self, ok: Mapping[str, bool]) -> None:
        pass


class SetClock:
    time = 1000.0

    def now(self) -> float:
        return self.time


def policy(**spec: Any) -> RemediationPolicy:
    document = {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": "p"},
        "spec": {
            "when": [{"alert": {"name": "Fault"}}],
            "steps": [{"cordon": {}}],
            **spec,
        },
    }
    return RemediationPolicy.model_validate(document)


class Desk:
    """A board with its surroundings, and what came of it."""

    def __init__(self) -> None:
        document = {
            "alertmanagers": [{"name": "main", "urls": [PEER], "goneAfter": "1s"}],
            "prometheus": [{"name": "prom", "url": "http://p"}],
            "gpuNodes": {"matchExpressions": [{"key": "cpu-only", "operator": "DoesNotExist"}]},
        }
        cluster = ClusterSpec.model_validate(document)
        self.clock, self.index, self.observer = SetClock(), NodeIndex(), Observer()
        self.fleet = Fleet(cluster=cluster, clock=self.clock)
        self.changed: list[str] = []
        self.surroundings = 0
        self.fleet.on_change = lambda facts: self.changed.append(facts.name)
        self.fleet.on_surroundings = self._count
        self.board = Board(
            cluster=cluster,
            fleet=self.fleet,
            index=self.index,
            clock=self.clock,
            observer=self.observer,
        )
        self.board.use([policy()])
        for name in ("n1", "n2"):
            self.node(None, node(name))
        self.poll()
        self.settle()

    def _count(self) -> None:
        self.surroundings += 1

    def node(self, old: Any, new: Any) -> None:
        self.index.on_event(old, new)
        self.fleet.on_event(old, new)

    def poll(self, *alerts: Alert) -> None:
        self.clock.time += 10
        self.board.books["main"].polled(PEER, alerts, self.clock.time)
        self.board.publish()

    def settle(self) -> None:
        self.changed.clear()
        self.surroundings = 0

    def alerts(self, name: str) -> tuple[AlertFact, ...]:
        facts = self.fleet.get(name)
        assert facts is not None
        return facts.alerts


def alert(name: str = "Fault", suppressed: bool = False, **labels: str) -> Alert:  # noqa: FBT001, FBT002
    identity = tuple(sorted({"alertname": name, **labels}.items()))
    return Alert(identity=identity, starts_at=2e9, suppressed=suppressed)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_an_alert_becomes_a_fact_of_its_node_alone(desk: Desk) -> None:
    desk.poll(alert(node="n1"))
    (fact,) = desk.alerts("n1")
    assert (fact.source, fact.name, fact.since) == ("main", "Fault", desk.clock.time)
    assert desk.changed == ["n1"]
    assert desk.alerts("n2") == ()


def test_a_poll_with_nothing_new_is_no_change(desk: Desk) -> None:
    desk.poll(alert(node="n1"))
    desk.settle()
    desk.poll(alert(node="n1"))
    assert desk.changed == []
    assert desk.surroundings == 0


def test_a_silence_is_a_change(desk: Desk) -> None:
    desk.poll(alert(node="n1"))
    desk.settle()
    desk.poll(alert(node="n1", suppressed=True))
    assert desk.alerts("n1")[0].suppressed
    assert desk.changed == ["n1"]


def test_gone_is_a_change(desk: Desk) -> None:
    desk.poll(alert(node="n1"))
    desk.poll()
    desk.settle()
    desk.poll()
    assert desk.alerts("n1") == ()
    assert desk.changed == ["n1"]


def test_a_restarted_scraper_makes_another_alert_of_the_same_fault(desk: Desk) -> None:
    """``instance`` changes, and so the alert; what is waited for does not begin anew."""
    desk.poll(alert(node="n1", instance="10.1.0.1:8080"))
    first = desk.clock.time
    both = (alert(node="n1", instance="10.1.0.1:8080"), alert(node="n1", instance="10.1.0.2:8080"))
    desk.poll(*both)
    for _ in range(3):
        desk.poll(both[1])
    (fact,) = desk.alerts("n1")
    assert fact.since == first


def test_an_alert_is_placed_when_its_node_appears(desk: Desk) -> None:
    desk.poll(alert(node="n3"))
    assert desk.observer.reasons == {"unknown_node": 1}
    desk.poll(alert(node="n3"))
    assert desk.observer.reasons == {"unknown_node": 1}, "counted once"
    assert desk.board.notes() == ("alert Fault of main is about no node: node=n3 names no node",)
    desk.node(None, node("n3"))
    desk.board.publish()
    assert len(desk.alerts("n3")) == 1


def test_people_are_told_of_a_refused_alert_that_a_policy_asks_for(desk: Desk) -> None:
    told: list[tuple[str, str]] = []
    desk.board.on_refused = lambda news: told.append((news.refused.source, news.refused.why))
    desk.poll(alert(node="n3"), alert("Other", node="n3"))
    desk.poll(alert(node="n3"), alert("Other", node="n3"))
    assert told == [("alertmanager/main", "node=n3 names no node")]


def test_refusals_that_no_policy_asks_about_are_counted_and_not_shown(desk: Desk) -> None:
    desk.poll(alert("KubePodCrashLooping", pod="x"))
    assert desk.observer.reasons == {"no_label": 1}
    assert not any("Crash" in note for note in desk.board.notes())
    assert desk.observer.counts == {("alertmanager/main", "no_label"): 1}


def test_alerts_that_are_refused_alike_are_one_line(desk: Desk) -> None:
    desk.poll(*(alert(node=f"gone-{number}") for number in range(7)))
    (note,) = desk.board.notes()
    assert note.startswith("alert Fault of main is about no node: node=gone-")
    assert note.endswith("names no node, and 6 more like it")
    assert desk.observer.counts == {("alertmanager/main", "unknown_node"): 7}
    desk.poll()
    desk.poll()
    assert (desk.board.notes(), desk.observer.counts) == ((), {})


def test_of_many_kinds_of_refused_alerts_the_rest_is_counted(desk: Desk) -> None:
    desk.board.use([policy(when=[{"alert": {"name": f"Fault{one}"}} for one in range(7)])])
    desk.poll(*(alert(f"Fault{one}", node="n3") for one in range(7)))
    notes = desk.board.notes()
    assert len(notes) == 6
    assert notes[-1] == "2 more kinds of alerts that policies name are refused"


def test_an_alert_of_a_node_that_is_none_of_gpu_nodes_is_said_with_the_setting(
    desk: Desk,
) -> None:
    told: list[tuple[str, tuple[str, ...]]] = []
    desk.board.on_refused = lambda news: told.append((news.refused.reason, news.nodes))
    desk.node(None, node("cpu-1", labels=CPU))
    desk.poll(alert(node="cpu-1"), alert("Other", node="cpu-1"), alert(node="n1"))
    (note,) = desk.board.notes()
    assert note == (
        "alert Fault of main is about cpu-1, which is no GPU node by `gpuNodes` in"
        " RemediatorConfig: nothing is done there; if they are, correct that selector"
    )
    assert desk.observer.counts == {("alertmanager/main", "outside_gpu_nodes"): 2}
    assert told == [("outside_gpu_nodes", ("cpu-1",))]
    assert desk.alerts("cpu-1"), "it stays with its node: a session there goes on by it"
    desk.node(node("cpu-1", labels=CPU), replace(node("cpu-1"), resource_version="2"))
    desk.poll(alert(node="cpu-1"), alert(node="n1"))
    desk.poll(alert(node="cpu-1"), alert(node="n1"))
    assert (desk.board.notes(), desk.observer.counts) == ((), {})


def test_an_alert_of_a_further_node_outside_is_news(desk: Desk) -> None:
    told: list[tuple[str, ...]] = []
    desk.board.on_refused = lambda news: told.append(news.nodes)
    for name in ("cpu-1", "cpu-2"):
        desk.node(None, node(name, labels=CPU))
    desk.poll(alert(node="cpu-1"))
    desk.poll(alert(node="cpu-1"))
    desk.poll(alert(node="cpu-1"), alert(node="cpu-2"))
    assert told == [("cpu-1",), ("cpu-2",)]
    assert desk.board.notes()[0].startswith("alert Fault of main is about cpu-1, cpu-2, which are")


def test_refused_series_are_counted_by_source_and_reason_and_shown(desk: Desk) -> None:
    told: list[tuple[str, str]] = []
    desk.board.on_refused = lambda news: told.append((news.refused.source, news.refused.reason))
    desk.board.use([policy(when=[{"query": {"promql": "x"}}])])
    desk.node(None, node("cpu-1", labels=CPU))
    (key,) = desk.board.queries
    found = [{"node": "n1"}, {"node": "gone"}, {"node": "cpu-1"}, {"gpu": "0"}, {"gpu": "1"}]
    samples = (*(Sample(labels, 1.0) for labels in found), Sample({"node": "n2"}, math.nan))
    for _ in range(2):
        desk.board.answered(key, Answered(samples, None, desk.clock.time))
        desk.board.publish()
    assert desk.observer.counts == {
        ("prometheus/prom", "unknown_node"): 1,
        ("prometheus/prom", "outside_gpu_nodes"): 1,
        ("prometheus/prom", "no_label"): 2,
        ("prometheus/prom", "no_number"): 1,
    }
    assert sorted(told) == sorted(desk.observer.counts), "once each"
    notes = desk.board.notes()
    assert "query x: 2 series are about no node, such as: no label names a node" in notes
    assert "query x: 1 series have no number (NaN, or a histogram: it says nothing)" in notes
    assert any(note.startswith("query x is about cpu-1, which is no GPU node") for note in notes)
    desk.board.misread(key, why="it is a scalar")
    desk.clock.time += REFUSED_SOONEST
    desk.board.publish()
    assert desk.observer.counts["prometheus/prom", "unreadable"] == 1
    assert "query x: it is a scalar" in desk.board.notes()


def test_a_query_of_unless_is_not_asked_about_nodes_and_refuses_none(desk: Desk) -> None:
    desk.board.use([policy(unless=[{"query": {"promql": "x"}}])])
    (key,) = desk.board.queries
    desk.board.answered(key, Answered((Sample({}, 1.0),), None, desk.clock.time))
    desk.board.publish()
    assert not any(note.startswith("query") for note in desk.board.notes())
    assert desk.observer.counts == {}


def test_alerts_that_a_call_left_out_are_counted_until_a_poll_has_them(desk: Desk) -> None:
    desk.board.books["main"].told(Report(firing=(), resolved=(), left_out=7), 1.0)
    desk.clock.time += REFUSED_SECONDS
    desk.board.publish()
    assert desk.observer.counts == {("alertmanager/main", "left_out"): 7}
    assert not any("max_alerts" in note for note in desk.board.notes())
    desk.poll()
    desk.clock.time += REFUSED_SECONDS
    desk.board.publish()
    assert desk.observer.counts == {}


def test_where_nobody_polls_the_status_says_what_a_call_left_out(desk: Desk) -> None:
    book = desk.board.books["main"]
    book.spec = book.spec.model_copy(update={"webhook_only": True})
    book.told(Report(firing=(), resolved=(), left_out=7), 1.0)
    (note,) = (note for note in desk.board.notes() if "max_alerts" in note)
    assert note.startswith("Alertmanager main left 7 alerts out")
    book.told(Report(firing=(), resolved=()), 2.0)
    assert not any("max_alerts" in note for note in desk.board.notes())


def test_alerts_that_there_was_no_room_for_are_counted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remediator.signals.alertbook.MAX_ALERTS", 3)
    many = tuple(alert(f"Fault{one}", node="n1") for one in range(4))
    with pytest.raises(BookFullError):
        desk.board.books["main"].told(Report(firing=many, resolved=()), 1.0)
    desk.clock.time += REFUSED_SECONDS
    desk.board.publish()
    assert desk.observer.counts == {("alertmanager/main", "too_many"): 4}
    desk.poll()
    desk.clock.time += REFUSED_SECONDS
    desk.board.publish()
    assert desk.observer.counts == {}


def test_an_alert_stays_with_its_node_when_another_gets_the_same_address(desk: Desk) -> None:
    desk.node(None, node("n3", ip="10.0.0.3"))
    desk.poll(alert(instance="10.0.0.3:9100"))
    desk.node(None, node("n4", ip="10.0.0.3"))
    desk.poll(alert(instance="10.0.0.3:9100"))
    assert len(desk.alerts("n3")) == 1, "its absence would look like recovery"
    assert desk.alerts("n4") == ()


def test_a_node_made_anew_begins_without_the_alerts_of_the_one_before(desk: Desk) -> None:
    early = Alert(identity=(("alertname", "Fault"), ("node", "n1")), starts_at=1.7e9)
    desk.node(node("n1"), node("n1", created="2020-01-01T00:00:00Z"))
    desk.poll(early)
    assert len(desk.alerts("n1")) == 1
    desk.node(node("n1", created="2020-01-01T00:00:00Z"), node("n1"))
    desk.poll(early)
    assert desk.alerts("n1") == ()
    assert desk.observer.reasons == {"older_than_node": 1}


def test_an_older_alert_is_placed_once_it_is_sent_again(desk: Desk) -> None:
    early = Alert(identity=(("alertname", "Fault"), ("node", "n1")), starts_at=1.7e9)
    desk.node(node("n1"), node("n1", created="2026-06-01T12:00:00Z"))
    desk.poll(early)
    assert desk.alerts("n1") == ()
    desk.poll(replace(early, updated_at=1780315200.0 + 3600))
    assert [one.name for one in desk.alerts("n1")] == ["Fault"]
    assert not desk.observer.counts
    desk.board.books["main"].told(Report(firing=(early,), resolved=()), 1.0)
    desk.board.publish()
    assert desk.alerts("n1"), "it was placed, and stays"


def test_the_place_of_a_pod_is_asked_for_and_used(desk: Desk) -> None:
    one = alert(job="dcgm-exporter", instance="10.244.0.7:9400")
    desk.poll(one)
    key = PodKey(ip="10.244.0.7")
    assert desk.board.wanted_pods() == {key}
    desk.board.pods[key] = PodPlace("n2")
    desk.board.publish()
    assert len(desk.alerts("n2")) == 1
    assert desk.board.wanted_pods() == set()


def test_all_nodes_are_looked_at_when_an_unless_changes_or_a_source_fails(desk: Desk) -> None:
    desk.board.use([policy(unless=[{"alert": {"name": "Maintenance"}}])])
    desk.poll(alert("Other"))
    assert desk.surroundings == 0
    desk.poll(alert("Maintenance"), alert("Other"))
    assert desk.surroundings == 1
    assert {one.name for one in desk.fleet.cluster_facts.alerts} == {"Maintenance", "Other"}
    desk.board.books["main"].failed(PEER, "no answer")
    desk.board.publish()
    assert desk.surroundings == 2
    assert not desk.fleet.cluster_facts.sources["alertmanager/main"].ok


def test_a_webhook_call_is_a_fact_with_the_next_publication(desk: Desk) -> None:
    desk.board.books["main"].told(Report(firing=(alert(node="n2"),), resolved=()), 1.0)
    desk.board.publish()
    assert len(desk.alerts("n2")) == 1


def test_queries_come_and_go_with_the_policies(desk: Desk) -> None:
    asks = policy(when=[{"query": {"promql": "x", "for": "1m"}}])
    desk.board.use([asks])
    (key,) = desk.board.queries
    named = (Sample({"node": "n1"}, 79.0),)
    desk.board.answered(key, Answered(named, None, desk.clock.time))
    desk.board.publish()
    facts = desk.fleet.get("n1")
    assert facts is not None
    assert facts.queries[key].holds
    desk.board.use([policy()])
    desk.board.answered(key, Answered(named, None, desk.clock.time))  # it was under way
    desk.board.publish()
    facts = desk.fleet.get("n1")
    assert facts is not None
    assert facts.queries == {}


def test_the_first_good_answer_of_each_source_is_remembered(desk: Desk) -> None:
    desk.board.use([policy(when=[{"query": {"promql": "x"}}])])
    desk.board.publish()
    (key,) = desk.board.queries
    first = desk.clock.time
    assert desk.fleet.cluster_facts.heard == {"alertmanager/main": first}
    for _ in range(2):
        desk.board.answered(key, Answered((Sample({"node": "n1"}, 1.0),), None, desk.clock.time))
        desk.poll(alert(node="n2"))
    heard = {"alertmanager/main": first, f"query:{key}": first}
    assert desk.fleet.cluster_facts.heard == heard
    facts = desk.fleet.get("n1")
    assert facts is not None
    assert facts.queries[key].since == first
    assert [one.since for one in desk.alerts("n2")] == [first + 10]


def test_a_query_of_unless_needs_no_node(desk: Desk) -> None:
    desk.board.use([policy(unless=[{"query": {"promql": "maintenance == 1"}}])])
    (key,) = desk.board.queries
    desk.board.publish()
    assert key not in desk.fleet.cluster_facts.queries, "not known yet"
    desk.board.answered(key, Answered((Sample({}, 1.0),), None, desk.clock.time))
    desk.board.publish()
    assert desk.fleet.cluster_facts.queries == {key: True}
    desk.clock.time += 3600
    desk.board.publish()
    assert desk.fleet.cluster_facts.queries == {}


def test_a_query_without_a_server_is_said(desk: Desk) -> None:
    desk.board.use([policy(when=[{"query": {"promql": "x", "source": "other"}}])])
    assert "query x: no Prometheus other is configured" in desk.board.notes()


def test_nodes_that_come_and_go_leave_nothing_behind(desk: Desk) -> None:
    """An autoscaler gives each a name and an address of its own."""
    query = {"promql": "x", "for": "0s"}
    desk.board.use([policy(), policy(when=[{"query": query}])])
    (key,) = desk.board.queries

    def pass_through(numbers: range) -> int:
        for number in numbers:
            name = f"passes-{number}.example.com"
            there = node(name, ip=f"10.1.{number // 250}.{number % 250}", hostname=f"h{number}")
            desk.node(None, there)
            named = Sample({"node": name}, 1.0)
            desk.board.answered(key, Answered((named,), (), desk.clock.time))
            desk.poll(alert(node=name), alert(name="Other", instance=f"h{number}:9400"))
            assert len(desk.alerts(name)) == 2
            desk.node(there, None)
            desk.poll(alert(node=name))  # it fires on for a while
            desk.board.answered(key, Answered((), (), desk.clock.time))
            for _ in range(3):
                desk.poll()
        desk.changed.clear()
        return held(desk)

    after_few = pass_through(range(10))
    assert pass_through(range(10, 40)) <= after_few
