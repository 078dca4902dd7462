"""Publishes the status document: at most every 2 s, when it changed, and once a minute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from remediator.decide.decision import NodePhase
from remediator.record.room import shortened
from remediator.record.status import (
    MAX_STATUS_BYTES,
    REFRESH_SECONDS,
    STATUS_CONFIGMAP,
    STATUS_KEY,
    NodeStatus,
    Status,
    encode_status,
)
from remediator.record.writebehind import ConfigMapStore, Document, WriteBehind


PUBLISH_INTERVAL: Final = 2.0

_IMPORTANCE: Final = {
    NodePhase.FROZEN: 0,
    NodePhase.ESCALATED: 1,
    NodePhase.HELD: 2,
    NodePhase.IN_SESSION: 3,
    NodePhase.RECOVERING: 4,
    NodePhase.MATCHED: 5,
    NodePhase.WAIVED: 6,
    NodePhase.LEFT_ALONE: 7,
}


class StatusPublisher:
    """Keeps ConfigMap ``gpu-remediator-status`` current while we lead. Never blocks.

    Args:
        configmaps: the ConfigMaps of our namespace, with the lease as their check.
        build: the present status (`remediator.record.report.build_status`).
    """

    def __init__(self, *, configmaps: ConfigMapStore, build: Callable[[], Status]) -> None:
        self._writer = WriteBehind(
            document=Document(configmaps, STATUS_CONFIGMAP),
            snapshot=build,
            encode=lambda status: {STATUS_KEY: fitted(status)},
            same=same_but_time,
            interval=PUBLISH_INTERVAL,
            refresh=REFRESH_SECONDS,
        )

    @property
    def problem(self) -> str:
        """Why the last write failed, "" if it did not."""
        return self._writer.problem

    def touch(self) -> None:
        """Say that something may have changed."""
        self._writer.touch()

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._writer.run()

    async def flush(self, timeout: float = 2.0) -> bool:  # noqa: ASYNC109
        """Publish the last state before an orderly end."""
        return await self._writer.flush(timeout)


def same_but_time(one: Status, other: Status) -> bool:
    """Tell whether two documents say the same."""
    return msgspec.structs.replace(one, time=other.time) == other


def fitted(status: Status, *, limit: int = MAX_STATUS_BYTES) -> str:
    """Return the JSON text; the least urgent nodes are left out until it fits.

    What is said beside the nodes is shortened before, if it would take more than half of the room.
    ``limit`` is for the text as it travels: as a string within JSON, in bytes.
    """
    text = encode_status(status)
    if _escaped(text) <= limit:
        return text
    half = limit // 2
    status = shortened(status, fits=lambda rest: _escaped(encode_status(rest)) <= half)
    text = encode_status(status)
    excess = _escaped(text) - limit
    if excess <= 0:
        return text
    kept = sorted(status.nodes, key=_urgency)
    left_out = status.nodes_left_out
    excess += len(str(len(kept)))  # the number of those left out grows
    while kept and excess > 0:
        excess -= _escaped(msgspec.json.encode(kept.pop()).decode()) + 1
        left_out += 1
    kept.sort(key=lambda node: (node.node, node.dry_run))
    return encode_status(
        msgspec.structs.replace(status, nodes=tuple(kept), nodes_left_out=left_out)
    )


def _escaped(text: str) -> int:
    """Return the bytes of a text within a JSON string."""
    return len(msgspec.json.encode(text)) - len('""')


def _urgency(node: NodeStatus) -> tuple[bool, int, str]:
    return (node.dry_run, _IMPORTANCE.get(NodePhase(node.phase), 9), node.node)
