"""Conditions of a node that the controller writes: strategic merge by type, nobody else's.

A PUT of a node's status, or a merge patch, would replace the list and with it what the
kubelet and others say. A condition that is removed leaves no trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from remediator.kube.transport import METADATA_ONLY, STRATEGIC_MERGE_PATCH


if TYPE_CHECKING:
    from collections.abc import Callable

    from remediator.kube.objects import Condition, Node
    from remediator.kube.transport import ApiClient


class NodeConditions:
    """Writes conditions of nodes.

    Args:
        api: the transport.
        check: called right before each write; raises when we may not write.
    """

    def __init__(self, *, api: ApiClient, check: Callable[[], None] = lambda: None) -> None:
        self._api = api
        self._check = check

    async def write(self, node: Node, wanted: Mapping[str, Condition | None], now: float) -> None:
        """Set these conditions of exactly this node, or remove them (None), by type.

        Times are set here: the transition's is kept where the status stays as it is.

        Raises:
            ApiError: it was not done; Conflict: the node was replaced by another one.
        """
        stamp = datetime.fromtimestamp(now, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "metadata": {"uid": node.uid},
            "status": {
                "conditions": [_entry(node, kind, one, stamp) for kind, one in wanted.items()]
            },
        }
        self._check()
        await self._api.request(
            "PATCH",
            f"/api/v1/nodes/{node.name}/status?fieldManager=gpu-remediator",
            msgspec.json.encode(body),
            content_type=STRATEGIC_MERGE_PATCH,
            accept=METADATA_ONLY,
        )


def _entry(node: Node, kind: str, wanted: Condition | None, stamp: str) -> dict[str, str]:
    if wanted is None:
        return {"type": kind, "$patch": "delete"}
    before = node.condition(kind)
    stays = before is not None and before.status == wanted.status and before.last_transition_time
    return {
        "type": kind,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message,
        "lastHeartbeatTime": stamp,
        "lastTransitionTime": stays or stamp,
    }
