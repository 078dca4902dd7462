"""Views of NVML as they come from a node, and the page made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from node_agent.attribution.model import PodMap, PodRef
from node_agent.health.conditions import View, ViewState
from node_agent.health.state import NodeHealth
from node_agent.nvml.model import (
    CallStats,
    Device,
    Driver,
    MigInstance,
    NvmlState,
    NvmlView,
    Process,
    Reading,
)
from node_agent.publish.counters import (
    DEFAULT_FILES,
    Counters,
    load_counters,
    load_fields,
    parse_counters,
)
from node_agent.publish.dcgm import DcgmMetrics
from node_agent.publish.dcgm_rows import LabelOptions
from node_agent.publish.exposition import Block
from node_agent.publish.page import MetricsPage, Snapshot
from node_agent.sources.kernel_log import Counters as LogCounters
from node_agent.sources.kernel_log import SourceState
from node_agent.xid.catalogue import load_catalogue


NOW = 1_700_000_000.0
MIB = 1024**2
FIELDS = load_fields()
CATALOGUE = load_catalogue()
VALUES = {
    "sm_clock_mhz": 1980.0,
    "mem_clock_mhz": 3201.0,
    "memory_temp_c": 33.0,
    "gpu_temp_c": 41.0,
    "power_w": 86.759,
    "energy_j": 1234.5678,
    "pcie_replay": 1.0,
    "gpu_util_pct": 37.0,
    "mem_util_pct": 5.0,
    "enc_util_pct": 0.0,
    "dec_util_pct": 0.0,
    "fb_total_bytes": 143771.0 * MIB,
    "fb_free_bytes": 142000.5 * MIB,
    "fb_used_bytes": 1024.0 * MIB,
    "fb_reserved_bytes": 500.0 * MIB,
    "nvlink_rate_bytes_per_s": 2048000.0,
    "nvlink_tx_bytes_per_s": 1024000.0,
    "nvlink_rx_bytes_per_s": 1024000.0,
    "vgpu_license": 0.0,
    "remap_uncorrectable": 0.0,
    "remap_correctable": 0.0,
    "remap_failure": 0.0,
    "remap_pending": 0.0,
    "clocks_event_reasons": 1.0,
    "recovery_action": 0.0,
    "pcie_gen": 5.0,
    "violation_power_ns": 1.5e9,
    "ecc_sbe_vol": 2.0,
    "gpm_graphics_ratio": 0.25,
    "gpm_tensor_ratio": 0.125,
    "gpm_dram_ratio": 0.5,
    "gpm_pcie_tx_bytes_per_s": 1000.0,
    "gpm_pcie_rx_bytes_per_s": 2000.0,
}
POD = PodRef(namespace="ml", name="job-0", container="train", uid="u-1")


def pci(index: int) -> str:
    return f"0000:{0x18 + 8 * index:02x}:00.0"


def uuid(index: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{index:012d}"


def device(index: int = 0, **changes: object) -> Device:
    given = {
        "index": index,
        "uuid": uuid(index),
        "pci": pci(index),
        "pci_nvml": f"0000{pci(index).upper()}",
        "name": "NVIDIA H200",
        "serial": "165",
        "vbios": "96.00",
        "brand": "NVIDIA",
        "supports": frozenset({"gpm", "row_remap", "nvlink", "ecc"}),
        "limits": {"slowdown_c": 92.0, "pcie_gen_max": 5.0},
        "labels": {"inforom_image": "G520.0280"},
    }
    return Device(**{**given, **changes})  # type: ignore[arg-type]


def mig(gi: int, profile: str = "1g.18gb", *, ci: int = 0) -> MigInstance:
    return MigInstance(f"MIG-{gi}-{ci}", gi, ci, profile)


def view(
    *devices: Device,
    values: dict[str, float] | None = None,
    readings: dict[str, Reading] | None = None,
    **changes: object,
) -> NvmlView:
    devices = devices or (device(),)
    given = {
        "state": NvmlState.OK,
        "since": NOW - 60,
        "driver": Driver("570.86.15", "12.570.86.15", "12.8"),
        "devices": devices,
        "readings": {
            each.uuid: Reading(each.uuid, NOW - 1, VALUES if values is None else values)
            for each in devices
        }
        | (readings or {}),
        "calls": {"nvmlDeviceGetTemperature": CallStats(3, 1, 0.5, 0.1)},
    }
    return NvmlView(**{**given, **changes})  # type: ignore[arg-type]


def process(pid: int, memory: int | None = 100, **changes: object) -> Process:
    given = {"uuid": uuid(0), "pid": pid, "kind": "compute", "memory_bytes": memory}
    return Process(**{**given, **changes})  # type: ignore[arg-type]


def pods(*refs: PodRef, gi: int | None = None) -> PodMap:
    if gi is not None:
        return PodMap(instances={(uuid(0).lower(), gi): refs})
    return PodMap(devices={uuid(0).lower(): refs})


def counters(text: str = "", *, line: str = "4.8") -> Counters:
    if text:
        return parse_counters(text, FIELDS)
    return load_counters(DEFAULT_FILES[line], FIELDS)


def everything(line: str) -> Counters:
    """All fields of one release line."""
    return counters(
        "".join(
            f"{field.name}, {field.kind}, {field.help}\n"
            for field in FIELDS.by_name.values()
            if field.line in {"", line}
        )
    )


class World:
    """What the page reads, to be changed by a test, and the page."""

    def __init__(
        self,
        *,
        on: Counters | None = None,
        options: LabelOptions | None = None,
        extra: Callable[[], Iterable[Block]] = tuple,
    ) -> None:
        self.nvml = view()
        self.pods = PodMap()
        self.health = NodeHealth()
        self.now = NOW
        self.reads = 0
        self.log_counters = LogCounters()
        self.page = MetricsPage(
            read=self.read,
            dcgm=DcgmMetrics(
                counters=on or counters(),
                options=options or LabelOptions("n1"),
                xid_text=lambda code: CATALOGUE.of_xid(code).text or "Unknown Error",
            ),
            extra=extra,
            interval=5.0,
            wall=lambda: self.now,
            clock=lambda: 0.0,
        )

    def read(self) -> Snapshot:
        self.reads += 1
        return Snapshot(
            health=self.health,
            devices=(),
            conditions=(),
            views=dict.fromkeys(View, ViewState(up=True)),
            counters=self.log_counters,
            source=SourceState("file", working=True),
            nvml=self.nvml,
            pods=self.pods,
        )

    def text(self, accept: str = "text/plain") -> str:
        """The page after a tick."""
        self.page.take_nvml(self.nvml)
        self.page.render()
        return self.page.serve(accept, "").body.decode()

    def lines(self, prefix: str) -> list[str]:
        """Sample lines that begin so."""
        return [line for line in self.text().splitlines() if line.startswith(prefix)]
