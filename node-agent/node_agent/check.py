"""Which sources and views work on this node, why the others do not, and what grants them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from node_agent.health.conditions import View


if TYPE_CHECKING:
    from collections.abc import Mapping

    from node_agent.health.conditions import ViewState
    from node_agent.nvml.model import NvmlView


class Check(msgspec.Struct, frozen=True):
    """One view. ``state`` is ``on``, ``off``, or ``absent`` where nothing is wrong with that.

    ``detail`` says what it sees, or why it does not. ``grants`` says what would let it work.
    """

    view: str
    state: str
    detail: str
    grants: str = ""


GRANTS: Final[Mapping[View, str]] = {
    View.KERNEL_LOG: (
        "capability SYSLOG (syslog and /dev/kmsg), or a readable log file (kernel_log_path)"
    ),
    View.NVML: (
        "libnvidia-ml.so.1 and the device nodes: NVIDIA's container runtime "
        "(deploy/agent/optional/nvidia-runtime.patch.yaml), NVIDIA_VISIBLE_DEVICES=all"
    ),
    View.TRACEPOINT: (
        "driver 575 or newer, and /sys/kernel/tracing mounted writable "
        "(deploy/agent/optional/tracing.patch.yaml)"
    ),
    View.PCI: "the host's /sys mounted (sysfs_root)",
    View.POD_RESOURCES: "the kubelet's pod-resources folder mounted (kubelet_folder)",
    View.PROCESSES: "NVML, and hostPID (deploy/agent/optional/processes.patch.yaml)",
    View.PODS: "`pods` in cluster_lookups, and deploy/agent/optional/pods.yaml",
    View.RESOURCE_SLICES: (
        "`resource_slices` in cluster_lookups, and deploy/agent/optional/resource-slices.yaml"
    ),
    View.BOOT_ID: "/proc/sys/kernel/random/boot_id (boot_id_path)",
    View.STATE_FILE: "a writable folder on the host (state_file)",
    View.LOCAL_SOCKET: "a writable folder (socket)",
}


def checks(
    views: Mapping[View, ViewState], *, nvml: NvmlView, log_source: str, devices: int
) -> tuple[Check, ...]:
    """One row for each view, in the order of their definition.

    Args:
        views: as the monitor has them.
        nvml: the latest view of NVML.
        log_source: which kernel log is read.
        devices: how many devices of the vendor are on PCI.
    """
    driver = nvml.driver.driver_version if nvml.driver is not None else "unknown"
    seen = {
        View.KERNEL_LOG: f"reads {log_source}",
        View.NVML: f"driver {driver}, {len(nvml.devices)} GPUs"
        + (f"; no events: {nvml.events_error}" if nvml.events_error else ""),
        View.PCI: f"{devices} devices",
    }
    rows = []
    for view in View:
        state = views[view]
        if state.up:
            rows.append(Check(view.value, "on", seen.get(view, "")))
        else:
            word = "absent" if state.absent else "off"
            rows.append(Check(view.value, word, state.reason, GRANTS[view]))
    return tuple(rows)
