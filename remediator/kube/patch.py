"""The only writes to a Node: minimal merge patches with two preconditions.

`metadata.resourceVersion` makes a patch that rests on an outdated view fail (409
Conflict: read again, decide again), `metadata.uid` makes one fail that is meant for
an earlier node of the same name. What a patch does not mention stays as it is; an
object that was read is never written back.

`NodeWriter` is the seam for dry-run: the server's dry-run sends the same requests
with `dryRun=All`, the client's sends nothing and lives with the callers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from remediator.kube.answers import read_answer
from remediator.kube.codec import decode_meta
from remediator.kube.managed import FIELD_MANAGER
from remediator.kube.objects import Taint
from remediator.kube.transport import MERGE_PATCH, METADATA_ONLY


if TYPE_CHECKING:
    from collections.abc import Callable

    from remediator.kube.objects import Node
    from remediator.kube.transport import ApiClient


class NodePatch(msgspec.Struct, frozen=True, kw_only=True):
    """What to change of one node, and of which version of it.

    Attributes:
        name, uid, resource_version: of the node that the decision was made for.
        unschedulable: None leaves it; False removes the field, as an uncordon does.
        taints: None leaves them; else the whole new list, which is why the
            resourceVersion matters: the list cannot be changed entry by entry.
        annotations, labels: key to new value, or to None to remove the key.
    """

    name: str
    uid: str
    resource_version: str
    unschedulable: bool | None = None
    taints: tuple[Taint, ...] | None = None
    annotations: Mapping[str, str | None] = {}
    labels: Mapping[str, str | None] = {}

    @staticmethod
    def of(node: Node, **changes: object) -> NodePatch:
        """A patch for exactly this version of `node`."""
        fields: dict[str, object] = {
            "name": node.name,
            "uid": node.uid,
            "resource_version": node.resource_version,
            **changes,
        }
        return NodePatch(**fields)  # type: ignore[arg-type]

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing."""
        return (
            self.unschedulable is None
            and self.taints is None
            and not self.annotations
            and not self.labels
        )

    def body(self) -> bytes:
        """The JSON merge patch (RFC 7396)."""
        metadata: dict[str, object] = {
            "resourceVersion": self.resource_version,
            "uid": self.uid,
        }
        if self.annotations:
            metadata["annotations"] = self.annotations
        if self.labels:
            metadata["labels"] = self.labels
        document: dict[str, object] = {"metadata": metadata}
        spec: dict[str, object] = {}
        if self.unschedulable is not None:
            spec["unschedulable"] = self.unschedulable or None
        if self.taints is not None:
            spec["taints"] = self.taints or None
        if spec:
            document["spec"] = spec
        return msgspec.json.encode(document)


class NodeWriter(Protocol):
    """Whatever carries out node patches: the API server, or a dry-run."""

    async def patch_node(self, patch: NodePatch) -> str:
        """Carry out `patch`; returns the node's new resourceVersion.

        Raises:
            Conflict: the node changed or was replaced; read again, decide again.
            NotFound: the node is gone.
            NotLeading: the lease is not fresh; nothing was sent.
            Denied: RBAC or an admission policy refuses.
            Invalid: the patch is wrong.
            Transient: try again later; after `TimedOut` it may have happened, and then the
                next try is a Conflict.
        """


class ApiNodeWriter:
    """Sends node patches to the API server.

    Args:
        api: the transport.
        check: called right before each write; raises when we may not write.
        server_dry_run: let the server check and answer everything, and store nothing.
        field_manager: how the managed fields name us.
    """

    def __init__(
        self,
        *,
        api: ApiClient,
        check: Callable[[], None],
        server_dry_run: bool = False,
        field_manager: str = FIELD_MANAGER,
    ) -> None:
        self._api = api
        self._check = check
        self._query = f"?fieldManager={field_manager}" + ("&dryRun=All" if server_dry_run else "")

    async def patch_node(self, patch: NodePatch) -> str:
        """See `NodeWriter`. A server dry-run returns the version that there was before."""
        body = patch.body()
        self._check()
        target = f"/api/v1/nodes/{patch.name}{self._query}"
        answer = await self._api.request(
            "PATCH", target, body, content_type=MERGE_PATCH, accept=METADATA_ONLY
        )
        return read_answer("PATCH", target, answer, decode_meta).resource_version
