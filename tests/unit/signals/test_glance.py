"""One look at alerts and queries. With real servers: tests/integration/alerts/test_looks.py."""

from __future__ import annotations

from typing import Any

from remediator.decide.facts import AGENTS
from remediator.kube.podplace import PodFinder
from remediator.policy.cluster import ClusterSpec
from remediator.policy.sources import Prometheus
from remediator.signals.board import Board
from remediator.signals.feeds import Feeds
from remediator.signals.fleet import Fleet
from remediator.signals.glance import Glance, Nobody, glance
from remediator.signals.prometheus import PrometheusServer, SourceFailedError
from remediator.signals.resolve import NodeIndex
from tests.unit.signals.test_board import SetClock, policy
from tests.unit.signals.test_resolve import node


class NoFinder(PodFinder):
    """Nobody asks it."""

    def __init__(self) -> None:
        pass


async def look(*, alertmanagers: list[dict[str, Any]], **spec: Any) -> Glance:
    document: dict[str, Any] = {"alertmanagers": alertmanagers}
    if any(one.get("webhookOnly") for one in alertmanagers):
        document["webhook"] = {"bearerTokenFile": "token"}
    cluster = ClusterSpec.model_validate(document)
    nodes = [node("n1")]
    return await glance(cluster, [policy(**spec)], nodes, clock=SetClock(), finder=NoFinder())


async def test_what_only_the_webhook_tells_is_unknown_to_who_looks() -> None:
    found = await look(alertmanagers=[{"name": "hook", "webhookOnly": True}])
    fact = found.sightings.around.sources["alertmanager/hook"]
    assert (fact.ok, fact.alive) == (False, False)
    (note,) = found.notes
    assert note.startswith("alertmanager/hook: webhookOnly: its alerts are told to the controller")
    assert AGENTS not in found.sightings.around.sources


async def test_what_no_policy_needs_is_not_asked() -> None:
    dead = [{"name": "main", "urls": ["http://127.0.0.1:1"]}]
    found = await look(alertmanagers=dead, when=[{"xid": {"codes": [79]}}])
    assert found.notes == ()
    assert not found.sightings.around.sources
    found = await look(
        alertmanagers=dead, when=[{"xid": {"codes": [79]}}], unless=[{"alert": {"name": "X"}}]
    )
    assert found.notes[0].startswith("alertmanager/main: http://127.0.0.1:1: ClientConnectorError")


async def test_a_server_that_fails_is_not_asked_the_other_queries() -> None:
    asked: list[str] = []

    def ask(promql: str) -> Any:
        asked.append(promql)
        raise SourceFailedError("no answer")

    spec = Prometheus(name="prom", url="http://p")
    cluster = ClusterSpec.model_validate({"prometheus": [{"name": "prom", "url": "http://p"}]})
    fleet, clock = Fleet(cluster=cluster, clock=SetClock()), SetClock()
    board = Board(cluster=cluster, fleet=fleet, index=NodeIndex(), clock=clock, observer=Nobody())
    when = [{"query": {"promql": "a"}}, {"query": {"promql": "b"}}]
    board.use([policy(when=when)])
    feeds = Feeds(
        cluster=cluster,
        board=board,
        clock=clock,
        finder=NoFinder(),
        watch_staleness=lambda: 0.0,
        servers={"prom": PrometheusServer(spec, ask=ask)},
    )
    await feeds.once()
    assert len(asked) == 1
    assert fleet.cluster_facts.sources["prometheus/prom"].why == "no answer"
