"""The agent's page before those who read it: promtool's linter, and a real Prometheus."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from testbed.binaries import provide
from testbed.cluster import Cluster
from testbed.podresources import KubeletSocket, pod
from testbed.processes import Child, free_port
from tests.integration.agent.conftest import MakeSetup, Setup
from tests.unit.agent.publish.builders import counters


pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]  # the first build takes minutes

CAMEL_CASE = "label names should be written in 'snake_case' not 'camelCase'"
"""Said of every DCGM family: their label `modelName`."""
IMPOSED_BY_DCGM = {
    *(
        (name, 'counter metrics should have "_total" suffix')
        for name in (
            "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
            "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
            "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        )
    ),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "metric name should not include type 'counter'"),
}
DASHBOARD_12239 = (
    'avg(DCGM_FI_DEV_GPU_TEMP{instance=~"%s", gpu=~"0|1"})',
    'sum(DCGM_FI_DEV_POWER_USAGE{instance=~"%s", gpu=~"0|1"})',
    'DCGM_FI_DEV_SM_CLOCK{instance=~"%s", gpu=~"0|1"} * 1000000',
    'DCGM_FI_DEV_GPU_UTIL{instance=~"%s", gpu=~"0|1"}',
    'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~"%s", gpu=~"0|1"}',
    'DCGM_FI_DEV_FB_USED{instance=~"%s", gpu=~"0|1"}',
)


@pytest.fixture
def gpus(cluster: Cluster, make_setup: MakeSetup) -> Setup:
    """Two H200 with their driver, some faults, and the agent."""
    made = make_setup(cluster, gpus=2, model="H200")
    made.agent.start()
    made.machine.xid(31, "Ch 00000008, intr 00000000. MMU Fault")
    return made


class Prometheus:
    """A real one that scrapes one agent each second; a context manager."""

    def __init__(self, folder: Path, *, target: str) -> None:
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [
                {
                    "job_name": "node-agent",
                    "honor_labels": True,
                    "static_configs": [{"targets": [target]}],
                }
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config), "utf-8")
        self._address = f"127.0.0.1:{free_port()}"
        argv = [
            str(provide("prometheus")),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address={self._address}",
        ]
        self._process = Child("prometheus", argv, log=folder / "prometheus.log")

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def get(self, path: str, **query: str) -> object:
        """The `data` of one answer of its API."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.loads(answer.read())["data"]

    def values(self, query: str) -> list[float]:
        """The values that a query has now."""
        data = self.get("query", query=query)
        assert isinstance(data, dict)
        return [float(sample["value"][1]) for sample in data["result"]]

    def wait_for(self, query: str, good: Callable[[list[float]], bool]) -> list[float]:
        """The values of a query, once they are good."""
        values: list[float] = []

        def found() -> bool:
            nonlocal values
            try:
                values = self.values(query)
            except OSError:
                return False
            return good(values)

        self._process.wait_until(found, timeout=60)
        return values


@pytest.fixture
def prometheus(gpus: Setup, tmp_path: Path) -> Iterator[Prometheus]:
    with Prometheus(tmp_path, target=f"127.0.0.1:{gpus.agent.port}") as server:
        yield server


def test_promtool_finds_fault_only_with_what_dcgm_imposes(gpus: Setup) -> None:
    _wait_for_nvml(gpus)
    page = gpus.agent.get("/metrics")[1]
    assert page.count("DCGM_") > 100
    done = subprocess.run(  # noqa: S603 - promtool, from our cache
        [provide("promtool"), "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = {tuple(line.split(" ", 1)) for line in (done.stdout + done.stderr).splitlines() if line}
    of_labels = {each for each in said if each[1] == CAMEL_CASE}
    assert {each[0][:5] for each in of_labels} == {"DCGM_"}
    assert said - of_labels == IMPOSED_BY_DCGM


def families(setup: Setup) -> set[str]:
    page = setup.agent.get("/metrics")[1]
    return set(re.findall(r"^# TYPE (DCGM_\w+) ", page, re.MULTILINE))


def labels(setup: Setup, family: str) -> list[str]:
    """The label names of a family's first row, in their order."""
    page = setup.agent.get("/metrics")[1]
    row = next(line for line in page.splitlines() if line.startswith(family + "{"))
    return re.findall(r'(\w+)="', row)


@pytest.mark.parametrize("line", ["4.8", "4.9"])
def test_the_default_families_and_their_labels_are_those_of_the_line(
    cluster: Cluster, make_setup: MakeSetup, line: str
) -> None:
    setup = make_setup(cluster, gpus=2, model="H200", dcgm_names=line)
    with KubeletSocket(setup.machine.kubelet) as kubelet:
        assert setup.driver is not None
        kubelet.pods = [pod("train-0", [setup.driver.uuid(0)])]
        setup.agent.start()
        wanted = {counter.family.name for counter in counters(line=line).metrics}
        without = {name for name in wanted if "VGPU_LICENSE" in name}  # of virtual GPUs only
        setup.cluster.wait_for(
            lambda: families(setup) == wanted - without,
            what=f"{wanted - without ^ families(setup)}",
        )
        old = line == "4.8"
        setup.cluster.wait_for(
            lambda: "pod" in labels(setup, "DCGM_FI_DEV_GPU_TEMP" + ("" if old else "_CELSIUS")),
            what="the pod's labels",
        )
        assert labels(setup, "DCGM_FI_DEV_GPU_TEMP" + ("" if old else "_CELSIUS")) == [
            *("gpu", "UUID", "pci_bus_id", "device", "modelName"),
            "Hostname" if old else "hostname",
            "DCGM_FI_DRIVER_VERSION" if old else "DCGM_FI_SYSTEM_DRIVER_VERSION",
            *("container", "namespace", "pod"),
        ]
    assert len(wanted) >= 25


def test_a_counters_file_decides_what_is_on(
    cluster: Cluster, make_setup: MakeSetup, tmp_path: Path
) -> None:
    file = tmp_path / "counters.csv"
    file.write_text(
        "# theirs,,\nDCGM_FI_DEV_GPU_TEMP, gauge, T.\nDCGM_FI_DEV_SERIAL, label, S.\n"
        "DCGM_EXP_XID_ERRORS_TOTAL, counter, X.\nDCGM_FI_DEV_NVLINK_BANDWIDTH_L0, counter, N.\n",
        "utf-8",
    )
    setup = make_setup(cluster, gpus=2, model="H200", dcgm_counters=str(file))
    setup.agent.start()
    setup.machine.xid(31, "Ch 00000008, intr 00000000. MMU Fault")
    wanted = {"DCGM_FI_DEV_GPU_TEMP", "DCGM_EXP_XID_ERRORS_TOTAL"}
    setup.cluster.wait_for(lambda: families(setup) == wanted, what=f"{wanted}")
    assert "DCGM_FI_DEV_SERIAL" in labels(setup, "DCGM_FI_DEV_GPU_TEMP")
    assert "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0" in setup.agent.log_text


def test_a_real_prometheus_takes_every_series_and_answers_the_dashboard(
    gpus: Setup, prometheus: Prometheus
) -> None:
    target = f"127.0.0.1:{gpus.agent.port}"
    prometheus.wait_for("DCGM_FI_DEV_GPU_TEMP", lambda values: len(values) == 2)
    prometheus.wait_for("scrape_samples_scraped", lambda v: bool(v) and v[0] > 300)
    assert prometheus.values("up") == [1.0]
    for query in DASHBOARD_12239:
        assert prometheus.values(query % target), query
    instances = prometheus.get("label/instance/values", **{"match[]": "DCGM_FI_DEV_GPU_TEMP"})
    assert instances == [target]
    prometheus.wait_for('gpu_xid_errors_total{xid="31"}', lambda values: values == [1.0])
    prometheus.wait_for("rate(gpu_nvml_calls_total[30s]) > 0", lambda values: len(values) > 5)
    metadata = prometheus.get("metadata", metric="gpu_energy_joules")
    assert isinstance(metadata, dict)
    assert metadata["gpu_energy_joules"][0]["type"] == "counter"


def test_a_scrape_goes_on_while_the_driver_hangs(gpus: Setup, prometheus: Prometheus) -> None:
    assert gpus.driver is not None
    prometheus.wait_for("DCGM_FI_DEV_GPU_TEMP", lambda values: len(values) == 2)
    gpus.driver.hang("nvmlDeviceGetPowerUsage", gpu=0)
    prometheus.wait_for('gpu_nvml_state{state="hung"}', lambda values: values == [1.0])
    (age, *_) = prometheus.wait_for(
        "time() - gpu_reading_timestamp_seconds", lambda values: len(values) == 2
    )
    assert age > 0
    assert prometheus.values("up") == [1.0]
    assert prometheus.values("scrape_duration_seconds")[0] < 1


def _wait_for_nvml(setup: Setup) -> None:
    deadline = time.monotonic() + 60
    while "DCGM_FI_DEV_GPU_TEMP" not in setup.agent.get("/metrics")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
