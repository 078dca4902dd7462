"""The API server refuses, is slow, or breaks off: each write is done once, in the end."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from remediator.record.control import CONTROL_CONFIGMAP, RESET_PREFIX, BreakerReset, write_reset
from testbed.faultproxy import Action, Answer, Drop, FaultProxy, Hang, Inject
from tests.integration.controller.test_control import control


if TYPE_CHECKING:
    from testbed.cluster import Cluster
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster

NODES = r"^/api/v1/nodes/"
CONTROL = r"/configmaps/gpu-remediator-control$"


@pytest.mark.parametrize(
    "action",
    [
        Answer(409, reason="Conflict"),
        Answer(429, reason="TooManyRequests", retry_after=1),
        Answer(500, reason="InternalError"),
        Answer(503, reason="ServiceUnavailable"),
        Drop(),
        Drop(forwarded=True),
        Hang(),
    ],
    ids=["409", "429", "500", "503", "dropped", "answer-lost", "hung"],
)
def test_one_cordon_in_spite_of(
    site: Site, run: Callable[..., Replica], proxy: FaultProxy, action: Action
) -> None:
    proxy.add(action, method="PATCH", path=NODES, times=1)
    node = site.node()
    run(server=proxy.url)
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon")
    site.says(node)
    site.wait(lambda: not site.cordoned(node), "uncordon")

    def sent() -> list[bool | None]:
        found = (entry["requestObject"].get("spec", {}) for entry in site.writes_to(node))
        return [spec["unschedulable"] for spec in found if spec]

    site.wait(lambda: len(sent()) > 1, "the server's record of both")  # behind its answers
    assert sent() == [True, None]
    assert len(site.history(node)["attempts"]) == 1


def test_a_refused_write_is_shown_until_people_allow_it(
    site: Site, run: Callable[..., Replica], proxy: FaultProxy
) -> None:
    proxy.add(Answer(403, reason="Forbidden"), method="PATCH", path=NODES)
    node = site.node()
    run(server=proxy.url)
    site.says(node, 79)

    def notes() -> list[str]:
        return [one for one in site.status().get("notes", ()) if node in one]

    (note,) = site.wait(notes, "a note in the status")
    assert 'resources: ["nodes"], verbs: ["patch"]' in note
    assert not site.cordoned(node)


def test_a_node_that_cannot_be_read_is_named(
    site: Site, run: Callable[..., Replica], proxy: FaultProxy
) -> None:
    node = site.node()
    odd = {"metadata": {"name": node, "resourceVersion": "1"}, "status": [1]}
    line = json.dumps({"type": "MODIFIED", "object": odd}).encode() + b"\n"
    proxy.add(Inject(line), path=r"/nodes\?.*watch=1", times=1)
    replica = run(server=proxy.url)

    def notes() -> list[str]:
        return [one for one in site.status().get("notes", ()) if node in one]

    (note,) = site.wait(notes, "a note in the status")
    assert "cannot be read, the one before counts" in note
    assert site.status()["program"] == version("gpu-remediator")
    assert gauge(replica, "remediation_unreadable_nodes") == 1

    site.says(node)
    site.wait(lambda: not notes(), "the end of the note")


def test_nodes_that_are_not_seen_any_more_are_said(
    site: Site, run: Callable[..., Replica], proxy: FaultProxy
) -> None:
    replica = run(server=proxy.url)
    site.wait(lambda: "leader" in site.status(), "a status")
    assert site.status().get("synced", True)

    proxy.add(Answer(403, reason="Forbidden"), path=r"/nodes\?")
    proxy.break_connections()
    site.wait(lambda: not site.status().get("synced", True), "the status to say so")
    assert [one for one in site.status()["notes"] if "the nodes are not seen now" in one]
    assert gauge(replica, "watch_failures_total", what="nodes") >= 1


def gauge(replica: Replica, name: str, **labels: str) -> float:
    """A sample of the replica's metrics."""
    url = f"http://127.0.0.1:{replica.port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return next(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    )


def test_a_doubtful_write_keeps_its_place_in_the_budget(
    site: Site, run: Callable[..., Replica], proxy: FaultProxy
) -> None:
    site.config(budgets=[{"maxUnavailable": 1, "per": "cluster"}])
    first, second = site.node(), site.node()
    proxy.add(Drop(forwarded=True), method="PATCH", path=NODES + first, times=1)
    proxy.add(Answer(500), method="GET", path=NODES + first, times=2)  # and nobody can look
    proxy.add(Hang(), method="GET", path=r"/nodes\?.*watch", times=None)
    site.says(first, 79)
    site.says(second, 79)
    run(server=proxy.url)
    site.wait(lambda: site.cordoned(first) or site.cordoned(second), "one cordon")
    proxy.clear()
    proxy.break_connections()

    def held() -> list[str]:
        return [
            one["holds"][0]["guard"] for one in site.status().get("nodes", []) if one.get("holds")
        ]

    site.wait(lambda: held() == ["budget"], "the other one held by the budget")
    assert [site.cordoned(first), site.cordoned(second)].count(True) == 1


def test_a_restarted_api_server(own_cluster: Cluster, site_on: Callable[[Cluster], Site]) -> None:
    site = site_on(own_cluster)
    node, other = site.node(), site.node()
    replica = site.replica().start()
    try:
        site.says(node, 79)
        site.wait(lambda: site.cordoned(node), "cordon")
        own_cluster.plane.stop_apiserver(grace=0)
        own_cluster.plane.start_apiserver()
        site.says(node)
        site.says(other, 79)
        site.wait(lambda: site.cordoned(other), "cordon after the restart")
        site.wait(lambda: not site.cordoned(node), "uncordon after the restart")
    finally:
        replica.stop()
    assert replica.error is None
    assert len(site.writes_to(other)) >= 1


def test_an_answered_reset_does_not_stay_to_close_a_later_breaker(
    site: Site, run: Callable[..., Replica], proxy: FaultProxy
) -> None:
    refusals = proxy.add(Answer(500), method="PATCH", path=CONTROL, times=2)
    site.node()
    run(server=proxy.url)
    site.wait(lambda: site.status().get("gpuNodes") == 1, "first status")
    key = RESET_PREFIX + "xid-79"
    with capture_logs() as logs:
        control(site, write_reset("xid-79", BreakerReset(by="alice", at="t1", keep=True)))
        site.wait(
            lambda: key not in (site.cluster.configmap(CONTROL_CONFIGMAP) or {}), "its removal"
        )
        site.wait(lambda: [one for one in logs if one.get("result") == "done"], "the audit line")
    assert refusals.hits == 2
    lines = [one for one in logs if one.get("action") == "reset-breaker"]
    assert [one["result"] for one in lines] == ["unknown", "unknown", "done"]
    assert "alice" in lines[-1]["before"][key]
    assert lines[-1]["after"] == {key: None}
