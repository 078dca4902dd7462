"""Events on the Node: a fault has appeared, a fault is over. For people, never for logic.

They follow the patch, never precede it, and never delay it: a bounded queue with a rate
limit, where the same news within ten minutes is told once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec

from node_agent.contract import Severity, xid_reason
from node_agent.health.conditions import describe
from node_agent.publish.node_api import ApiError


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import FilteringBoundLogger

    from node_agent.health.faults import OpenFault
    from node_agent.publish.node_api import NodeApi

_QUIET_SECONDS: Final = 600.0
_MAX_REMEMBERED: Final = 512
_MAX_QUEUED: Final = 64
_BURST: Final = 10
_SECONDS_PER_EVENT: Final = 6.0
_MAX_MESSAGE: Final = 1000
CLEARED: Final = "GPUFaultCleared"


class EventRecorder:
    """Turns changes of the open faults into Events. One task runs :meth:`run`.

    Args:
        api: the Node's client.
        clock: seconds that only grow.
        wall: seconds since the epoch.
        log: the agent's own log.
        count: told ``ok``, ``error`` or ``dropped`` for each Event.
    """

    def __init__(
        self,
        *,
        api: NodeApi,
        clock: Callable[[], float],
        wall: Callable[[], float],
        log: FilteringBoundLogger,
        count: Callable[[str], None],
    ) -> None:
        self._api = api
        self._clock = clock
        self._wall = wall
        self._log = log
        self._count = count
        self._queue: deque[tuple[str, str, str]] = deque()
        self._wake = asyncio.Event()
        self._told: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._open: Mapping[str, OpenFault] = {}
        self._uid = ""
        self._tokens = float(_BURST)
        self._filled = clock()

    def assume(self, faults: Mapping[str, OpenFault]) -> None:
        """Faults that an agent before us has told already (from the state file)."""
        self._open = faults

    def published(self, faults: Mapping[str, OpenFault], *, uid: str) -> None:
        """These faults stand on the Node now; queue what is news."""
        self._uid = uid
        for key, fault in faults.items():
            if key not in self._open and fault.severity is not Severity.INFO:
                self._tell(key, "Warning", _reason(fault), _news(fault))
        for key, fault in self._open.items():
            if key not in faults and fault.severity is not Severity.INFO:
                self._tell(key, "Normal", CLEARED, f"cleared: {describe(fault)}")
        self._open = faults

    async def run(self) -> None:
        """Send for ever. An Event that cannot be sent is dropped: the condition says it too."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await asyncio.sleep(self._wait_for_token())
                kind, reason, message = self._queue.popleft()
                try:
                    await self._api.create_event(self._event(kind, reason, message))
                    self._count("ok")
                except ApiError as error:
                    self._count("error")
                    self._log.warning("an Event was not written", reason=reason, error=str(error))

    def say(self, kind: str, reason: str, message: str) -> None:
        """Queue one Event of ``kind`` ``Normal`` or ``Warning``."""
        self._tell(message, kind, reason, message)

    def _tell(self, key: str, kind: str, reason: str, message: str) -> None:
        now = self._clock()
        name = (key, reason)
        if now - self._told.get(name, float("-inf")) < _QUIET_SECONDS:
            return
        self._told[name] = now
        self._told.move_to_end(name)
        if len(self._told) > _MAX_REMEMBERED:
            self._told.popitem(last=False)
        if len(self._queue) >= _MAX_QUEUED:
            self._count("dropped")
            return
        self._queue.append((kind, reason, message))
        self._wake.set()

    def _wait_for_token(self) -> float:
        """Take one token; seconds until it is there."""
        now = self._clock()
        self._tokens = min(_BURST, self._tokens + (now - self._filled) / _SECONDS_PER_EVENT)
        self._filled = now
        self._tokens -= 1
        return max(0.0, -self._tokens * _SECONDS_PER_EVENT)

    def _event(self, kind: str, reason: str, message: str) -> bytes:
        node = self._api.node
        stamp = datetime.fromtimestamp(self._wall(), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"{node}.{uuid4().hex[:16]}", "namespace": "default"},
                "involvedObject": {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": node,
                    "uid": self._uid,
                },
                "type": kind,
                "reason": reason,
                "message": message[:_MAX_MESSAGE],
                "source": {"component": "gpu-remediator-node-agent", "host": node},
                "firstTimestamp": stamp,
                "lastTimestamp": stamp,
                "count": 1,
            }
        )


def _news(fault: OpenFault) -> str:
    """The fault, and the pods that it hit."""
    return describe(fault) + (f"; hits {', '.join(fault.pods)}" if fault.pods else "")


def _reason(fault: OpenFault) -> str:
    """``Xid79``, ``SXid20034``, else what the fault's row raises: ``CountMismatch``."""
    if fault.code is not None:
        return xid_reason(fault.kind, fault.code)
    return next((str(r.reason) for r in fault.rule.raises if r.reason), "GPUFault")
