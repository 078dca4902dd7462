"""Tells "we may not use the driver" from "there is no driver" and from "the GPU is broken".

NVML answers Driver Not Loaded, Unknown Error or Insufficient Permissions when a container may
not open the device nodes (after a ``systemctl daemon-reload`` its device cgroup may have
forgotten them). Only the nodes themselves tell.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path


def driver_loaded(proc: Path) -> bool:
    """Whether the kernel module is loaded; it shows itself in ``/proc/driver/nvidia``."""
    return (proc / "driver" / "nvidia" / "version").exists()


def bound_gpus(proc: Path) -> tuple[str, ...] | None:
    """PCI addresses of the GPUs that the driver has; None when it does not show them here."""
    try:
        return tuple(sorted(os.listdir(proc / "driver" / "nvidia" / "gpus")))  # noqa: PTH208 - pathlib's iterdir hides which error it was
    except OSError:
        return None


def denied(devices: Path, *, open_file: Callable[[str, int], int] = os.open) -> str:
    """Why the driver's control node cannot be opened; empty when it can.

    Args:
        devices: where device nodes are, as ``/dev``.
        open_file: as ``os.open``.
    """
    node = devices / "nvidiactl"
    try:
        os.close(open_file(str(node), os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return f"there is no {node} in here: mount the GPU device nodes"
        if error.errno in {errno.EPERM, errno.EACCES}:
            return (
                f"{node} may not be opened ({error.strerror}): the device cgroup or the file's"
                " mode forbids it"
            )
    return ""
