"""Who uses what, as the rest of the agent reads it: one immutable :class:`PodMap`.

Invariants:

- Nothing is guessed. A device id that cannot be joined with a device stands in
  ``unresolved``; a field that no source gave is empty.
- A GPU with several holders (time-slicing, MPS, a shared claim) lists them all, each marked
  ``shared``: which of them caused a device's value is not known, and the reader decides.
- What is switched off or does not work is in ``off`` with its reason; all else goes on.

Imports nothing but msgspec.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec


class Lookup(StrEnum):
    """A source of attribution. Each can be missing without harm to the others."""

    POD_RESOURCES = "pod_resources"
    """The kubelet: which container holds which device."""
    PROCESSES = "processes"
    """/proc: which pod a process belongs to."""
    PODS = "pods"
    """The API server: uid, labels and phase of pods."""
    RESOURCE_SLICES = "resource_slices"
    """The API server: which GPU a DRA device is."""


CLUSTER_LOOKUPS: Final = frozenset((Lookup.PODS, Lookup.RESOURCE_SLICES))
"""Those that ask the API server: each only if a setting says so."""


class DraRef(msgspec.Struct, frozen=True, kw_only=True):
    """The claim by which a container holds a device, and what its ResourceSlice says."""

    claim: str
    claim_namespace: str
    driver: str
    pool: str
    device: str
    mig_profile: str = ""
    mig_uuid: str = ""


class PodRef(msgspec.Struct, frozen=True, kw_only=True):
    """One container that holds a device, or that a process runs in.

    ``uid``, ``phase`` and ``labels`` are empty where no source gives them; ``labels`` are
    those on the allow-list, sorted. ``resource`` is as ``nvidia.com/gpu``, empty for DRA.
    ``vgpu`` is the replica's number or name on a shared device.
    """

    namespace: str
    name: str
    container: str = ""
    uid: str = ""
    phase: str = ""
    resource: str = ""
    vgpu: str = ""
    shared: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    dra: DraRef | None = None

    @property
    def pod(self) -> str:
        """``namespace/name``, as in the fault annotation."""
        return f"{self.namespace}/{self.name}"


class ProcessOwner(msgspec.Struct, frozen=True, kw_only=True):
    """What the cgroup of a process says, and the pod if its name is known too."""

    pod_uid: str
    container_id: str = ""
    pod: PodRef | None = None


_NOBODY: tuple[PodRef, ...] = ()


class PodMap(msgspec.Struct, frozen=True, kw_only=True):
    """All of it at one moment. Replaced as a whole, never changed.

    ``at``: unix seconds of the kubelet's last answer, 0 before the first. While the kubelet
    does not answer, the last answer stays: its age tells. ``instances`` is keyed by GPU UUID
    and GPU instance id; id None: on that GPU, instance unknown. ``truncated`` counts
    ids beyond those that ``unresolved`` names.
    """

    at: float = 0.0
    devices: Mapping[str, tuple[PodRef, ...]] = {}
    instances: Mapping[tuple[str, int | None], tuple[PodRef, ...]] = {}
    pids: Mapping[int, ProcessOwner] = {}
    unresolved: tuple[str, ...] = ()
    truncated: int = 0
    off: Mapping[Lookup, str] = {}

    def of_device(self, uuid: str) -> tuple[PodRef, ...]:
        """Holders of the whole GPU."""
        return self.devices.get(uuid.lower(), _NOBODY)

    def of_instance(self, uuid: str, gi: int) -> tuple[PodRef, ...]:
        """Holders of one MIG GPU instance of this GPU."""
        return self.instances.get((uuid.lower(), gi), _NOBODY)

    def of_pid(self, pid: int) -> PodRef | None:
        """The pod of a process that NVML listed, if its name is known."""
        owner = self.pids.get(pid)
        return owner.pod if owner is not None else None

    def on_gpu(self, uuid: str) -> tuple[PodRef, ...]:
        """Everyone on this GPU: holders of the whole, then of its instances."""
        key = uuid.lower()
        found = list(self.devices.get(key, _NOBODY))
        for (parent, _), refs in self.instances.items():
            if parent == key:
                found.extend(refs)
        return tuple(found)

    def hit_by(
        self, uuid: str, *, gi: int | None = None, owner: PodRef | None = None
    ) -> tuple[str, ...]:
        """The pods (``namespace/name``, sorted) that a fault of this GPU hits.

        Args:
            uuid: the GPU; empty if unknown.
            gi: the MIG instance that the fault is about, if it is about one.
            owner: the pod of the process that the fault names, if it is known: the fault is
                then that pod's alone.
        """
        if owner is not None:
            return (owner.pod,)
        if gi is None:
            return tuple(sorted({ref.pod for ref in self.on_gpu(uuid)}))
        refs = self.of_instance(uuid, gi) or self.instances.get((uuid.lower(), None), _NOBODY)
        return tuple(sorted({ref.pod for ref in refs}))
