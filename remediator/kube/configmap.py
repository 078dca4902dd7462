"""ConfigMaps as small shared state: read, and write on condition of the version read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from remediator.kube.answers import read_answer
from remediator.kube.codec import Codec, WireConfigMap, narrow_configmap
from remediator.kube.errors import NotFound
from remediator.kube.transport import MERGE_PATCH


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from remediator.kube.objects import ConfigMap
    from remediator.kube.transport import ApiClient

CONFIGMAPS = Codec(WireConfigMap, narrow_configmap)


class ConfigMaps:
    """The ConfigMaps of one namespace.

    Args:
        api: the transport.
        namespace: where they are.
        check: called right before each write; raises when we may not write.
    """

    def __init__(
        self, *, api: ApiClient, namespace: str, check: Callable[[], None] = lambda: None
    ) -> None:
        self.path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._api = api
        self._check = check

    async def read(self, name: str) -> ConfigMap | None:
        """The ConfigMap, None if there is none. Raises ApiError."""
        target = f"{self.path}/{name}"
        try:
            answer = await self._api.request("GET", target)
        except NotFound:
            return None
        return read_answer("GET", target, answer, CONFIGMAPS.one)

    async def write(
        self, name: str, data: Mapping[str, str | None], *, known: ConfigMap | None
    ) -> ConfigMap:
        """Set the keys in `data` (None removes one); keys not named stay.

        Args:
            name: of the ConfigMap.
            data: key to new text.
            known: the version that the change rests on; None creates the ConfigMap.

        Returns:
            The new version, to be given as `known` next time.

        Raises:
            Conflict: it changed, or appeared, meanwhile: read again.
            NotFound: it was deleted meanwhile.
        """
        if known is None:
            texts = {key: value for key, value in data.items() if value is not None}
            document: dict[str, object] = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name},
                "data": texts,
            }
            self._check()
            answer = await self._api.request("POST", self.path, msgspec.json.encode(document))
            return read_answer("POST", self.path, answer, CONFIGMAPS.one)
        document = {"metadata": {"resourceVersion": known.resource_version}, "data": data}
        target = f"{self.path}/{name}"
        self._check()
        answer = await self._api.request(
            "PATCH", target, msgspec.json.encode(document), content_type=MERGE_PATCH
        )
        return read_answer("PATCH", target, answer, CONFIGMAPS.one)
