"""A kubelet and two pods where there is no cluster: what attribution looks at, and nothing else.

`train-0` and `other-0` share the GPU. Processes become train-0's by moving them into a cgroup of
the kubelet's naming. Needs root and grpcio; without them the run goes on without pods.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, Self


OWNER: Final = "train-0"
_UID: Final = "0f6f1d2e-3c4b-4a5d-8e9f-a0b1c2d3e4f5"
_CONTAINER: Final = "c0ffee" * 10 + "c0de"
_CGROUPS: Final = tuple(Path("/sys/fs/cgroup") / name for name in ("", "unified", "systemd"))
"""Version 2; beside version 1; version 1."""


class Pods:
    """The kubelet's side; a context manager. `trouble` says what could not be set up.

    Args:
        folder: stands for `/var/lib/kubelet` and `/var/log`.
        uuid: of the GPU.
    """

    def __init__(self, folder: Path, *, uuid: str) -> None:
        self.kubelet_folder = folder / "kubelet"
        self.log_folder = folder / "pod-logs"
        self.trouble = ""
        self._uuid = uuid
        self._stack = contextlib.ExitStack()
        root = next((path for path in _CGROUPS if (path / "cgroup.procs").exists()), _CGROUPS[0])
        self._root = root
        top = root / "kubepods.slice" / "kubepods-besteffort.slice"
        pod = top / f"kubepods-besteffort-pod{_UID.replace('-', '_')}.slice"
        self._cgroups = [top.parent, top, pod, pod / f"cri-containerd-{_CONTAINER}.scope"]

    def __enter__(self) -> Self:
        """Set up what can be."""
        try:
            self._serve()
            if not (self._root / "cgroup.procs").exists():
                raise FileNotFoundError(f"no cgroups at {self._root}")
            for cgroup in self._cgroups:
                cgroup.mkdir(exist_ok=True)
        except (ImportError, OSError) as error:
            self.trouble = f"{type(error).__name__}: {error}"
        return self

    def __exit__(self, *_: object) -> None:
        """Take it down."""
        self._stack.close()
        for cgroup in reversed(self._cgroups):
            with contextlib.suppress(OSError):
                cgroup.rmdir()

    def take(self, pid: int) -> None:
        """This process belongs to the pod from now on."""
        if not self.trouble:
            (self._cgroups[-1] / "cgroup.procs").write_text(str(pid))

    def _serve(self) -> None:
        from testbed.podresources import KubeletSocket, pod  # noqa: PLC0415 - needs grpcio

        (self.log_folder / "pods" / f"ml_{OWNER}_{_UID}").mkdir(parents=True)
        containers = self.log_folder / "containers"
        containers.mkdir()
        (containers / f"{OWNER}_ml_train-{_CONTAINER}.log").touch()
        kubelet = self._stack.enter_context(KubeletSocket(self.kubelet_folder))
        kubelet.pods = [pod(OWNER, [f"{self._uuid}::0"]), pod("other-0", [f"{self._uuid}::1"])]
