"""Pure: from what should stand on the Node and what does, to the patch between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from node_agent.contract import (
    FAULTS_ANNOTATION,
    Condition,
    ConditionType,
    ContractError,
    FaultReport,
    decode_report,
)
from node_agent.health.conditions import Desired
from node_agent.publish.node_api import NodeView


_OWN: Final = frozenset(str(kind) for kind in ConditionType)


class Standing(NamedTuple):
    """A condition on the Node and since when its status holds (RFC 3339)."""

    status: str
    reason: str
    message: str
    since: str


class OnNode(NamedTuple):
    """What of ours stands on the Node, as far as the last answer told."""

    conditions: Mapping[str, Standing]
    annotation: str | None

    @property
    def written(self) -> frozenset[ConditionType]:
        """The types that we, or an agent before us, wrote there."""
        return frozenset(ConditionType(kind) for kind in self.conditions)

    def shows(self, wanted: Desired) -> bool:
        """Whether all of this stands there."""
        conditions = all(
            (on := self.conditions.get(c.type)) is not None
            and (on.status, on.reason, on.message) == (c.status, c.reason, c.message)
            for c in wanted.conditions
        )
        return conditions and self.annotation == wanted.annotation

    def stands_as(self, known: OnNode) -> bool:
        """Whether nobody has touched what stood there, apart from times."""
        return self.annotation == known.annotation and all(
            (on := self.conditions.get(kind)) is not None and on[:3] == was[:3]
            for kind, was in known.conditions.items()
        )

    def report(self) -> FaultReport | None:
        """The faults that the annotation shows; None if it is absent or unreadable."""
        if self.annotation is None:
            return None
        try:
            return decode_report(self.annotation)
        except ContractError:
            return None


def on_node(view: NodeView) -> OnNode:
    """Pick out what is ours."""
    return OnNode(
        {
            kind: Standing(c.status, c.reason, c.message, c.last_transition_time or "")
            for kind, c in view.conditions.items()
            if kind in _OWN
        },
        view.annotations.get(FAULTS_ANNOTATION),
    )


def status_patch(wanted: Desired, there: OnNode, *, now: float) -> bytes:
    """The strategic-merge patch of ``nodes/status``: own condition types, own annotation.

    Every own condition is in it, so that a heartbeat also repairs what someone removed.
    ``lastTransitionTime`` stays while the status stays. The annotation is left out where
    it stands already: most writes are heartbeats.
    """
    stamp = datetime.fromtimestamp(now, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body: dict[str, object] = {
        "status": {"conditions": list(_conditions(wanted.conditions, there, stamp))}
    }
    if there.annotation != wanted.annotation:
        body["metadata"] = {"annotations": {FAULTS_ANNOTATION: wanted.annotation}}
    return msgspec.json.encode(body)


def _conditions(wanted: Iterable[Condition], there: OnNode, stamp: str) -> Iterable[dict[str, str]]:
    for condition in wanted:
        on = there.conditions.get(condition.type)
        same = on is not None and on.status == condition.status and on.since
        yield {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastHeartbeatTime": stamp,
            "lastTransitionTime": on.since if same and on is not None else stamp,
        }
