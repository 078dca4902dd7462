"""Where one pod runs, by its name or by its address. Needs the verb `list` on pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlencode

import msgspec
import structlog

from remediator.kube.errors import ApiError
from remediator.kube.objects import epoch_seconds


if TYPE_CHECKING:
    from remediator.kube.transport import ApiClient

_log = structlog.get_logger(__name__)

_ENOUGH: Final = 20
"""Pods of one address: those in the host's network share it, and all are on one node."""


class Place(NamedTuple):
    """The node of a pod, "" if there is no such pod; and when the pod was created."""

    node: str = ""
    created: float = 0.0


class _Meta(msgspec.Struct, rename="camel"):
    creation_timestamp: str | None = None


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Pods(msgspec.Struct):
    items: list[_Pod] | None = None


class PodFinder:
    """Asks the API server for pods, one at a time.

    Args:
        api: the transport.
    """

    def __init__(self, *, api: ApiClient) -> None:
        self._api = api

    async def find(self, namespace: str, name: str, ip: str) -> Place:
        """Return where a pod runs: by namespace and name, or, without those, by its address.

        What cannot be found out, errors included, is the empty place.
        """
        wanted = {"metadata.namespace": namespace, "metadata.name": name}
        fields = wanted if name else {"status.podIP": ip}
        selector = ",".join(f"{key}={value}" for key, value in fields.items())
        running = "status.phase!=Succeeded,status.phase!=Failed"
        query = urlencode({"fieldSelector": f"{selector},{running}", "limit": _ENOUGH})
        try:
            body = await self._api.request("GET", f"/api/v1/pods?{query}")
            pods = msgspec.json.decode(body, type=_Pods).items or []
        except (ApiError, msgspec.DecodeError) as error:
            _log.warning("pod_not_found", pod=name or ip, reason=str(error))
            return Place()
        nodes = {one.spec.node_name for one in pods}
        if len(nodes) != 1:
            return Place()
        created = min(epoch_seconds(one.metadata.creation_timestamp) or 0.0 for one in pods)
        return Place(nodes.pop(), created)
