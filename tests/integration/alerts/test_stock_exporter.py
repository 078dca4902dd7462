"""A cluster with NVIDIA's exporter, Prometheus and Alertmanager, and none of our agents.

The exporter's page is text of its 4.8 line; Prometheus, its rule and Alertmanager are real.
"""

from __future__ import annotations

import http.server
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.monitoring import Pair, Prometheus
from tests.integration.alerts.conftest import main
from tests.integration.controller.conftest import LABEL, Replica, Site


pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]  # the first build takes minutes

Run = Callable[..., Replica]
ROOT = Path(__file__).parents[3]
RULE = ROOT / "examples" / "prometheus" / "dcgm-rules.yaml"
POLICY = ROOT / "policies" / "dcgm-fallen-off-bus.yaml"
PAGE = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{{{labels}}} 41
# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{{{labels},err_code="{xid}",err_msg="{text}"}} {xid}
"""


class Exporter:
    """Serves the page of one node."""

    def __init__(self, node: str) -> None:
        self.labels = (
            'gpu="3",UUID="GPU-5b1c2d3e-0000-4000-8000-0123456789ab",pci_bus_id="00000000:9B:00.0",'
            f'device="nvidia3",modelName="NVIDIA H200",Hostname="{node}",'
            'DCGM_FI_DRIVER_VERSION="580.95.05"'
        )
        self.xid, self.text = 0, "No Error"
        exporter = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = PAGE.format(
                    labels=exporter.labels, xid=exporter.xid, text=exporter.text
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def falls_off_the_bus(self) -> None:
        self.xid, self.text = 79, "GPU has fallen off the bus"


@pytest.fixture
def exporters(site: Site) -> Iterator[dict[str, Exporter]]:
    made = {name: Exporter(name) for name in (site.node(), site.node())}
    yield made
    for one in made.values():
        one.close()


@pytest.fixture
def prometheus(tmp_path: Path, pair: Pair, exporters: dict[str, Exporter]) -> Iterator[Prometheus]:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    scrape = {
        "job_name": "dcgm-exporter",
        "static_configs": [{"targets": [one.target for one in exporters.values()]}],
    }
    with Prometheus(
        folder, scrape=[scrape], rules=RULE.read_text("utf-8"), alertmanagers=pair.urls
    ) as server:
        server.wait_until(lambda: len(server.query("DCGM_FI_DEV_GPU_TEMP")) == 2, "two scrapes")
        yield server


def use(site: Site, policy: Path, mode: str = "Enforce") -> None:
    """Take a shipped policy into force."""
    text = policy.read_text("utf-8").replace("mode: DryRun", f"mode: {mode}")
    site.policies.mkdir(exist_ok=True)
    (site.policies / policy.name).write_text(text, encoding="utf-8")


def test_an_xid_on_the_stock_exporters_page_cordons_its_node(
    site: Site, pair: Pair, exporters: dict[str, Exporter], prometheus: Prometheus, run: Run
) -> None:
    site.config(alertmanagers=[main(pair)])
    use(site, POLICY)
    run()
    faulty, well = exporters
    exporters[faulty].falls_off_the_bus()
    site.wait(lambda: site.cordoned(faulty), "cordon")

    session = site.session(faulty)
    assert session is not None
    assert [hold["policy"] for hold in session["holds"]] == ["dcgm-fallen-off-bus"]
    assert not site.cordoned(well)
    assert LABEL in site.cluster.node(faulty)["metadata"]["labels"]
    assert prometheus.query("ALERTS{alertname='GpuFallenOffBus'}")


def test_the_same_by_a_query_without_any_alertmanager(
    site: Site, exporters: dict[str, Exporter], prometheus: Prometheus, run: Run
) -> None:
    site.config(prometheus=[{"name": "main", "url": prometheus.url}])
    query = {
        "promql": "DCGM_FI_DEV_XID_ERRORS == 79",
        "interval": "1s",
        "clearedBy": "DCGM_FI_DEV_XID_ERRORS == 0",
    }
    site.policy("by-query", when=[{"query": query}])
    run()
    faulty, well = exporters
    exporters[faulty].falls_off_the_bus()
    site.wait(lambda: site.cordoned(faulty), "cordon")
    assert not site.cordoned(well)

    exporters[faulty].xid = 0
    site.wait(lambda: not site.cordoned(faulty), "uncordon by clearedBy")


def test_a_query_of_a_policy_that_comes_later_is_asked(
    site: Site, exporters: dict[str, Exporter], prometheus: Prometheus, run: Run
) -> None:
    site.config(prometheus=[{"name": "main", "url": prometheus.url}])
    site.policy("other", when=[{"query": {"promql": "up == 2"}}])
    faulty, _ = exporters
    exporters[faulty].falls_off_the_bus()
    run()
    site.wait(lambda: site.status().get("leader"), "the leader")
    site.policy(
        "late", when=[{"query": {"promql": "DCGM_FI_DEV_XID_ERRORS == 79", "interval": "1s"}}]
    )
    site.wait(lambda: site.cordoned(faulty), "cordon")


def test_nodes_that_were_in_a_querys_result_before_its_policy_came_are_a_named_backlog(
    site: Site, exporters: dict[str, Exporter], prometheus: Prometheus, run: Run
) -> None:
    sources = [{"name": "main", "url": prometheus.url}]
    site.config(prometheus=sources, breaker={"minNodes": 1, "percent": 1})
    site.policy("other", when=[{"query": {"promql": "up == 2"}}])
    for one in exporters.values():
        one.falls_off_the_bus()
    query = "DCGM_FI_DEV_XID_ERRORS == 79"
    prometheus.wait_until(lambda: len(prometheus.query(query)) == 2, "both in the result")
    run()
    site.wait(lambda: site.status().get("leader"), "the leader")
    site.policy("late", when=[{"query": {"promql": query, "interval": "1s"}}])
    site.wait(lambda: all(map(site.cordoned, exporters)), "both cordoned")

    def named() -> list[str]:
        breakers = {one["source"]: one for one in site.status().get("breakers", ())}
        nodes: list[str] = breakers.get("late", {}).get("backlogNodes", [])
        return nodes

    site.wait(lambda: named() == sorted(exporters), "the backlog in the status")
    assert not any(one["open"] for one in site.status()["breakers"])


def test_a_query_that_is_wrong_is_shown_and_does_not_hold_the_others(
    site: Site, exporters: dict[str, Exporter], prometheus: Prometheus, run: Run
) -> None:
    site.config(prometheus=[{"name": "main", "url": prometheus.url}])
    site.policy("scalar", when=[{"query": {"promql": "scalar(vector(1))", "interval": "1s"}}])
    site.policy("broken", when=[{"query": {"promql": "sum(", "interval": "1s"}}])
    good = {"promql": "DCGM_FI_DEV_XID_ERRORS == 79", "interval": "1s"}
    site.policy("good", when=[{"query": good}])
    faulty, _ = exporters
    exporters[faulty].falls_off_the_bus()
    run()
    site.wait(lambda: site.cordoned(faulty), "cordon")

    def shown() -> bool:
        notes = "\n".join(site.status().get("notes", ()))
        return "query sum(: " in notes and "names no node: write a query" in notes

    site.wait(shown, "both troubles")


def test_series_that_name_no_node_of_ours_are_counted_shown_and_told(
    site: Site, exporters: dict[str, Exporter], prometheus: Prometheus, run: Run
) -> None:
    outside = site.cluster.create_node()
    nodes = (
        f'label_replace(vector({at}), "node", "{name}", "", "")'
        for at, name in enumerate((outside, "no-such-node"))
    )
    site.config(prometheus=[{"name": "main", "url": prometheus.url}])
    site.policy("odd", when=[{"query": {"promql": " or ".join(nodes), "interval": "1s"}}])
    replica = run()

    def counted() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{replica.port}/metrics", timeout=5) as page:
            scraped = page.read().decode()
        return all(
            f'remediation_signals_refused{{reason="{reason}",source="prometheus/main"}} 1.0'
            in scraped
            for reason in ("unknown_node", "outside_gpu_nodes")
        )

    site.wait(lambda: site.status().get("leader"), "the leader")
    site.wait(counted, "the metric")

    def shown() -> bool:
        notes = "\n".join(site.status().get("notes", ()))
        return "1 series are about no node, such as: node=no-such-node" in notes and (
            f"is about {outside}, which is no GPU node" in notes
        )

    site.wait(shown, "both in the status")
    site.wait(lambda: "GPURemediationSignalRefused" in site.events(outside), "the Event")
    assert not any(map(site.cordoned, (outside, *exporters)))
