"""Bytes of the API server to the narrow objects of `objects`, and nothing else.

The only module that knows how the JSON is laid out, and (with `objects`) the only
one that knows msgspec. Fields that nobody asks for are skipped by the parser and
never built, which is where the factor of 28 over typed clients comes from.

One odd object must not hide 4,999 good ones: a page is decoded in one go, and
only when that fails object by object, so that the odd one is named and the rest
kept. A condition without status or a taint without effect is not odd, merely
incomplete: every field has a default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from remediator.kube.managed import Managed, set_by_others
from remediator.kube.objects import (
    Address,
    Condition,
    ConfigMap,
    Lease,
    Node,
    Status,
    Taint,
)


if TYPE_CHECKING:
    from collections.abc import Callable


class Meta(msgspec.Struct, gc=False, rename="camel"):
    """`metadata` as it comes over the wire."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    generation: int = 0


class WireObject(msgspec.Struct, gc=False):
    """Any object, only its metadata."""

    metadata: Meta = msgspec.field(default_factory=Meta)


class _NodeSpec(msgspec.Struct, gc=False):
    unschedulable: bool | None = None
    taints: tuple[Taint, ...] | None = None


class _NodeInfo(msgspec.Struct, gc=False):
    boot_id: str = msgspec.field(default="", name="bootID")


class _NodeStatus(msgspec.Struct, gc=False, rename="camel"):
    conditions: tuple[Condition, ...] | None = None
    addresses: tuple[Address, ...] | None = None
    node_info: _NodeInfo | None = None


class _NodeMeta(Meta, gc=False, rename="camel"):
    managed_fields: tuple[Managed, ...] | None = None


class WireNode(WireObject, gc=False):
    """A Node as it comes over the wire."""

    metadata: _NodeMeta = msgspec.field(default_factory=_NodeMeta)
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class WireConfigMap(WireObject):
    """A ConfigMap as it comes over the wire."""

    data: dict[str, str] | None = None


class _LeaseSpec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: float | None = None
    lease_transitions: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None


class WireLease(WireObject):
    """A Lease as it comes over the wire."""

    spec: _LeaseSpec | None = None


class ListMeta(msgspec.Struct, rename="camel"):
    """`metadata` of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


JsonBytes: TypeAlias = bytes | memoryview | msgspec.Raw
W = TypeVar("W", bound=WireObject)
T = TypeVar("T")


class _WireList(msgspec.Struct, Generic[W]):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[W] | None = None


class _RawList(msgspec.Struct):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


class _WireEvent(msgspec.Struct, Generic[W]):
    type: str
    object: W


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Page(NamedTuple, Generic[W]):
    """One page of a LIST; `unreadable` maps the names of odd objects to what is odd."""

    items: list[W]
    unreadable: dict[str, str]
    resource_version: str
    continue_token: str


class Event(NamedTuple, Generic[W]):
    """One watch event: `object`, or `error` (type ERROR), or `unreadable` (name, what is odd)."""

    type: str
    object: W | None = None
    error: Status | None = None
    unreadable: tuple[str, str] | None = None


class DecodeError(ValueError):
    """The bytes are no JSON of the expected kind: a cut stream or no API server."""


class Named(Protocol):
    """What reflector and store need to know of an object."""

    @property
    def name(self) -> str:
        """`metadata.name`."""

    @property
    def uid(self) -> str:
        """`metadata.uid`."""

    @property
    def resource_version(self) -> str:
        """`metadata.resourceVersion`."""


class Codec(Generic[W, T]):
    """Reads pages and watch events of one kind.

    Args:
        wire: how one object comes over the wire.
        narrow: builds the immutable object from it; is also given the previous
            version of the object, whose unchanged parts it may share.
    """

    def __init__(self, wire: type[W], narrow: Callable[[W, T | None], T]) -> None:
        self.narrow = narrow
        self._object = msgspec.json.Decoder(wire)
        # mypy cannot follow a generic whose argument is a run-time value.
        self._page: msgspec.json.Decoder[_WireList[W]] = msgspec.json.Decoder(
            _WireList[wire]  # type: ignore[valid-type]
        )
        self._event: msgspec.json.Decoder[_WireEvent[W]] = msgspec.json.Decoder(
            _WireEvent[wire]  # type: ignore[valid-type]
        )

    def page(self, body: JsonBytes) -> Page[W]:
        """Read one page of a LIST."""
        try:
            page = self._page.decode(body)
        except msgspec.DecodeError:
            return self._page_one_by_one(body)
        meta = page.metadata
        return Page(page.items or [], {}, meta.resource_version, meta.continue_)

    def event(self, line: JsonBytes) -> Event[W]:
        """Read one line of a WATCH."""
        try:
            event = self._event.decode(line)
        except msgspec.DecodeError:
            return self._odd_event(line)
        if event.type == "ERROR":  # a Status without the field `status` reads as an object
            return self._odd_event(line)
        return Event(event.type, event.object)

    def one(self, body: JsonBytes) -> T:
        """Read one object, as a GET returns it."""
        try:
            return self.narrow(self._object.decode(body), None)
        except msgspec.DecodeError as error:
            raise DecodeError(str(error)) from error

    def _page_one_by_one(self, body: JsonBytes) -> Page[W]:
        try:
            page = _RAW_LIST.decode(body)
        except msgspec.DecodeError as error:
            raise DecodeError(f"not a list of objects: {error}") from error
        items: list[W] = []
        unreadable: dict[str, str] = {}
        for raw in page.items or ():
            try:
                items.append(self._object.decode(raw))
            except msgspec.DecodeError as error:
                unreadable[_name_of(raw)] = str(error)
        return Page(items, unreadable, page.metadata.resource_version, page.metadata.continue_)

    def _odd_event(self, line: JsonBytes) -> Event[W]:
        try:
            event = _RAW_EVENT.decode(line)
        except msgspec.DecodeError as error:
            raise DecodeError(f"not a watch event: {error}") from error
        if event.type == "ERROR":
            return Event(event.type, error=decode_status(event.object))
        try:
            return Event(event.type, self._object.decode(event.object))
        except msgspec.DecodeError as error:
            return Event(event.type, unreadable=(_name_of(event.object), str(error)))


_RAW_LIST = msgspec.json.Decoder(_RawList)
_RAW_EVENT = msgspec.json.Decoder(_RawEvent)
_ANY_OBJECT = msgspec.json.Decoder(WireObject)
_STATUS = msgspec.json.Decoder(Status)


def _name_of(raw: JsonBytes) -> str:
    try:
        return _ANY_OBJECT.decode(raw).metadata.name or "(no name)"
    except msgspec.DecodeError:
        return "(no name)"


def decode_status(body: JsonBytes) -> Status:
    """A Status object; of anything else the text itself, cut short, as its message."""
    try:
        return _STATUS.decode(body)
    except msgspec.DecodeError:
        return Status(message=bytes(memoryview(body)[:200]).decode(errors="replace").strip())


def decode_meta(body: JsonBytes) -> Meta:
    """Only the metadata of an object, as the answer to a write: its version stands in it."""
    try:
        meta = _ANY_OBJECT.decode(body).metadata
    except msgspec.DecodeError as error:
        raise DecodeError(str(error)) from error
    if not meta.resource_version:
        raise DecodeError("it has no resourceVersion")
    return meta


MAX_REASON: Final = 1024
MAX_MESSAGE: Final = 32768
"""Characters of a condition's texts: the API's own limits, which it does not keep for nodes."""


class StringPool:
    """Lets equal strings be one object. Bounded: full of one-off texts, it starts anew."""

    def __init__(self, limit: int = 50_000) -> None:
        self._pool: dict[str, str] = {}
        self._limit = limit

    def __call__(self, text: str) -> str:
        """The one copy of `text`."""
        pool = self._pool
        if len(pool) >= self._limit:
            pool.clear()
        return pool.setdefault(text, text)


class NodeNarrower:
    """Keeps of a node what decisions rest on, sharing what did not change.

    Args:
        keep_annotations: key prefixes of the annotations to keep.
        others_up_to: keep the others, too, each cut off behind this many characters.
    """

    def __init__(
        self,
        keep_annotations: tuple[str, ...] = ("gpu-remediator.io/",),
        *,
        others_up_to: int = 0,
    ) -> None:
        self._keep = keep_annotations
        self._others_up_to = others_up_to
        self._pool = StringPool()

    def __call__(self, wire: WireNode, old: Node | None) -> Node:
        """The node of `wire`; parts equal to those of `old` are the same objects."""
        meta, spec = wire.metadata, wire.spec or _NodeSpec()
        status = wire.status or _NodeStatus()
        annotations = meta.annotations or {}
        kept = self._annotations(annotations)
        addresses = status.addresses or ()
        taints = spec.taints or ()
        if old is not None:
            addresses = old.addresses if addresses == old.addresses else addresses
            taints = old.taints if taints == old.taints else taints
            kept = old.annotations if kept == old.annotations else kept
        boot_id = status.node_info.boot_id if status.node_info else ""
        return Node(
            name=meta.name if old is None else old.name,
            uid=meta.uid if old is None or meta.uid != old.uid else old.uid,
            resource_version=meta.resource_version,
            labels=self._labels(meta.labels or {}, old),
            annotations=kept,
            dropped_annotations=len(annotations) - len(kept),
            created=meta.creation_timestamp,
            deleted=meta.deletion_timestamp,
            unschedulable=bool(spec.unschedulable),
            taints=taints,
            conditions=self._conditions(status.conditions or (), old),
            addresses=addresses,
            boot_id=old.boot_id if old is not None and old.boot_id == boot_id else boot_id,
            cordoned_by_others=bool(spec.unschedulable)
            and set_by_others(meta.managed_fields or ()),
        )

    def _annotations(self, annotations: dict[str, str]) -> dict[str, str]:
        limit, pool = self._others_up_to, self._pool
        if not limit:
            return {k: v for k, v in annotations.items() if k.startswith(self._keep)}
        return {
            pool(k): v if k.startswith(self._keep) else pool(v[:limit])
            for k, v in annotations.items()
        }

    def _labels(self, labels: dict[str, str], old: Node | None) -> dict[str, str]:
        if old is not None and labels == old.labels:
            return old.labels
        pool = self._pool
        return {pool(key): pool(value) for key, value in labels.items()}

    def _conditions(
        self, conditions: tuple[Condition, ...], old: Node | None
    ) -> tuple[Condition, ...]:
        if old is not None and conditions == old.conditions:
            return old.conditions
        pool = self._pool
        return tuple(
            Condition(
                pool(c.type),
                pool(c.status),
                pool(c.reason[:MAX_REASON]),
                pool(c.message[:MAX_MESSAGE]),
                c.last_heartbeat_time,
                c.last_transition_time,
            )
            for c in conditions
        )


def narrow_configmap(wire: WireConfigMap, _old: ConfigMap | None) -> ConfigMap:
    """The ConfigMap of `wire`."""
    meta = wire.metadata
    return ConfigMap(meta.name, meta.namespace, meta.uid, meta.resource_version, wire.data or {})


def narrow_lease(wire: WireLease, _old: Lease | None) -> Lease:
    """The Lease of `wire`."""
    meta, spec = wire.metadata, wire.spec or _LeaseSpec()
    return Lease(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        holder=spec.holder_identity or "",
        duration=spec.lease_duration_seconds or 0.0,
        transitions=spec.lease_transitions or 0,
        acquired=spec.acquire_time,
        renewed=spec.renew_time,
    )
