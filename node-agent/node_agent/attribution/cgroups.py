"""From a process to its pod, by the path of its cgroup.

What the paths look like, by cgroup driver, runtime and version:

- v2, systemd: ``0::/kubepods.slice/kubepods-burstable.slice/
  kubepods-burstable-pod<uid with _>.slice/cri-containerd-<id>.scope`` (also ``crio-``,
  ``docker-``, and what the container makes below)
- v1 or v2, cgroupfs: ``4:memory:/kubepods/besteffort/pod<uid>/<id>`` (CRI-O: ``crio-<id>``)
- containerd's old systemd form: ``...pod<uid>.slice:cri-containerd:<id>``
- seen from inside a cgroup namespace: ``0::/../../kubepods-pod<uid>.slice/...``
- kubelet in a container (kind, nested clusters): any prefix before ``kubepods``, and with a
  cluster inside a pod, two pods in one path

A static pod's uid here is the hash of its file, 32 digits without dashes. :func:`parse_cgroup`
is pure; :class:`ProcReader` reads.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple


class CgroupPod(NamedTuple):
    """A pod in a cgroup path. ``container_id`` is empty for a process outside containers."""

    uid: str
    container_id: str = ""


_POD: Final = re.compile(
    r"(?:^|[/-])pod"
    r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[/.:]|$)"
)
_CONTAINER: Final = re.compile(r"(?:^|[/:-])(?<!conmon-)([0-9a-f]{64})(?=[/.:]|$)")
_MAX_BYTES: Final = 65536
_KTHREADD: Final = "kthreadd"


def parse_cgroup(text: str) -> tuple[CgroupPod, ...]:
    """The pods in the text of ``/proc/<pid>/cgroup``, outermost first; mostly one or none.

    v1 has a line for each hierarchy; the first that names a pod is taken.
    """
    for line in text.split("\n"):
        path = line.split(":", 2)[-1]
        pods = list(_POD.finditer(path))
        if not pods:
            continue
        ends = [*(found.start() for found in pods[1:]), len(path)]
        return tuple(
            CgroupPod(found[1].replace("_", "-"), _container(path[found.end() : end]))
            for found, end in zip(pods, ends, strict=True)
        )
    return ()


def _container(path: str) -> str:
    """The outermost container below a pod: what runs inside may have containers of its own."""
    found = _CONTAINER.search(path)
    return found[1] if found else ""


class ProcReader:
    """Reads one procfs. Every call is a system call or two and may block for a moment.

    Args:
        root: where the procfs is mounted, as ``/proc``.
    """

    def __init__(self, *, root: Path) -> None:
        self._root = root

    def pods_of(self, pid: int) -> tuple[CgroupPod, ...]:
        """The pods in the path of a process; none if it is gone or is in no pod."""
        try:
            with (self._root / str(pid) / "cgroup").open("rb") as file:
                return parse_cgroup(file.read(_MAX_BYTES).decode("utf-8", "replace"))
        except OSError:
            return ()

    def trouble(self) -> str:
        """Why processes cannot be looked up here, empty if they can.

        In a pid namespace of our own the driver's pids mean nothing. The initial one is known
        by its kernel threads: pid 2 is kthreadd there and nowhere else.
        """
        try:
            name = (self._root / "2" / "comm").read_text("ascii").strip()
        except FileNotFoundError:
            name = ""
        except (OSError, ValueError) as error:
            return f"cannot read {self._root}: {error}"
        if name == _KTHREADD:
            return ""
        return (
            f"{self._root} is not that of the host, so that pids cannot be told apart: set "
            "hostPID: true in the pod"
        )
