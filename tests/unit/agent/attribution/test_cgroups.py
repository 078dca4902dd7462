"""Paths of cgroups as drivers, runtimes and kernels write them."""

from pathlib import Path

import pytest

from node_agent.attribution.cgroups import CgroupPod, ProcReader, parse_cgroup


UID = "3f2a9c1e-8b7d-4c6e-9f01-23456789abcd"
LOW = UID.replace("-", "_")
ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
STATIC = "0123456789abcdef0123456789abcdef"
FOUND = (CgroupPod(UID, ID),)
BURST = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable"

PATHS = {
    "v2 systemd containerd": (f"0::{BURST}-pod{LOW}.slice/cri-containerd-{ID}.scope", FOUND),
    "v2 systemd crio": (f"0::{BURST}-pod{LOW}.slice/crio-{ID}.scope", FOUND),
    "v2 systemd crio, subgroup": (f"0::{BURST}-pod{LOW}.slice/crio-{ID}.scope/container", FOUND),
    "v2 systemd docker": (f"0::{BURST}-pod{LOW}.slice/docker-{ID}.scope", FOUND),
    "v2 systemd guaranteed": (
        f"0::/kubepods.slice/kubepods-pod{LOW}.slice/cri-containerd-{ID}.scope",
        FOUND,
    ),
    "v2 cgroupfs": (f"0::/kubepods/burstable/pod{UID}/{ID}", FOUND),
    "v2 cgroupfs crio": (f"0::/kubepods/besteffort/pod{UID}/crio-{ID}", FOUND),
    "v1 cgroupfs": (
        f"12:devices:/kubepods/pod{UID}/{ID}\n11:memory:/kubepods/pod{UID}/{ID}\n0::/\n",
        FOUND,
    ),
    "v1, first lines elsewhere": (
        f"3:rdma:/\n2:cpu,cpuacct:{BURST}-pod{LOW}.slice/cri-containerd-{ID}.scope\n",
        FOUND,
    ),
    "containerd with colons": (
        f"0::/system.slice/containerd.service/kubepods-burstable-pod{LOW}.slice:cri-containerd:{ID}",
        FOUND,
    ),
    "from a cgroup namespace": (
        f"0::/../../kubepods-burstable-pod{LOW}.slice/cri-containerd-{ID}.scope",
        FOUND,
    ),
    "kubelet in a container": (
        f"0::/docker/{OTHER}/kubelet/kubelet-kubepods-pod{LOW}.slice/cri-containerd-{ID}.scope",
        FOUND,
    ),
    "docker inside the container": (f"0::/kubepods/pod{UID}/{ID}/docker/{OTHER}", FOUND),
    "a cluster inside a pod": (
        f"0::/kubepods/pod{UID}/{ID}/kubepods/burstable/pod{STATIC}/{OTHER}",
        (CgroupPod(UID, ID), CgroupPod(STATIC, OTHER)),
    ),
    "static pod": (
        f"0::{BURST}-pod{STATIC}.slice/cri-containerd-{ID}.scope",
        (CgroupPod(STATIC, ID),),
    ),
    "conmon": (f"0::{BURST}-pod{LOW}.slice/crio-conmon-{ID}.scope", (CgroupPod(UID, ""),)),
    "pod itself": (f"0::/kubepods/pod{UID}", (CgroupPod(UID, ""),)),
    "host": ("0::/system.slice/kubelet.service", ()),
    "podman, no kubernetes": (f"0::/machine.slice/libpod-{ID}.scope", ()),
    "user's folder": (f"0::/user.slice/mypod{UID}", ()),
    "empty": ("", ()),
}


@pytest.mark.parametrize("which", PATHS)
def test_paths(which: str) -> None:
    text, expected = PATHS[which]
    assert parse_cgroup(text) == expected


def _proc(root: Path, *, second: str = "kthreadd\n") -> ProcReader:
    (root / "2").mkdir()
    (root / "2" / "comm").write_text(second)
    return ProcReader(root=root)


def test_processes_of_a_procfs(tmp_path: Path) -> None:
    reader = _proc(tmp_path)
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "cgroup").write_text(f"0::/kubepods/pod{UID}/{ID}\n")
    assert reader.trouble() == ""
    assert reader.pods_of(77) == FOUND
    assert reader.pods_of(78) == ()


def test_a_pid_namespace_of_our_own_is_noticed(tmp_path: Path) -> None:
    assert "hostPID: true" in ProcReader(root=tmp_path).trouble()
    assert "hostPID: true" in _proc(tmp_path, second="bash\n").trouble()


def test_this_machines_own_procfs_is_read() -> None:
    ProcReader(root=Path("/proc")).trouble()
    assert isinstance(ProcReader(root=Path("/proc")).pods_of(1), tuple)
