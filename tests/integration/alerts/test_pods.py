"""Nodes that an alert names by a pod: asked of the API server with the controller's rights."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Callable

import pytest

from testbed.monitoring import Pair
from tests.integration.alerts.conftest import ALERT
from tests.integration.controller.conftest import Replica, Site


pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

Run = Callable[..., Replica]


def pod_on(site: Site, node: str) -> tuple[str, str]:
    """A running pod on a node: its name and address."""
    name = site.cluster.create_pod(node=node, running=True)
    ip = str(ipaddress.ip_address("10.128.0.0") + secrets.randbelow(1 << 20))
    status = {"status": {"podIP": ip, "podIPs": [{"ip": ip}]}}
    path = f"/api/v1/namespaces/{site.cluster.namespace}/pods/{name}/status"
    site.cluster.api.patch(path, status)
    return name, ip


def test_the_pod_of_an_exporter_names_its_node(watched: Site, pair: Pair, run: Run) -> None:
    by_address, by_name, of_another_job = watched.node(), watched.node(), watched.node()
    _, ip = pod_on(watched, by_address)
    name, _ = pod_on(watched, by_name)
    _, other = pod_on(watched, of_another_job)
    pair.fire(alertname=ALERT, job="dcgm-exporter", instance=f"{ip}:9400")
    pair.fire(alertname=ALERT, job="node-exporter", pod=name, namespace=watched.cluster.namespace)
    pair.fire(alertname=ALERT, job="my-app", instance=f"{other}:80")
    run()
    watched.wait(lambda: watched.cordoned(by_address), "cordon by address")
    watched.wait(lambda: watched.cordoned(by_name), "cordon by name")
    assert not watched.cordoned(of_another_job)


def test_the_node_of_kube_state_metrics_is_not_cordoned_for_the_faults_of_others(
    watched: Site, pair: Pair, run: Run
) -> None:
    """Relabelling wrote its own node into every alert; with ``exported_node`` all is well."""
    own, faulty = watched.node(), watched.node()
    _, ip = pod_on(watched, own)
    scraped = {"job": "kube-state-metrics", "instance": f"{ip}:8080"}
    pair.fire(alertname=ALERT, node=own, condition="a", **scraped)
    run()
    notes = watched.wait(
        lambda: [n for n in watched.status().get("notes", ()) if "honor_labels" in n], "note"
    )
    assert "that is the node it runs on" in notes[0]
    pair.fire(alertname=ALERT, node=own, exported_node=faulty, condition="b", **scraped)
    watched.wait(lambda: watched.cordoned(faulty), "cordon")
    assert not watched.cordoned(own)
