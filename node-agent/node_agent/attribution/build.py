"""From the answers of all sources to one :class:`PodMap`. Pure.

Device ids are joined with the devices as NVML enumerated them: a look into a dictionary, so
that an id that cannot be found costs nothing, however often it is asked for. There is no call
into the driver here, and none in a scrape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from node_agent.attribution.cgroups import CgroupPod
from node_agent.attribution.cluster import DraDevice, DraKey, PodInfo
from node_agent.attribution.device_ids import DeviceId, parse_cdi_name, parse_device_id
from node_agent.attribution.model import DraRef, Lookup, PodMap, PodRef, ProcessOwner
from node_agent.attribution.pod_folders import NO_NAMES, Names
from node_agent.attribution.pod_resources import Claim, ClaimDevice, Container, Pod
from node_agent.nvml.model import Device, MigInstance


MAX_UNRESOLVED: Final = 20
_K = TypeVar("_K")


class Sources(NamedTuple):
    """The latest answer of each source; empty where there is none."""

    at: float = 0.0
    pods: tuple[Pod, ...] = ()
    devices: tuple[Device, ...] = ()
    infos: tuple[PodInfo, ...] = ()
    slices: Mapping[DraKey, DraDevice] = {}
    names: Names = NO_NAMES
    processes: Mapping[int, tuple[CgroupPod, ...]] = {}
    off: Mapping[Lookup, str] = {}


class _Place(NamedTuple):
    """Where a holding is: a GPU by UUID; one of its instances (``gi`` None: unknown which)."""

    gpu: str
    mig: bool = False
    gi: int | None = None


class _Holding(NamedTuple):
    place: _Place
    ref: PodRef


def build_pod_map(sources: Sources) -> PodMap:
    """Join everything."""
    hardware = Hardware(sources.devices)
    identities = Identities(sources)
    holdings: list[_Holding] = []
    unresolved: dict[str, None] = {}
    for pod in sources.pods:
        if identities.ended(pod.namespace, pod.name):
            continue
        for container in pod.containers:
            base = identities.ref(pod.namespace, pod.name, container.name)
            for what, place, ref in _holdings(base, container, hardware, sources.slices):
                if place is None:
                    unresolved[what] = None
                else:
                    holdings.append(_Holding(place, ref))
    return PodMap(
        at=sources.at,
        devices=_grouped((h.place.gpu, h.ref) for h in holdings if not h.place.mig),
        instances=_grouped(((h.place.gpu, h.place.gi), h.ref) for h in holdings if h.place.mig),
        pids={
            pid: owner
            for pid, pods in sources.processes.items()
            if (owner := identities.owner(pods)) is not None
        },
        unresolved=tuple(unresolved)[:MAX_UNRESOLVED],
        truncated=max(0, len(unresolved) - MAX_UNRESOLVED),
        off=sources.off,
    )


def _holdings(
    base: PodRef,
    container: Container,
    hardware: Hardware,
    slices: Mapping[DraKey, DraDevice],
) -> Iterator[tuple[str, _Place | None, PodRef]]:
    """Each device of a container: its id for people, its place if known, who holds it."""
    for resource, ids in container.devices:
        for text in ids:
            parsed = parse_device_id(text)
            place = hardware.place(parsed) if parsed is not None else None
            replica = parsed.replica if parsed is not None else ""
            yield text, place, msgspec.structs.replace(base, resource=resource, vgpu=replica)
    for claim in container.claims:
        for device in claim.devices:
            known = slices.get(DraKey(device.driver, device.pool, device.device))
            place = hardware.dra_place(known) if known is not None else None
            place = place or hardware.cdi_place(device.cdi)
            if place is None and known is None and not _is_gpu(device):
                continue  # a network card's claim is not ours to resolve
            ref = msgspec.structs.replace(base, dra=_dra_ref(claim, device, known))
            yield f"{device.driver}/{device.pool}/{device.device}", place, ref


def _is_gpu(device: ClaimDevice) -> bool:
    return device.driver == "gpu.nvidia.com" or device.driver.endswith(".gpu.nvidia.com")


def _dra_ref(claim: Claim, device: ClaimDevice, known: DraDevice | None) -> DraRef:
    is_mig = known is not None and (known.kind == "mig" or known.uuid.startswith("mig-"))
    return DraRef(
        claim=claim.name,
        claim_namespace=claim.namespace,
        driver=device.driver,
        pool=device.pool,
        device=device.device,
        mig_profile=known.profile if known is not None else "",
        mig_uuid=known.uuid if known is not None and is_mig else "",
    )


def _grouped(found: Iterator[tuple[_K, PodRef]]) -> dict[_K, tuple[PodRef, ...]]:
    """Holders by place, sorted, each once; marked where several containers share one."""
    groups: defaultdict[_K, set[PodRef]] = defaultdict(set)
    for key, ref in found:
        groups[key].add(ref)
    return {key: _marked(refs) for key, refs in groups.items()}


def _marked(refs: set[PodRef]) -> tuple[PodRef, ...]:
    ordered = sorted(refs, key=lambda ref: (ref.pod, ref.container, ref.vgpu, ref.resource))
    if len({(ref.pod, ref.container) for ref in refs}) == 1:
        return tuple(ordered)
    return tuple(msgspec.structs.replace(ref, shared=True) for ref in ordered)


class Hardware:
    """The devices as NVML has them, by everything that an id may name them by."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._minors = {d.minor: d.uuid.lower() for d in devices if d.minor is not None}
        self._mig: dict[str, _Place] = {}
        self._instances: dict[str, tuple[MigInstance, ...]] = {}
        for device in devices:
            gpu = device.uuid.lower()
            self._instances[gpu] = device.mig
            for mig in device.mig:
                self._mig[mig.uuid.lower()] = _Place(gpu, mig=True, gi=mig.gi)

    def place(self, parsed: DeviceId) -> _Place | None:
        """Where a device id points to, None if no such device is known."""
        if parsed.mig:
            return self._mig.get(parsed.mig)
        gpu = parsed.gpu
        if parsed.minor is not None:
            gpu = self._minors.get(parsed.minor, "")
        if not gpu:
            return None
        return _Place(gpu, mig=parsed.gi is not None, gi=parsed.gi)

    def dra_place(self, known: DraDevice) -> _Place | None:
        """Where a DRA device is, by its attributes.

        A MIG device that is made when it is claimed has no UUID in its slice: then the only
        instance of that profile on its GPU is it, and of several none is.
        """
        parsed = parse_device_id(known.uuid)
        place = self.place(parsed) if parsed is not None else None
        if place is not None or not known.parent:
            return place
        fitting = {
            mig.gi
            for mig in self._instances.get(known.parent, ())
            if mig.profile.lower() == known.profile.lower()
        }
        return _Place(known.parent, mig=True, gi=fitting.pop() if len(fitting) == 1 else None)

    def cdi_place(self, names: Sequence[str]) -> _Place | None:
        """Where the first CDI name with a known UUID points to."""
        parsed = (parse_cdi_name(name) for name in names)
        places = (self.place(device) for device in parsed if device is not None)
        return next((place for place in places if place is not None), None)


class Identities:
    """Pods by name and by uid, from whichever source knows them."""

    def __init__(self, sources: Sources) -> None:
        self._infos = {(info.namespace, info.name): info for info in sources.infos}
        self._names: dict[str, tuple[str, str]] = dict(sources.names.pods)
        self._names |= {
            uid: (info.namespace, info.name) for info in sources.infos for uid in info.uids
        }
        self._uids: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for uid, (namespace, name) in sources.names.pods.items():
            self._uids[namespace, name].add(uid)
        self._containers = dict(sources.names.containers)
        for info in sources.infos:
            self._containers |= info.containers
        self._only = {
            (pod.namespace, pod.name): pod.containers[0].name
            for pod in sources.pods
            if len(pod.containers) == 1
        }

    def ended(self, namespace: str, name: str) -> bool:
        """Whether the pod is known to be over, although the kubelet may list it still."""
        info = self._infos.get((namespace, name))
        return info is not None and info.ended

    def ref(self, namespace: str, name: str, container: str) -> PodRef:
        """A container, with what is known of its pod."""
        info = self._infos.get((namespace, name))
        if info is not None:
            return PodRef(
                namespace=namespace,
                name=name,
                container=container,
                uid=info.uid,
                phase=info.phase,
                labels=info.labels,
            )
        # A pod of a StatefulSet leaves folders of its predecessors: only one uid is certain.
        uids = self._uids.get((namespace, name), set())
        uid = next(iter(uids)) if len(uids) == 1 else ""
        return PodRef(namespace=namespace, name=name, container=container, uid=uid)

    def owner(self, pods: Sequence[CgroupPod]) -> ProcessOwner | None:
        """The pod of a process: of several nested ones the outermost that a source knows."""
        if not pods:
            return None
        found = next((pod for pod in pods if pod.uid in self._names), pods[0])
        name = self._names.get(found.uid)
        if name is None:
            return ProcessOwner(pod_uid=found.uid, container_id=found.container_id)
        container = self._containers.get(found.container_id) or self._only.get(name, "")
        ref = self.ref(*name, container)
        if not ref.uid or found.uid != ref.uid:
            ref = self._of_uid(ref, found.uid)
        return ProcessOwner(pod_uid=found.uid, container_id=found.container_id, pod=ref)

    def _of_uid(self, ref: PodRef, uid: str) -> PodRef:
        """An earlier pod of the same name has its own uid, and no labels that we know."""
        info = self._infos.get((ref.namespace, ref.name))
        if info is not None and uid in info.uids:
            return ref
        return msgspec.structs.replace(ref, uid=uid, phase="", labels=())
