"""Which rows a DCGM family has, and their labels in DCGM-Exporter's order.

A row is a GPU or a GPU instance of MIG. Labels come in three parts: the identity in a fixed
order, then the label-type fields and what belongs to the family sorted, then the attributes
(pod, Xid text) sorted. The text of a row is made once and reused while device, driver and
pods stay the same.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from node_agent.publish.exposition import pairs


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from node_agent.attribution.model import DraRef, PodMap, PodRef
    from node_agent.nvml.model import Device, Driver, MigInstance, NvmlView
    from node_agent.publish.counters import Field

STALE_SECONDS: Final = 300.0
"""Older values are not shown: as long as Prometheus itself looks back for a sample."""
_MAX_PODS: Final = 64
"""Pods of one device that get rows of their own, by setting."""
_NOT_A_LABEL: Final = re.compile(r"[^a-zA-Z0-9_]")
_NOTHING: Final[Mapping[str, float]] = {}


class Names(StrEnum):
    """The release line of DCGM-Exporter whose names and units are on by default."""

    OLD = "4.8"
    NEW = "4.9"


class HostnameLabel(StrEnum):
    """Spelling of the label with the node's name. ``auto``: as the line of the names has it."""

    AUTO = "auto"
    CAPITAL = "Hostname"
    SMALL = "hostname"
    NONE = "none"

    def text(self, names: Names) -> str:
        """The label itself; empty: none."""
        if self is HostnameLabel.AUTO:
            return "Hostname" if names is Names.OLD else "hostname"
        return "" if self is HostnameLabel.NONE else self.value


class LabelOptions(NamedTuple):
    """How the rows look.

    Attributes:
        hostname: the node's name.
        hostname_label: the label it stands under; empty: no such label.
        old_labels: ``uuid``, ``pod_name``, ``pod_namespace``, ``container_name``, as with
            DCGM-Exporter's ``--use-old-namespace``.
        row_per_pod: a device that several pods share has its rows once for each of them. Sums
            over rows then count it several times, so this is off by default, and such a
            device has no pod labels.
        pod_uid: also the label ``pod_uid``.
    """

    hostname: str
    hostname_label: str = "Hostname"
    old_labels: bool = False
    row_per_pod: bool = False
    pod_uid: bool = False


class Part(NamedTuple):
    """A GPU (``gi`` None) or one GPU instance of it, and its values."""

    gi: int | None
    instance: MigInstance | None
    values: Mapping[str, float]


class Row(NamedTuple):
    """One GPU (``gi`` None) or GPU instance.

    ``values`` are what is known now; ``braces`` the complete labels, one text for each pod.
    """

    device: Device
    gi: int | None
    values: Mapping[str, float]
    braces: tuple[str, ...]
    parts: _Parts

    def braces_with(
        self, labels: Mapping[str, str], attributes: Mapping[str, str]
    ) -> tuple[str, ...]:
        """The complete labels with more of them, for families that have their own."""
        return self.parts.braces(labels, attributes)


class _Parts(NamedTuple):
    """Labels of a row before they are text. ``pods`` has at least one set, maybe empty."""

    identity: str
    fields: Mapping[str, str]
    pods: tuple[Mapping[str, str], ...]

    def braces(self, labels: Mapping[str, str], attributes: Mapping[str, str]) -> tuple[str, ...]:
        middle = pairs(dict(sorted({**self.fields, **labels}.items())))
        texts = []
        for pod in self.pods:
            last = pairs(dict(sorted({**pod, **attributes}.items())))
            texts.append("{" + ",".join(p for p in (self.identity, middle, last) if p) + "}")
        return tuple(texts)


class RowMaker:
    """Makes rows and remembers their texts.

    Args:
        fields: label-type fields that go on every row.
        options: how the rows look.
    """

    def __init__(self, *, fields: Sequence[Field], options: LabelOptions) -> None:
        self._fields = fields
        self._options = options
        self._known: dict[tuple[str, int | None], tuple[tuple[object, ...], Row]] = {}

    def rows(self, view: NvmlView, pods: PodMap, *, now: float) -> list[Row]:
        """All rows of this view: each GPU, followed by its instances."""
        known = {}
        for device in view.devices:
            for part in parts_of(view, device, now=now):
                known[device.uuid, part.gi] = self._row(device, part, view.driver, pods)
        self._known = known
        return [row for _, row in known.values()]

    def _row(
        self, device: Device, part: Part, driver: Driver | None, pods: PodMap
    ) -> tuple[tuple[object, ...], Row]:
        gi, instance, values = part.gi, part.instance, part.values
        holders = pods.of_device(device.uuid) if gi is None else pods.of_instance(device.uuid, gi)
        of = (device, instance, driver, holders)
        before = self._known.get((device.uuid, gi))
        if before is not None and before[0] == of:
            return of, before[1]._replace(values=values)
        parts = _Parts(
            pairs(self._identity(device, instance)),
            self._field_labels(device, driver),
            self._pods(holders),
        )
        return of, Row(device, gi, values, parts.braces({}, {}), parts)

    def _identity(self, device: Device, instance: MigInstance | None) -> dict[str, str]:
        options = self._options
        labels = {
            "gpu": str(device.index),
            "uuid" if options.old_labels else "UUID": device.uuid,
            "pci_bus_id": device.pci_nvml,
            "device": f"nvidia{device.index}",
            "modelName": device.name,
        }
        if instance is not None:
            labels |= {"GPU_I_PROFILE": instance.profile, "GPU_I_ID": str(instance.gi)}
        if options.hostname_label:
            labels[options.hostname_label] = options.hostname
        return labels

    def _field_labels(self, device: Device, driver: Driver | None) -> dict[str, str]:
        known = {
            **device.labels,
            "brand": device.brand,
            "serial": device.serial,
            "vbios": device.vbios,
            "driver_version": driver.driver_version if driver else "",
            "nvml_version": driver.nvml_version if driver else "",
        }
        texts = {field.name: known.get(field.quantity, "") for field in self._fields}
        return {name: text for name, text in texts.items() if text}

    def _pods(self, holders: Sequence[PodRef]) -> tuple[Mapping[str, str], ...]:
        if len(holders) == 1 or (holders and self._options.row_per_pod):
            return tuple(self._pod(holder) for holder in holders[:_MAX_PODS])
        return ({},)

    def _pod(self, pod: PodRef) -> dict[str, str]:
        options = self._options
        old = options.old_labels
        labels = {sanitized(name): value for name, value in pod.labels}
        if pod.dra is not None:
            labels |= _claim(pod.dra)
        if options.pod_uid:
            labels["pod_uid"] = pod.uid
        if options.row_per_pod and pod.vgpu:
            labels["vgpu"] = pod.vgpu
        return labels | {
            "container_name" if old else "container": pod.container,
            "pod_namespace" if old else "namespace": pod.namespace,
            "pod_name" if old else "pod": pod.name,
        }


def _claim(claim: DraRef) -> dict[str, str]:
    labels = {
        "dra_claim_name": claim.claim,
        "dra_claim_namespace": claim.claim_namespace,
        "dra_driver_name": claim.driver,
        "dra_pool_name": claim.pool,
        "dra_device_name": claim.device,
        "dra_mig_profile": claim.mig_profile,
        "dra_mig_device_uuid": claim.mig_uuid,
    }
    return {name: text for name, text in labels.items() if text}


def sanitized(name: str) -> str:
    """A pod label's name as the name of a metric label."""
    text = _NOT_A_LABEL.sub("_", name)
    return f"_{text}" if text[:1].isdigit() else text


def parts_of(view: NvmlView, device: Device, *, now: float) -> list[Part]:
    """The GPU as a whole, and its GPU instances, each with what is known and fresh.

    A quantity that instances have is not on the whole GPU too: sums must not count it twice.
    Nothing is known of a device that does not answer.
    """
    whole = Part(None, None, _values(view, device, device.uuid, now))
    if not device.mig_enabled:
        return [whole]
    parts: dict[int, Part] = {}
    for instance in device.mig:
        values = _values(view, device, instance.uuid, now)
        # Several compute instances share one GPU instance, and its values.
        if instance.gi not in parts or values:
            parts[instance.gi] = Part(instance.gi, instance, values)
    of_parts = {name for part in parts.values() for name in part.values}
    if of_parts:
        rest = {name: value for name, value in whole.values.items() if name not in of_parts}
        whole = whole._replace(values=rest)
    return [whole, *parts.values()]


def _values(view: NvmlView, device: Device, uuid: str, now: float) -> Mapping[str, float]:
    reading = view.readings.get(uuid)
    if reading is None or device.uuid in view.lost or now - reading.at > STALE_SECONDS:
        return _NOTHING
    return reading.values
