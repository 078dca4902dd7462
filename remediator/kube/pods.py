"""The pods of a node, and the two ways to end one: eviction and deletion.

A pod is known here by ``namespace/name``, which is also its name in a store: two
namespaces may have pods of one name on the same node. Both ways carry the pod's UID, so
that a successor of the same name, perhaps on another node, is never meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import msgspec

from remediator.kube.answers import read_answer
from remediator.kube.codec import Codec, Meta, WireObject
from remediator.kube.errors import Gone


if TYPE_CHECKING:
    from collections.abc import Callable

    from remediator.kube.transport import ApiClient


MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
PODS_PATH: Final = "/api/v1/pods"
PAGE_SIZE: Final = 250


class Owner(msgspec.Struct, frozen=True, gc=False):
    """The controller that a pod belongs to."""

    kind: str
    name: str


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """What a drain needs to know of a pod.

    Attributes:
        name: ``namespace/name``.
        owner: its controller; None if nobody would make it anew.
        resources: names of what any of its containers asks for, such as ``nvidia.com/gpu``.
        claims: whether it has resource claims (DRA).
        disk_data: whether it has an emptyDir that is not of memory.
        deleted: RFC 3339, None unless it is terminating.
        deletion_grace: seconds that it was given to end, 0 unless it is terminating.
    """

    name: str
    uid: str
    resource_version: str = ""
    node: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owner: Owner | None = None
    phase: str = ""
    ready: bool = False
    resources: frozenset[str] = frozenset()
    claims: bool = False
    disk_data: bool = False
    deleted: str | None = None
    deletion_grace: float = 0.0

    @property
    def namespace(self) -> str:
        """`metadata.namespace`."""
        return self.name.partition("/")[0]

    @property
    def mirror(self) -> bool:
        """Whether it shows a static pod, which only the kubelet can end."""
        return MIRROR_ANNOTATION in self.annotations

    @property
    def terminating(self) -> bool:
        """Whether its deletion has begun."""
        return self.deleted is not None

    @property
    def completed(self) -> bool:
        """Whether all its containers have ended for good."""
        return self.phase in {"Succeeded", "Failed"}


class _OwnerReference(msgspec.Struct, gc=False):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class _PodMeta(Meta, gc=False):
    owner_references: tuple[_OwnerReference, ...] | None = None
    deletion_grace_period_seconds: float | None = None


class _Resources(msgspec.Struct, gc=False):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


class _Container(msgspec.Struct, gc=False):
    resources: _Resources | None = None


class _EmptyDir(msgspec.Struct, gc=False):
    medium: str = ""


class _Volume(msgspec.Struct, gc=False, rename="camel"):
    empty_dir: _EmptyDir | None = None


class _PodSpec(msgspec.Struct, gc=False, rename="camel"):
    node_name: str = ""
    containers: tuple[_Container, ...] | None = None
    init_containers: tuple[_Container, ...] | None = None
    volumes: tuple[_Volume, ...] | None = None
    resource_claims: tuple[dict[str, Any], ...] | None = None


class _PodCondition(msgspec.Struct, gc=False):
    type: str = ""
    status: str = ""


class _PodStatus(msgspec.Struct, gc=False):
    phase: str = ""
    conditions: tuple[_PodCondition, ...] | None = None


class WirePod(WireObject):
    """A Pod as it comes over the wire; its name becomes ``namespace/name``."""

    metadata: _PodMeta = msgspec.field(default_factory=_PodMeta)
    spec: _PodSpec | None = None
    status: _PodStatus | None = None

    def __post_init__(self) -> None:
        """Name it as it is named here, for whoever keeps pods by name."""
        self.metadata.name = f"{self.metadata.namespace}/{self.metadata.name}"


def narrow_pod(wire: WirePod, _old: Pod | None = None) -> Pod:
    """The Pod of `wire`."""
    meta, spec, status = wire.metadata, wire.spec or _PodSpec(), wire.status or _PodStatus()
    owners = (one for one in meta.owner_references or () if one.controller)
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    asked = [one.resources for one in containers if one.resources is not None]
    volumes = (one.empty_dir for one in spec.volumes or ())
    return Pod(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        node=spec.node_name,
        labels=meta.labels or {},
        annotations=meta.annotations or {},
        owner=next((Owner(one.kind, one.name) for one in owners), None),
        phase=status.phase,
        ready=any(one.type == "Ready" and one.status == "True" for one in status.conditions or ()),
        resources=frozenset(
            key for one in asked for side in (one.limits, one.requests) for key in side or ()
        ),
        claims=bool(spec.resource_claims),
        disk_data=any(one is not None and one.medium != "Memory" for one in volumes),
        deleted=meta.deletion_timestamp,
        deletion_grace=meta.deletion_grace_period_seconds or 0.0,
    )


PODS: Final = Codec(WirePod, narrow_pod)


def on_node(node: str) -> dict[str, str]:
    """The selector of a node's pods."""
    return {"fieldSelector": f"spec.nodeName={node}"}


class ApiPods:
    """Pods of the API server, as its latest committed state.

    Args:
        api: the transport.
        check: called right before each write; raises when we may not write.
        server_dry_run: let the server check and answer everything, and end no pod.
    """

    def __init__(
        self,
        *,
        api: ApiClient,
        check: Callable[[], None] = lambda: None,
        server_dry_run: bool = False,
    ) -> None:
        self._api = api
        self._check = check
        self._dry = server_dry_run

    async def list_pods(self, node: str) -> tuple[list[Pod], dict[str, str]]:
        """The pods of a node; and those that cannot be read, with what is odd about each.

        Raises:
            ApiError: they could not be listed.
        """
        pods: list[Pod] = []
        unreadable: dict[str, str] = {}
        token = ""
        while True:
            query: dict[str, object] = {**on_node(node), "limit": PAGE_SIZE}
            if token:
                query["continue"] = token
            target = f"{PODS_PATH}?{urlencode(query)}"
            try:
                answer = await self._api.request("GET", target, compressed=True)
            except Gone:
                if not token:
                    raise
                pods, unreadable, token = [], {}, ""  # the list changed too much: once more
                continue
            page = read_answer("GET", target, answer, PODS.page)
            pods += [narrow_pod(one) for one in page.items]
            unreadable |= page.unreadable
            token = page.continue_token
            if not token:
                return pods, unreadable

    async def evict(self, pod: Pod, *, grace: float | None = None) -> None:
        """Ask for the pod's eviction; it is accepted when this returns, not yet gone.

        Raises:
            ApiError: see `remediator.act.drain.replies` for what each means.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": pod.namespace, "name": pod.name.partition("/")[2]},
            "deleteOptions": self._options(pod, grace),
        }
        self._check()
        await self._api.request("POST", f"{_path(pod)}/eviction", msgspec.json.encode(body))

    async def delete(self, pod: Pod, *, grace: float | None = None) -> None:
        """Delete the pod, whatever its PodDisruptionBudget says; `grace` 0 forces it.

        Raises:
            ApiError: it was not done.
        """
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **self._options(pod, grace)}
        self._check()
        await self._api.request("DELETE", _path(pod), msgspec.json.encode(body))

    def _options(self, pod: Pod, grace: float | None) -> dict[str, object]:
        options: dict[str, object] = {"preconditions": {"uid": pod.uid}}
        if grace is not None:
            options["gracePeriodSeconds"] = int(grace)
        if self._dry:  # in the body: of a deletion the query does not count beside one
            options["dryRun"] = ["All"]
        return options


def _path(pod: Pod) -> str:
    namespace, _, name = pod.name.partition("/")
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
