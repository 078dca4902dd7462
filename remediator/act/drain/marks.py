"""What a drain says on its node: conditions with the names and reasons of KEP-5683.

    DrainInProgress  True/AdminRequested while it goes on, False/DrainCompleted or
                     False/DrainFailed after it
    Drained          True/DrainCompleted when every pod that had to leave is gone, Unknown when
                     some were passed over, False otherwise

https://github.com/kubernetes/enhancements/issues/5683: who writes them clears them. They go
with the session, or when its drain is called off. Which are ours is seen from their message,
so that also a successor, which never saw the drain, clears them; those of others stay.

They are for other programs and for people: no decision of ours rests on them, and a drain
goes on when they cannot be written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import structlog

from remediator.decide.facts import NodeFacts
from remediator.decide.look import unusable_session
from remediator.decide.session import Session
from remediator.kube.errors import ApiError
from remediator.kube.lease import NotLeading
from remediator.kube.objects import Condition, Node
from remediator.policy.plan import parse_plan


_log = structlog.get_logger(__name__)

IN_PROGRESS: Final = "DrainInProgress"
DRAINED: Final = "Drained"
REQUESTED: Final = "AdminRequested"
COMPLETED: Final = "DrainCompleted"
FAILED: Final = "DrainFailed"
PASSED_OVER: Final = "PodsPassedOver"
OURS: Final = "gpu-remediator: "
"""Begins each message of ours."""
MAX_MESSAGE: Final = 1000
SWEEP_SECONDS: Final = 10.0
REFRESH_SECONDS: Final = 15.0
"""Between two writes of the message alone."""

Wanted = Mapping[str, Condition | None]
CLEARED: Final[Wanted] = {IN_PROGRESS: None, DRAINED: None}


def under_way(message: str) -> Wanted:
    """Return the conditions of a drain that goes on."""
    return {
        IN_PROGRESS: _condition(IN_PROGRESS, "True", REQUESTED, message),
        DRAINED: _condition(DRAINED, "False", REQUESTED, message),
    }


def ended(message: str, *, done: bool, clean: bool) -> Wanted:
    """Return the conditions of a drain that has ended. A partial drain is never ``Drained``."""
    status = "True" if clean else "Unknown" if done else "False"
    drained = COMPLETED if clean else PASSED_OVER if done else FAILED
    return {
        IN_PROGRESS: _condition(IN_PROGRESS, "False", COMPLETED if done else FAILED, message),
        DRAINED: _condition(DRAINED, status, drained, message),
    }


def is_ours(node: Node) -> bool:
    """Tell whether a node has such a condition of ours."""
    return any(one.type in CLEARED and one.message.startswith(OURS) for one in node.conditions)


def _condition(kind: str, status: str, reason: str, message: str) -> Condition:
    return Condition(kind, status, reason, f"{OURS}{message}"[:MAX_MESSAGE])


def left_over(facts: NodeFacts) -> bool:
    """Tell whether a node has no session any more that drains it or has drained it.

    What cannot be read may be one that does.
    """
    if facts.session is None:
        return True
    if not isinstance(facts.session, Session) or unusable_session(facts):
        return False
    return not any(
        step.drain is not None
        for hold in facts.session.holds
        for step in parse_plan(hold.plan).steps[: hold.step + 1]
    )


class Writer(Protocol):
    """Writes conditions; see :class:`remediator.kube.node_status.NodeConditions`."""

    async def write(self, node: Node, wanted: Wanted, now: float) -> None:
        """Set or remove conditions of a node."""


class Nodes(Protocol):
    """The latest view of every node; see :class:`remediator.signals.fleet.Fleet`."""

    def get(self, name: str) -> NodeFacts | None:
        """Return what is known of a node now."""

    def node(self, name: str) -> Node | None:
        """Return the version that the facts rest on."""

    def all(self) -> Iterable[NodeFacts]:
        """Return the facts of every node."""


class Marks:
    """Keeps the conditions of nodes as drains want them.

    Args:
        nodes: the nodes as they are.
        writer: writes.
        now: epoch seconds.
        may_write: whether anything may be written now.
    """

    def __init__(
        self,
        *,
        nodes: Nodes,
        writer: Writer,
        now: Callable[[], float],
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._nodes = nodes
        self._writer = writer
        self._now = now
        self._may_write = may_write

    async def set(self, name: str, uid: str, wanted: Wanted) -> bool:
        """Write conditions of the node with this UID, where they differ. False: not done."""
        node = self._nodes.node(name)
        if node is None or node.uid != uid:
            return True
        changes = _changes(node, wanted)
        if not changes or not self._may_write():
            return not changes
        try:
            await self._writer.write(node, changes, self._now())
        except (ApiError, NotLeading) as error:
            _log.warning("drain_condition_not_written", node=name, reason=str(error))
            return False
        return True

    async def sweep(self) -> None:
        """Clear what sessions left behind that have ended, for ever."""
        while True:
            for facts in list(self._nodes.all()):
                node = self._nodes.node(facts.name)
                if node is not None and is_ours(node) and left_over(facts):
                    await self.set(facts.name, facts.uid, CLEARED)
            await asyncio.sleep(SWEEP_SECONDS)


def _changes(node: Node, wanted: Wanted) -> dict[str, Condition | None]:
    """Return what is to be written: not what is there already, and nothing over others' True."""
    changes: dict[str, Condition | None] = {}
    for kind, one in wanted.items():
        there = node.condition(kind)
        ours = there is not None and there.message.startswith(OURS)
        if one is None:
            if ours:
                changes[kind] = None
        elif there is None or ours or there.status != "True":
            same = there is not None and (
                (there.status, there.reason, there.message) == (one.status, one.reason, one.message)
            )
            if not same:
                changes[kind] = one
    return changes
