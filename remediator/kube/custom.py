"""Objects of our own kinds, in one namespace: list, create, write the status, delete.

The API server may not know the kind: then every call is a `NotFound`, and it is up to the
caller whether anything follows from that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec

from remediator.kube.answers import read_answer
from remediator.kube.codec import Codec, WireObject
from remediator.kube.errors import NotFound
from remediator.kube.transport import MERGE_PATCH, METADATA_ONLY


if TYPE_CHECKING:
    from collections.abc import Callable

    from remediator.kube.transport import ApiClient

Json = dict[str, Any]

GROUP_VERSION = "gpu-remediator.io/v1alpha1"
_PAGE = 200


class CustomObject(msgspec.Struct, frozen=True):
    """An object of our own: its `spec` and `status` as plain JSON."""

    name: str
    uid: str
    resource_version: str
    generation: int
    spec: Json
    status: Json
    created: str | None = None


class WireCustom(WireObject):
    """Such an object as it comes over the wire."""

    spec: Json | None = None
    status: Json | None = None


def narrow_custom(wire: WireCustom, _old: CustomObject | None = None) -> CustomObject:
    """The object of `wire`."""
    meta = wire.metadata
    return CustomObject(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        generation=meta.generation,
        spec=wire.spec or {},
        status=wire.status or {},
        created=meta.creation_timestamp,
    )


CUSTOM = Codec(WireCustom, narrow_custom)


def custom_path(namespace: str, plural: str) -> str:
    """The path of a collection."""
    return f"/apis/{GROUP_VERSION}/namespaces/{quote(namespace, safe='')}/{plural}"


class CustomObjects:
    """The objects of one kind in one namespace.

    Args:
        api: the transport.
        namespace, plural: where they are, such as `remediations`.
        check: called right before each write; raises when we may not write.
    """

    def __init__(
        self,
        *,
        api: ApiClient,
        namespace: str,
        plural: str,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = custom_path(namespace, plural)
        self._api = api
        self._check = check

    async def read_all(self) -> list[CustomObject]:
        """All of them. Those that cannot be read are left out. Raises ApiError."""
        found: list[CustomObject] = []
        token = ""
        while True:
            query = urlencode({"limit": _PAGE, **({"continue": token} if token else {})})
            answer = await self._api.request("GET", f"{self.path}?{query}", compressed=True)
            page = read_answer("GET", self.path, answer, CUSTOM.page)
            found += [narrow_custom(one) for one in page.items]
            token = page.continue_token
            if not token:
                return found

    async def create(self, document: Json) -> None:
        """Create an object. Raises AlreadyExists, Invalid, Denied, NotFound (no such kind)."""
        self._check()
        body = msgspec.json.encode(document)
        await self._api.request("POST", self.path, body, accept=METADATA_ONLY)

    async def write_status(self, name: str, status: Json) -> None:
        """Merge into an object's status; null removes a field. Raises NotFound, ApiError."""
        self._check()
        await self._api.request(
            "PATCH",
            f"{self.path}/{quote(name, safe='')}/status",
            msgspec.json.encode({"status": status}),
            content_type=MERGE_PATCH,
            accept=METADATA_ONLY,
        )

    async def delete(self, name: str) -> None:
        """Delete an object; one that is not there is fine. Raises ApiError."""
        self._check()
        try:
            await self._api.request("DELETE", f"{self.path}/{quote(name, safe='')}")
        except NotFound:
            return
