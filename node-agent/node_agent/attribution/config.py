"""The settings of attribution, as its service wants them."""

from __future__ import annotations

from pathlib import Path

from node_agent.attribution.device_ids import Patterns
from node_agent.attribution.model import Lookup
from node_agent.attribution.service import Config
from node_agent.settings import Settings


def config_of(settings: Settings) -> Config:
    """Checked settings to a config.

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
