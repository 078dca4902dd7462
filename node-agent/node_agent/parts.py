"""Settings to the parts that are made of them alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from node_agent.attribution.device_ids import Patterns
from node_agent.attribution.model import Lookup
from node_agent.attribution.service import Config
from node_agent.publish.counters import DEFAULT_FILES, load_counters, load_fields
from node_agent.publish.dcgm import DcgmMetrics
from node_agent.publish.dcgm_rows import LabelOptions
from node_agent.sources.kernel_log import KernelLogPaths, Mode


if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from node_agent.settings import Settings
    from node_agent.xid.catalogue import Catalogue


def dcgm_metrics(
    settings: Settings, *, catalogue: Catalogue, log: FilteringBoundLogger
) -> DcgmMetrics:
    """The DCGM-compatible families that the settings choose.

    Raises:
        CountersError: the counters file cannot be used.
    """
    path = settings.dcgm_counters or DEFAULT_FILES[settings.dcgm_names]
    counters = load_counters(path, load_fields())
    if counters.skipped:
        log.warning("DCGM fields that NVML cannot fill", file=str(path), fields=counters.skipped)
    return DcgmMetrics(
        counters=counters,
        options=LabelOptions(
            hostname=settings.node,
            hostname_label=settings.dcgm_hostname_label.text(settings.dcgm_names),
            old_labels=settings.dcgm_old_labels,
            row_per_pod=settings.dcgm_row_per_pod,
            pod_uid=settings.dcgm_pod_uid,
        ),
        xid_text=lambda code: catalogue.of_xid(code).text or "Unknown Error",
    )


def log_paths(settings: Settings) -> KernelLogPaths:
    """Where the kernel log is."""
    kmsg, boot_id = Path(settings.kmsg_path), Path(settings.boot_id_path)
    if not settings.kernel_log_path:
        return KernelLogPaths(kmsg=kmsg, boot_id=boot_id)
    path = Path(settings.kernel_log_path)
    fifo = path if settings.kernel_log is Mode.FIFO else None
    return KernelLogPaths(kmsg=kmsg, files=(path,), fifo=fifo, boot_id=boot_id)


def attribution_config(settings: Settings) -> Config:
    """What the attribution of pods is told.

    The kubelet's `device-plugins` folder is watched where the pod mounts it: its checkpoint
    changes when a device is handed out.
    """
    kubelet = Path(settings.kubelet_folder) if settings.kubelet_folder else None
    lookups = filter(None, map(str.strip, settings.cluster_lookups.split(",")))
    return Config(
        node=settings.node,
        socket=kubelet / "pod-resources" / "kubelet.sock" if kubelet is not None else None,
        watched=(kubelet / "device-plugins",) if kubelet is not None else (),
        proc_root=Path(settings.proc_root),
        log_root=Path(settings.pod_log_folder) if settings.pod_log_folder else None,
        resources=Patterns(settings.gpu_resources),
        labels=Patterns(settings.pod_labels),
        cluster=frozenset(map(Lookup, lookups)),
        interval=settings.pods_interval,
    )
