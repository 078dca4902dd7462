"""Objects of any kind as plain JSON: create, read, delete; and the end of a pod's log.

For what SREs bring along (Jobs, another operator's requests), of which we know no more than
that it is an object. Which path a kind has is asked of the server's discovery, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from remediator.kube.access import access_of
from remediator.kube.answers import read_answer
from remediator.kube.errors import Invalid, NotFound


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from remediator.kube.transport import ApiClient

Json = dict[str, Any]

FIELD_MANAGER: Final = "gpu-remediator"
MAX_LISTED: Final = 500
_OBJECT: Final = msgspec.json.Decoder(Json)


class Kind(NamedTuple):
    """A kind of objects, as manifests name it."""

    api_version: str
    kind: str

    @property
    def root(self) -> str:
        """The path of its group and version."""
        return f"/{'apis' if '/' in self.api_version else 'api'}/{self.api_version}"


class _Resource(NamedTuple):
    plural: str
    namespaced: bool


class ObjectApi:
    """Objects of any kind.

    Args:
        api: the transport.
        check: called right before each write; raises when we may not write.
        server_dry_run: let the server check and answer everything, and store nothing.
    """

    def __init__(
        self, *, api: ApiClient, check: Callable[[], None], server_dry_run: bool = False
    ) -> None:
        self._api = api
        self._check = check
        self._dry = server_dry_run
        self._resources: dict[Kind, _Resource] = {}

    async def namespaced(self, kind: Kind) -> bool:
        """Whether objects of this kind live in a namespace. Raises ApiError."""
        return (await self._resource(kind)).namespaced

    async def create(self, obj: Json) -> Json:
        """Create an object; returns it as the server made it.

        Raises:
            AlreadyExists: there is one of that name.
            Invalid: the server refuses what it says.
            Denied: RBAC or an admission policy refuses it.
            ApiError: any other trouble.
        """
        metadata = obj["metadata"]
        kind = Kind(obj["apiVersion"], obj["kind"])
        path = await self._path(kind, metadata.get("namespace", ""))
        body = msgspec.json.encode(obj)
        self._check()
        query = f"?fieldManager={FIELD_MANAGER}" + ("&dryRun=All" if self._dry else "")
        return _object("POST", path, await self._api.request("POST", f"{path}{query}", body))

    async def read(self, kind: Kind, namespace: str, name: str) -> Json | None:
        """The object now, None if there is none. Raises ApiError."""
        path = await self._path(kind, namespace, name)
        try:
            answer = await self._api.request("GET", path)
        except NotFound:
            return None
        return _object("GET", path, answer)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        """Delete exactly this object, and in the background what it owns. Raises ApiError."""
        path = await self._path(kind, namespace, name)
        options: Json = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        if self._dry:  # in the body: where there is one, the query does not count
            options["dryRun"] = ["All"]
        self._check()
        try:
            await self._api.request("DELETE", path, msgspec.json.encode(options))
        except NotFound:
            return

    async def select(self, kind: Kind, namespace: str, labels: Mapping[str, str]) -> list[Json]:
        """The objects of a namespace that have these labels, `MAX_LISTED` at most."""
        path = await self._path(kind, namespace)
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        query = urlencode({"labelSelector": selector, "limit": MAX_LISTED})
        answer = _object("GET", path, await self._api.request("GET", f"{path}?{query}"))
        return [one for one in answer.get("items") or [] if isinstance(one, dict)]

    async def log_end(self, namespace: str, pod: str, container: str, *, lines: int) -> str:
        """The last lines of a container's log. Raises ApiError."""
        query = urlencode({"container": container, "tailLines": lines, "limitBytes": 8192})
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/log?{query}"
        return (await self._api.request("GET", path, accept="*/*")).decode(errors="replace")

    async def _path(self, kind: Kind, namespace: str, name: str = "") -> str:
        resource = await self._resource(kind)
        place = f"/namespaces/{quote(namespace, safe='')}" if resource.namespaced else ""
        path = f"{kind.root}{place}/{resource.plural}"
        return f"{path}/{quote(name, safe='')}" if name else path

    async def _resource(self, kind: Kind) -> _Resource:
        known = self._resources.get(kind)
        if known is not None:
            return known
        found = _object("GET", kind.root, await self._api.request("GET", kind.root))
        for one in found.get("resources") or []:
            if one.get("kind") == kind.kind and "/" not in one.get("name", "/"):
                resource = _Resource(one["name"], bool(one.get("namespaced")))
                self._resources[kind] = resource
                return resource
        raise Invalid(
            access_of("GET", kind.root),
            message=f"the API server knows no {kind.kind} of {kind.api_version}",
        )


def _object(method: str, target: str, answer: bytes) -> Json:
    return read_answer(method, target, answer, _OBJECT.decode)
