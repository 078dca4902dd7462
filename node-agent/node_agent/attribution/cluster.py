"""What the API server adds, where the agent may ask it: pods and ResourceSlices of this node.

Both are off unless a setting names them, since each needs a right that the agent does not
have by default: RBAC cannot say "only the pods of your own node".

Decoding is by narrow structs and pure; the request itself is a collaborator
(:data:`Get`), so that this package knows nothing of transports.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from node_agent.attribution.device_ids import Patterns


class ClusterReadError(Exception):
    """The API server did not answer, or refused. The text says what to do.

    Attributes:
        retry_after: seconds that the server asks to be left alone for.
    """

    retry_after: float = 0.0


Get = Callable[[str, str], Awaitable[bytes]]
"""Body of a GET. Arguments: the path with its query; the RBAC resource, for the error.

Raises:
    ClusterReadError: it failed.
"""


class PodInfo(NamedTuple):
    """``containers``: name by container id. ``uids``: the uid, and a static pod's file hash."""

    namespace: str
    name: str
    uid: str
    phase: str
    labels: tuple[tuple[str, str], ...]
    containers: dict[str, str]
    uids: tuple[str, ...]

    @property
    def ended(self) -> bool:
        """Its processes are gone for good; the kubelet may list it still."""
        return self.phase in {"Succeeded", "Failed"}


class DraKey(NamedTuple):
    """What identifies a DRA device."""

    driver: str
    pool: str
    device: str


class DraDevice(NamedTuple):
    """What its driver says of a DRA device. UUIDs in lower case; ``parent`` of a MIG device."""

    kind: str
    uuid: str
    parent: str
    profile: str


_CONFIG_HASH: Final = "kubernetes.io/config.hash"
_MAX_LABEL: Final = 256


def pods_path(node: str) -> str:
    """The pods of one node, from the API server's cache."""
    return f"/api/v1/pods?fieldSelector=spec.nodeName%3D{quote(node)}&resourceVersion=0"


def slices_path(node: str) -> str:
    """The ResourceSlices of one node, from the API server's cache."""
    selector = f"spec.nodeName%3D{quote(node)}"
    return f"/apis/resource.k8s.io/v1/resourceslices?fieldSelector={selector}&resourceVersion=0"


def decode_pods(body: bytes, *, labels: Patterns) -> tuple[PodInfo, ...]:
    """Read a PodList; of the labels those on the allow-list.

    Raises:
        ClusterReadError: it is none.
    """
    return tuple(_pod_info(pod, labels) for pod in _decode(body, _PodList, "PodList").items or ())


def decode_slices(body: bytes) -> dict[DraKey, DraDevice]:
    """Read a ResourceSliceList of resource.k8s.io/v1.

    Of a pool only the slices of its newest generation count: a driver publishes the new ones
    before it removes the old.

    Raises:
        ClusterReadError: it is none.
    """
    slices = _decode(body, _SliceList, "ResourceSliceList").items or ()
    newest: dict[tuple[str, str], int] = {}
    for item in slices:
        pool = (item.spec.driver, item.spec.pool.name)
        newest[pool] = max(newest.get(pool, 0), item.spec.pool.generation)
    return {
        DraKey(spec.driver, spec.pool.name, device.name): _dra_device(device, spec.driver)
        for spec in (item.spec for item in slices)
        if spec.pool.generation == newest[spec.driver, spec.pool.name]
        for device in spec.devices or ()
    }


class _PodMeta(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _ContainerStatus(msgspec.Struct, frozen=True):
    name: str = ""
    container_id: str = msgspec.field(default="", name="containerID")


class _PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    ephemeral_container_statuses: list[_ContainerStatus] | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: _PodMeta = _PodMeta()
    status: _PodStatus = _PodStatus()


class _PodList(msgspec.Struct, frozen=True):
    items: list[_Pod] | None


class _Attribute(msgspec.Struct, frozen=True):
    string: str | None = None


class _SliceDevice(msgspec.Struct, frozen=True):
    name: str
    attributes: dict[str, _Attribute] | None = None


class _Pool(msgspec.Struct, frozen=True):
    name: str
    generation: int = 0


class _SliceSpec(msgspec.Struct, frozen=True):
    driver: str
    pool: _Pool
    devices: list[_SliceDevice] | None = None


class _Slice(msgspec.Struct, frozen=True):
    spec: _SliceSpec


class _SliceList(msgspec.Struct, frozen=True):
    items: list[_Slice] | None


def _decode(body: bytes, kind: Any, name: str) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise ClusterReadError(f"the answer is not a {name}: {error}") from error


def _pod_info(pod: _Pod, labels: Patterns) -> PodInfo:
    meta, status = pod.metadata, pod.status
    chosen = sorted(
        (key, value[:_MAX_LABEL]) for key, value in (meta.labels or {}).items() if labels.match(key)
    )
    statuses = (
        *(status.container_statuses or ()),
        *(status.init_container_statuses or ()),
        *(status.ephemeral_container_statuses or ()),
    )
    file_hash = (meta.annotations or {}).get(_CONFIG_HASH, "")
    return PodInfo(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        phase=status.phase,
        labels=tuple(chosen),
        containers={s.container_id.rpartition("/")[2]: s.name for s in statuses if s.container_id},
        uids=tuple(uid for uid in (meta.uid, file_hash) if uid),
    )


def _dra_device(device: _SliceDevice, driver: str) -> DraDevice:
    given: dict[str, str] = {}
    for key, attribute in (device.attributes or {}).items():
        domain, _, name = key.rpartition("/")
        if domain in {"", driver}:  # an attribute without a domain is the driver's own
            given[name] = attribute.string or ""
    return DraDevice(
        kind=given.get("type", ""),
        uuid=given.get("uuid", "").lower(),
        parent=given.get("parentUUID", "").lower(),
        profile=given.get("profile", ""),
    )
