"""Renders our own families about GPUs, NVML, processes and pods from the latest view.

Bounded: at most :data:`MAX_PROCESSES` processes have rows of their own, those with the most
memory first; containers are as many as the kubelet lets on the node.
"""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, Final, NamedTuple

from node_agent.contract import FaultKind
from node_agent.nvml.model import NvmlState
from node_agent.publish import device_families as own
from node_agent.publish.dcgm_rows import parts_of
from node_agent.publish.exposition import Block, block, is_valid, number, pairs
from node_agent.publish.history import CLOCK_REASONS
from node_agent.sources.pci_sysfs import DeviceClass


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from node_agent.attribution.model import PodMap, PodRef
    from node_agent.nvml.model import Device, NvmlView, Process
    from node_agent.publish.dcgm import History
    from node_agent.publish.dcgm_rows import Part
    from node_agent.publish.exposition import Family

MAX_PROCESSES: Final = 128
_FEATURES: Final = ("ecc", "fabric", "gpm", "mig", "nvlink", "row_remap")
_Pairs = tuple["Mapping[str, str]", float]


class DeviceMetrics:
    """Renders; remembers the text in front of each value for as long as a device is the same."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, int | None], tuple[Device, list[str]]] = {}

    def blocks(self, view: NvmlView, pods: PodMap, history: History) -> Iterator[Block]:
        """Everything of this view."""
        parts = [
            (device, part)
            for device in view.devices
            for part in parts_of(view, device, now=history.now)
        ]
        rendered = (*self._measured(parts), *_all_others(view, pods, history))
        yield from (each for each in rendered if each.samples)

    def _measured(self, parts: Iterable[tuple[Device, Part]]) -> Iterator[Block]:
        blocks: dict[Family, list[tuple[str, str]]] = {}
        names = {}
        for device, part in parts:
            key = (device.uuid, part.gi)
            known = self._names.get(key)
            if known is None or known[0] is not device:
                known = (device, _names(device, part))
            names[key] = known
            limits = device.limits if part.gi is None else {}
            for sample, name in zip(own.SAMPLES, known[1], strict=True):
                value = (limits if sample.limit else part.values).get(sample.quantity)
                if value is not None and is_valid(sample.family.kind, value):
                    text = number(value * sample.times)
                    blocks.setdefault(sample.family, []).append((name, text))
        self._names = names
        for family, samples in blocks.items():
            yield Block(family, samples)


def _all_others(view: NvmlView, pods: PodMap, history: History) -> Iterator[Block]:
    yield from _identities(view)
    yield from _readings(view)
    yield from _clock_events(view, history)
    yield from _lost(view, history)
    yield from _processes(view, pods)
    yield from _holders(view, pods)
    yield from _nvml(view)


def _names(device: Device, part: Part) -> list[str]:
    """The text in front of the value for each row of the table."""
    identity = pairs(_identity(device, part.gi))
    return [
        f"{sample.family.name}{{{identity}"
        + (f",{pairs(dict([sample.label]))}" if sample.label else "")
        + "}"
        for sample in own.SAMPLES
    ]


def _identity(device: Device, gi: int | None = None) -> dict[str, str]:
    labels = {"gpu": str(device.index), "UUID": device.uuid, "pci": device.pci}
    return labels if gi is None else {**labels, "gi": str(gi)}


def _identities(view: NvmlView) -> Iterator[Block]:
    driver = view.driver
    versions = {
        "driver_version": driver.driver_version if driver else "",
        "cuda_version": driver.cuda_version if driver else "",
    }
    yield block(
        own.DEVICE_INFO,
        (
            (
                {
                    **_identity(device),
                    "name": device.name,
                    "serial": device.serial,
                    "vbios": device.vbios,
                    "compute_capability": device.compute_capability,
                    "minor": "" if device.minor is None else str(device.minor),
                    **versions,
                },
                1.0,
            )
            for device in view.devices
        ),
    )
    yield block(
        own.MIG_INFO,
        (
            (
                {
                    **_identity(device, mig.gi),
                    "ci": "" if mig.ci is None else str(mig.ci),
                    "mig_uuid": mig.uuid,
                    "profile": mig.profile,
                },
                1.0,
            )
            for device in view.devices
            for mig in device.mig
        ),
    )
    yield block(
        own.FEATURE,
        (
            ({**_identity(device), "feature": feature}, float(feature in device.supports))
            for device in view.devices
            for feature in _FEATURES
        ),
    )


def _readings(view: NvmlView) -> Iterator[Block]:
    known = [(d, view.readings[d.uuid]) for d in view.devices if d.uuid in view.readings]
    yield block(own.READ_AT, ((_identity(device), reading.at) for device, reading in known))
    yield block(
        own.READ_ERRORS,
        ((_identity(device), float(len(reading.errors))) for device, reading in known),
    )


def _clock_events(view: NvmlView, history: History) -> Iterator[Block]:
    now: list[_Pairs] = []
    began: list[_Pairs] = []
    for device in view.devices:
        part = parts_of(view, device, now=history.now)[0]
        bits = part.values.get("clocks_event_reasons")
        if bits is not None:
            now += [
                ({**_identity(device), "reason": name}, float(bool(int(bits) & bit)))
                for name, bit in CLOCK_REASONS.items()
            ]
        counts = history.clocks.transitions.get(device.uuid, {})
        began += [
            ({**_identity(device), "reason": name}, float(count)) for name, count in counts.items()
        ]
    yield block(own.CLOCK_ACTIVE, now)
    yield block(own.CLOCK_TRANSITIONS, began)


def _lost(view: NvmlView, history: History) -> Iterator[Block]:
    """A row for every GPU that anyone ever saw, whether or not it is still there."""
    health = history.health
    lost_pci = {fault.pci for fault in health.faults.values() if fault.kind is FaultKind.LOST}
    by_pci = {device.pci: device for device in view.devices}
    uuids = {device.uuid for device in view.devices}
    rows: list[_Pairs] = []
    for pci in sorted(
        {*by_pci, *(p for p, kind in health.expected.items() if kind is DeviceClass.GPU)}
    ):
        device = by_pci.get(pci)
        uuid = device.uuid if device else health.uuids.get(pci, "")
        rows.append(({"UUID": uuid, "pci": pci}, float(pci in lost_pci or uuid in view.lost)))
    rows += [({"UUID": uuid, "pci": ""}, 1.0) for uuid in view.lost if uuid not in uuids]
    yield block(own.DEVICE_LOST, rows)


class _Use(NamedTuple):
    """What one process or container uses of one GPU or instance."""

    memory: float | None
    sm: float | None

    def plus(self, process: Process) -> _Use:
        return _Use(_sum(self.memory, process.memory_bytes), _sum(self.sm, _ratio(process.sm_util)))


_NOTHING_USED: Final = _Use(None, None)


def _sum(left: float | None, right: float | None) -> float | None:
    if left is None or right is None:
        return left if right is None else right
    return left + right


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _processes(view: NvmlView, pods: PodMap) -> Iterator[Block]:
    by_uuid = {device.uuid: device for device in view.devices}
    known = [process for process in view.processes if process.uuid in by_uuid]
    tally = Tally((process.uuid, process.kind) for process in known)
    yield block(
        own.PROCESSES,
        (
            ({**_identity(by_uuid[uuid]), "kind": kind}, float(count))
            for (uuid, kind), count in sorted(tally.items())
        ),
    )
    uses: dict[tuple[tuple[str, str], ...], _Use] = {}
    of_pods: dict[tuple[tuple[str, str], ...], _Use] = {}
    largest = sorted(known, key=lambda p: (-(p.memory_bytes or 0), p.pid))
    seen = set()
    for rank, process in enumerate(largest):
        pod = pods.of_pid(process.pid)
        device = _identity(by_uuid[process.uuid], process.gi)
        # One that computes and draws stands in both lists of NVML, each time with all it uses.
        name = (process.uuid, process.gi, process.pid)
        if pod is not None and name not in seen:
            seen.add(name)
            key = tuple({**device, **_pod(pod)}.items())
            of_pods[key] = of_pods.get(key, _NOTHING_USED).plus(process)
        if rank < MAX_PROCESSES:
            own_labels = {"pid": str(process.pid), "kind": process.kind, **_pod(pod)}
            uses[tuple({**device, **own_labels}.items())] = _NOTHING_USED.plus(process)
    yield from _used(own.PROCESS_MEMORY, own.PROCESS_SM, uses)
    yield from _used(own.POD_MEMORY, own.POD_SM, of_pods)


def _used(
    memory: Family, sm: Family, uses: Mapping[tuple[tuple[str, str], ...], _Use]
) -> Iterator[Block]:
    yield block(
        memory, ((dict(k), use.memory) for k, use in uses.items() if use.memory is not None)
    )
    yield block(sm, ((dict(k), use.sm) for k, use in uses.items() if use.sm is not None))


def _pod(pod: PodRef | None) -> dict[str, str]:
    return {
        "namespace": pod.namespace if pod else "",
        "pod": pod.name if pod else "",
        "container": pod.container if pod else "",
    }


def _holders(view: NvmlView, pods: PodMap) -> Iterator[Block]:
    rows: list[_Pairs] = []
    for device in view.devices:
        rows += [
            ({**_identity(device), **_pod(pod), "gi": "", "shared": _flag(shared=pod.shared)}, 1.0)
            for pod in pods.of_device(device.uuid)
        ]
        rows += [
            (
                {
                    **_identity(device),
                    **_pod(pod),
                    "gi": str(gi),
                    "shared": _flag(shared=pod.shared),
                },
                1.0,
            )
            for gi in sorted({instance.gi for instance in device.mig})
            for pod in pods.of_instance(device.uuid, gi)
        ]
    yield block(own.POD_DEVICE, rows)


def _flag(*, shared: bool) -> str:
    return "true" if shared else "false"


def _nvml(view: NvmlView) -> Iterator[Block]:
    yield block(
        own.NVML_STATE,
        (({"state": state.value}, float(state is view.state)) for state in NvmlState),
    )
    if view.since:
        yield block(own.NVML_SINCE, [({}, view.since)])
    calls = sorted(view.calls.items())
    yield block(own.NVML_CALLS, (({"call": name}, s.count) for name, s in calls))
    yield block(own.NVML_ERRORS, (({"call": name}, s.errors) for name, s in calls))
    yield block(own.NVML_SECONDS, (({"call": name}, s.total_seconds) for name, s in calls))
    yield block(own.NVML_LAST, (({"call": name}, s.last_seconds) for name, s in calls))
    yield block(own.NVML_EVENTS, (({"event": k}, n) for k, n in sorted(view.events.items())))
    yield block(own.NVML_RESTARTS, [({}, view.restarts)])
    yield block(own.NVML_ABANDONED, [({}, view.abandoned)])
