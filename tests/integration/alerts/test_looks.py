"""`simulate` and `policy explain` ask real Alertmanagers and a real Prometheus, once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from remediator.cli.root import app
from testbed.cluster import Cluster
from testbed.manifests import install_crds
from testbed.monitoring import Pair, Prometheus
from testbed.processes import free_port
from tests.integration.alerts.conftest import ALERT, main
from tests.integration.controller.conftest import Site
from tests.integration.controller.test_cli import Remediator, remediator


__all__ = ["remediator"]  # a fixture that these tests share with those of the other commands

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]  # the first build takes a while


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with Prometheus(folder) as server:
        yield server


def naming(node: str) -> str:
    """A query that has this node in its result."""
    return f'label_replace(vector(3), "node", "{node}", "", "")'


def files(site: Site) -> tuple[str, ...]:
    return ("--policies", str(site.policies), "--config", str(site.folder / "config.yaml"))


def simulated(remediator: Remediator, *flags: str) -> dict[str, Any]:
    result = remediator("simulate", *flags, "-o", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    report["nodes"] = {one["node"]: one for one in report["nodes"]}
    return dict(report)


def test_alerts_and_queries_are_asked_by_who_looks(
    site: Site, pair: Pair, prometheus: Prometheus, remediator: Remediator
) -> None:
    lost, hot, quiet, well, by_pod = (site.node() for _ in range(5))
    exporter = site.cluster.create_pod(node=by_pod, running=True)
    site.config(alertmanagers=[main(pair)], prometheus=[{"name": "prom", "url": prometheus.url}])
    site.policy("fallen", when=[{"alert": {"name": ALERT, "for": "30s"}}])
    site.policy("hot", when=[{"query": {"promql": naming(hot)}}])
    pair.fire(alertname="Watchdog")
    pair.fire(alertname=ALERT, node=lost, starts_ago=45.0)
    pair.fire(alertname=ALERT, node=quiet, starts_ago=45.0)
    pair.fire(
        alertname=ALERT,
        starts_ago=45.0,
        job="dcgm-exporter",
        namespace=site.cluster.namespace,
        pod=exporter.rpartition("/")[2],
    )
    pair.fire(alertname=ALERT, node="gpu-of-another-cluster")
    pair.first.silence(node=quiet)
    site.wait(
        lambda: any(one["status"]["silencedBy"] for one in pair.first.alerts()), "the silence"
    )
    report = simulated(remediator, *files(site))
    assert {name: row["steps"] for name, row in report["nodes"].items()} == {
        lost: ["cordon (fallen)"],
        hot: ["cordon (hot)"],
        quiet: [],
        by_pod: ["cordon (fallen)"],
    }
    assert [hold["guard"] for hold in report["nodes"][quiet]["holds"]] == ["silence"]
    assert report["sources"] == {
        "agents": {"ok": True, "why": ""},
        "alertmanager/main": {"ok": True, "why": ""},
        "prometheus/prom": {"ok": True, "why": ""},
    }
    (note,) = report["notes"]
    assert note.startswith(f"alert {ALERT} of main is about no node: ")
    assert "gpu-of-another-cluster" in note

    told = remediator("policy", "explain", lost, *files(site))
    assert f"alert {ALERT} of main for " in told.output
    assert f"(name {ALERT}, for 30s) holds: alert {ALERT}" in told.output
    assert "the node is not in its result, which proves nothing" in told.output
    of_well = remediator("policy", "explain", well, *files(site), "--policy", "fallen")
    assert "does not hold: no alert names this node\n" in of_well.output
    for node in (lost, hot, quiet, well):
        assert not site.cordoned(node)


def test_one_look_cannot_tell_how_long_a_query_has_held(
    site: Site, prometheus: Prometheus, remediator: Remediator
) -> None:
    node = site.node()
    site.config(prometheus=[{"name": "prom", "url": prometheus.url}])
    site.policy("hot", when=[{"query": {"promql": naming(node), "for": "5m"}}])
    report = simulated(remediator, *files(site))
    assert report["nodes"] == {}
    (note,) = report["notes"]
    assert "names 1 node: it would have to hold for 5m, and one look cannot tell" in note
    told = remediator("policy", "explain", node, *files(site)).output
    assert "holds, not for long enough yet: query" in told
    assert "is 3; it would have to hold for 5m, and one look cannot tell\n" in told


def test_what_cannot_be_asked_is_said_and_unknown(
    site: Site, pair: Pair, prometheus: Prometheus, remediator: Remediator
) -> None:
    """A dead peer, a dead server and a wrong query: each by name; nothing counts as well."""
    node, dead = site.node(), f"http://127.0.0.1:{free_port()}"
    site.config(
        alertmanagers=[main(pair, urls=[*pair.urls, dead])],
        prometheus=[
            {"name": "gone", "url": dead},
            {"name": "prom", "url": prometheus.url},
            {"name": "shut", "url": prometheus.url, "access": {"bearerTokenFile": "token"}},
        ],
    )
    site.policy("shut", when=[{"query": {"promql": "up == 0", "source": "shut"}}])
    site.policy("fallen", when=[{"alert": {"name": ALERT}}])
    site.policy("away", when=[{"query": {"promql": "up == 0", "source": "gone"}}])
    site.policy("wrong", when=[{"query": {"promql": "max by (node) (x", "source": "prom"}}])
    site.policy("careful", unless=[{"query": {"promql": "up == 2", "source": "gone"}}])
    site.says(node, 79)
    pair.fire(alertname="Watchdog")
    report = simulated(remediator, *files(site))
    notes = "\n".join(report["notes"])
    assert f"alertmanager/main: {dead}: ClientConnectorError" in notes
    assert "prometheus/gone: ConnectionError" in notes
    assert f"prometheus/shut: {site.folder}/token cannot be read" in notes
    assert "query max by (node) (x: HTTP Status Code 400" in notes
    assert report["sources"]["alertmanager/main"]["ok"] is False
    (hold,) = report["nodes"][node]["holds"]
    assert (hold["policy"], hold["guard"]) == ("careful", "unless")
    assert "cannot be told" in hold["reason"]
    told = remediator("policy", "explain", node, *files(site)).output
    for name in ("fallen", "away", "wrong"):
        assert f"{name} (Enforce): does not match: cannot be told" in told


def test_without_any_source_it_is_said_only_where_a_policy_rests_on_one(
    site: Site, remediator: Remediator
) -> None:
    node = site.node()
    site.config()
    site.policy()
    site.says(node, 79)
    assert simulated(remediator, *files(site))["notes"] == []
    site.policy("fallen", when=[{"alert": {"name": ALERT}}, {"query": {"promql": "up == 0"}}])
    report = simulated(remediator, *files(site))
    of_alerts, of_queries = report["notes"]
    assert of_alerts == "policies ask for alerts, and no Alertmanager is configured"
    assert of_queries.startswith("query up == 0: no Prometheus")
    assert report["nodes"][node]["steps"] == ["cordon (xid-79)"]


def test_policies_that_are_objects(site: Site, cluster: Cluster, remediator: Remediator) -> None:
    node = site.node()
    site.config()
    site.policy("from-file", when=[{"xid": {"codes": [48]}}])
    site.says(node, 79, 48)
    config = ("--config", str(site.folder / "config.yaml"))
    objects = ("--policies-from", "crds", *config)
    path = f"/apis/gpu-remediator.io/v1alpha1/namespaces/{cluster.namespace}/remediationpolicies"

    def create(name: str, **spec: Any) -> None:
        kind = {"apiVersion": "gpu-remediator.io/v1alpha1", "kind": "RemediationPolicy"}
        cluster.api.create(path, {**kind, "metadata": {"name": name}, "spec": spec})

    install_crds(cluster.api)
    site.wait(lambda: cluster.api.raw("GET", path)[0] == 200, "the kind")
    nothing = remediator("simulate", *objects)
    assert nothing.exit_code == 2
    assert f"no RemediationPolicy in namespace {cluster.namespace}" in nothing.output
    for name, code in (("lost", 79), ("from-file", 48)):
        create(name, when=[{"xid": {"codes": [code]}}], steps=[{"cordon": {}}])
    create("odd", when=[{"xid": {"codes": [79]}}], steps=[{"notify": {"to": ["nobody"]}}])
    report = simulated(remediator, *objects)
    assert set(report["nodes"][node]["matched"]) == {"lost", "from-file"}
    (note,) = report["notes"]
    assert note.startswith("does not count: remediationpolicies.gpu-remediator.io/odd:")
    assert "nobody is no channel" in note
    both = (*config, "--policies-from", "both", "--policies", str(site.policies))
    report = simulated(remediator, *both)
    assert set(report["nodes"][node]["matched"]) == {"lost", "from-file"}
    note, _ = report["notes"]
    assert note.startswith("does not count: remediationpolicies.gpu-remediator.io/from-file:")
    assert f"a policy named from-file is in {site.policies}" in note
    told = remediator("policy", "explain", node, *objects, "--policy", "lost")
    assert "lost (DryRun): matches" in told.output


def test_what_alerts_and_queries_said_is_recorded_and_replayed(
    site: Site, pair: Pair, prometheus: Prometheus, remediator: Remediator, tmp_path: Path
) -> None:
    lost, hot = site.node(), site.node()
    for node in (lost, hot):
        site.says(node)
    site.config(alertmanagers=[main(pair)], prometheus=[{"name": "prom", "url": prometheus.url}])
    site.policy("fallen", when=[{"alert": {"name": ALERT}}])
    site.policy("hot", when=[{"query": {"promql": naming(hot), "interval": "1s"}}])
    pair.fire(alertname="Watchdog")
    out = tmp_path / "day.jsonl"
    out.write_text("of yesterday\n")
    kubeconfig = str(site.cluster.kubeconfig_for(site.token))
    flags = ["--out", str(out), "--force", *files(site), "--kubeconfig", kubeconfig]

    def recorded(text: str) -> Callable[[], bool]:
        return lambda: out.exists() and text in out.read_text("utf-8")

    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", "from remediator.cli import main; main()", "record", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as recorder:
        site.wait(recorded('"answers"'), "the query's answer")
        pair.fire(alertname=ALERT, node=lost)
        site.wait(recorded(f"{ALERT}:"), "the alert")
        pair.fire(alertname=ALERT, node=lost, ends_in=0)

        def ended() -> bool:
            pair.fire(alertname="Watchdog")  # as a living Prometheus does
            return any(
                value is None and ALERT in key
                for line in out.read_text("utf-8").splitlines()
                for key, value in json.loads(line).get("said", {}).get("alerts", {}).items()
            )

        site.wait(ended, "the end of the alert")
        recorder.send_signal(signal.SIGINT)
        said, _ = recorder.communicate(timeout=20)
    assert recorder.returncode == 0, said
    assert "note: " not in said

    result = CliRunner().invoke(app, ["replay", str(out), *files(site), "-o", "json"])
    assert result.exit_code == 0, result.output
    (replayed,) = json.loads(result.output)
    assert replayed["notes"] == []
    assert replayed["figures"]["step cordon"] == 2
    assert replayed["figures"]["step uncordon"] == 1
    looked = simulated(remediator, *files(site), "--recorded", str(out))
    assert (looked["notes"], set(looked["nodes"])) == ([], {hot})
