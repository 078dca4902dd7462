"""Read nodes directly, past the watch: to learn what became of a write without an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from remediator.kube.answers import read_answer
from remediator.kube.codec import Codec, NodeNarrower, WireNode
from remediator.kube.errors import NotFound


if TYPE_CHECKING:
    from remediator.kube.objects import Node
    from remediator.kube.transport import ApiClient


PAGE_SIZE: Final = 250
"""Nodes in one answer: about 6 MB of JSON."""


class ApiNodeReader:
    """Reads nodes from the API server, as its latest committed state.

    Args:
        api: the transport.
        other_annotations: as of the reflector of nodes.
    """

    def __init__(self, *, api: ApiClient, other_annotations: int = 0) -> None:
        self._api = api
        self._codec = Codec(WireNode, NodeNarrower(others_up_to=other_annotations))

    async def read_node(self, name: str) -> Node | None:
        """The node now, None if it is gone.

        Raises:
            ApiError: it could not be read.
        """
        target = f"/api/v1/nodes/{name}"
        try:
            answer = await self._api.request("GET", target)
        except NotFound:
            return None
        return read_answer("GET", target, answer, self._codec.one)

    async def list_nodes(self) -> list[Node]:
        """All nodes now, page by page; one that cannot be read is left out.

        Raises:
            ApiError: they could not be read.
        """
        nodes: list[Node] = []
        query = {"limit": str(PAGE_SIZE)}
        while True:
            target = f"/api/v1/nodes?{urlencode(query)}"
            answer = await self._api.request("GET", target)
            page = read_answer("GET", target, answer, self._codec.page)
            nodes += [self._codec.narrow(one, None) for one in page.items]
            if not page.continue_token:
                return nodes
            query["continue"] = page.continue_token
