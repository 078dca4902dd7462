"""Two real Alertmanagers as a pair: the polls of both are the truth."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from functools import partial

import pytest

from testbed.monitoring import Pair
from testbed.repeating import repeating
from tests.integration.alerts.conftest import ALERT, main
from tests.integration.controller.conftest import Replica, Site


pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]  # the first build takes a while

REFUSED = "GPURemediationSignalRefused"
Run = Callable[..., Replica]


def test_an_alert_cordons_and_its_end_uncordons_while_a_watchdog_proves_it(
    watched: Site, pair: Pair, run: Run
) -> None:
    faulty, well = watched.node(), watched.node()
    run()
    pair.fire(alertname=ALERT, node=faulty)
    watched.wait(lambda: watched.cordoned(faulty), "cordon")

    pair.fire(alertname=ALERT, node=faulty, ends_in=0)

    alive = partial(pair.fire, alertname="Watchdog")
    with repeating(alive, seconds=0.3, name="prometheus"):
        watched.wait(lambda: not watched.cordoned(faulty), "uncordon")
    assert not watched.writes_to(well)


def test_without_a_watchdog_the_end_of_an_alert_proves_nothing(
    watched: Site, pair: Pair, run: Run
) -> None:
    faulty, *later = (watched.node() for _ in range(4))
    watched.config(alertmanagers=[main(pair, watchdog=None)])
    run()
    pair.fire(alertname=ALERT, node=faulty)
    watched.wait(lambda: watched.cordoned(faulty), "cordon")
    pair.fire(alertname=ALERT, node=faulty, ends_in=0)
    for node in later:  # a poll each: more than an end takes that is proven
        pair.fire(alertname=ALERT, node=node)
        watched.wait(partial(watched.cordoned, node), "a later answer")
    assert watched.cordoned(faulty)


def test_a_silence_on_one_peer_freezes_the_node(watched: Site, pair: Pair, run: Run) -> None:
    before, after = watched.node(), watched.node()
    silence = pair.second.silence(node=before)
    watched.wait(
        lambda: any(a["status"]["silencedBy"] for a in _fire(pair, ALERT, before)), "the silence"
    )
    run()
    pair.fire(alertname=ALERT, node=after)
    watched.wait(lambda: watched.cordoned(after), "cordon of the other")
    held = watched.wait(lambda: watched.status_of(before), "status")
    assert [hold["guard"] for hold in held["holds"]] == ["silence"]
    assert not watched.cordoned(before)

    pair.second.unsilence(silence)
    watched.wait(lambda: watched.cordoned(before), "cordon when the silence ended")


def test_a_silence_during_a_remediation_keeps_the_node_as_it_is(
    watched: Site, pair: Pair, run: Run
) -> None:
    faulty = watched.node()
    run()
    pair.fire(alertname=ALERT, node=faulty)
    watched.wait(lambda: watched.cordoned(faulty), "cordon")
    pair.first.silence(alertname=ALERT)

    def frozen() -> bool:
        known = watched.status_of(faulty)
        return known is not None and any(h["guard"] == "silence" for h in known.get("holds", ()))

    watched.wait(frozen, "hold")
    assert watched.cordoned(faulty)


def test_a_silence_freezes_the_node_for_what_its_agent_says_too(
    watched: Site, pair: Pair, run: Run
) -> None:
    faulty, other = watched.node(), watched.node()
    watched.policy()
    silence = pair.first.silence(node=faulty)
    watched.wait(
        lambda: any(a["status"]["silencedBy"] for a in _fire(pair, ALERT, faulty)), "the silence"
    )
    run()
    watched.wait(lambda: watched.status_of(faulty), "status")
    watched.says(faulty, 79)
    watched.says(other, 79)
    watched.wait(lambda: watched.cordoned(other), "cordon of the other")

    def held() -> set[tuple[str, str]]:
        return {(one["policy"], one["guard"]) for one in (watched.status_of(faulty) or {})["holds"]}

    watched.wait(lambda: held() >= {("xid-79", "silence"), ("fallen", "silence")}, "holds")
    assert not watched.cordoned(faulty)
    pair.first.unsilence(silence)
    watched.wait(lambda: watched.cordoned(faulty), "cordon when the silence ended")


def test_an_inhibited_alert_starts_nothing(watched: Site, pair: Pair, run: Run) -> None:
    rule = {
        "source_matchers": ["alertname = ClusterDown"],
        "target_matchers": [f"alertname = {ALERT}"],
    }
    pair.configure(inhibit=[rule])
    for peer in pair.both:
        peer.stop()
        peer.start()
    pair.fire(alertname="Watchdog")
    pair.fire(alertname="ClusterDown")
    faulty = watched.node()
    pair.fire(alertname=ALERT, node=faulty)
    run()
    held = watched.wait(lambda: watched.status_of(faulty), "status")
    assert [hold["guard"] for hold in held["holds"]] == ["silence"]
    assert not watched.cordoned(faulty)


def test_while_a_peer_is_down_nothing_begins_and_nothing_is_undone(
    watched: Site, pair: Pair, run: Run
) -> None:
    known, new, *later = (watched.node() for _ in range(4))
    run()
    pair.fire(alertname=ALERT, node=known)
    watched.wait(lambda: watched.cordoned(known), "cordon")
    pair.second.stop()
    watched.wait(
        lambda: any(pair.second.url in n for n in watched.status().get("notes", ())), "note"
    )

    pair.first.fire(alertname=ALERT, node=known, ends_in=0)
    pair.first.fire(alertname=ALERT, node=new)
    held = watched.wait(lambda: watched.status_of(new), "status")
    assert [hold["guard"] for hold in held["holds"]] == ["sources"]
    for node in later:
        pair.first.fire(alertname=ALERT, node=node)
        watched.wait(partial(watched.status_of, node), "a later answer")
    assert watched.cordoned(known)
    assert not watched.cordoned(new)

    pair.second.start()
    pair.fire(alertname="Watchdog")
    watched.wait(lambda: watched.cordoned(new), "cordon when the peer is back")


def test_a_restarted_controller_knows_again_what_fires(watched: Site, pair: Pair, run: Run) -> None:
    first, second = watched.node(), watched.node()
    replica = run()
    pair.fire(alertname=ALERT, node=first)
    watched.wait(lambda: watched.cordoned(first), "cordon")
    replica.stop()
    pair.fire(alertname=ALERT, node=second)
    run()
    watched.wait(lambda: watched.cordoned(second), "cordon of what came meanwhile")
    assert watched.cordoned(first)
    assert len(watched.writes_to(first)) <= 2


def test_an_alert_about_an_unknown_node_is_refused_counted_and_shown(
    watched: Site, pair: Pair, run: Run
) -> None:
    watched.node()
    outside = watched.cluster.create_node(labels={"kubernetes.io/os": "linux"})
    pair.fire(alertname=ALERT, node="no-such-node")
    pair.fire(alertname=ALERT, node=outside)
    replica = run()
    notes = watched.wait(lambda: both if len(both := notes_of(watched)) > 1 else None, "both notes")
    assert notes[0] == f"alert {ALERT} of main is about no node: node=no-such-node names no node"
    assert notes[1].startswith(f"alert {ALERT} of main is about {outside}, which is no GPU node")
    assert "`gpuNodes` in RemediatorConfig" in notes[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{replica.port}/metrics", timeout=5) as page:
        scraped = page.read().decode()
    for reason in ("unknown_node", "outside_gpu_nodes"):
        labels = f'reason="{reason}",source="alertmanager/main"'
        assert f"remediation_signals_refused{{{labels}}} 1.0" in scraped
    watched.wait(lambda: REFUSED in watched.events(outside), "the Event of the node")
    watched.wait(lambda: any("no-such-node" in text for text in own_events(watched)), "our own")
    assert len(own_events(watched)) == 1
    assert watched.writes_to(outside) == []


def own_events(site: Site) -> list[str]:
    """What Events say about no node."""
    found = site.cluster.api.get(f"/api/v1/namespaces/{site.cluster.namespace}/events")["items"]
    return [one["message"] for one in found if one["reason"] == REFUSED]


def notes_of(site: Site) -> list[str]:
    return [note for note in site.status().get("notes", ()) if ALERT in note]


def _fire(pair: Pair, name: str, node: str) -> list[dict[str, dict[str, list[str]]]]:
    pair.fire(alertname=name, node=node)
    return pair.second.alerts()
