"""The agent's own log of faults: each new episode in one line, each end in one.

Bounded: of one fault at most one line in :data:`QUIET_SECONDS`. Its count tells how many
episodes came in between, so that a storm of application errors does not fill a disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from node_agent.contract import Severity
from node_agent.health.conditions import describe


if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from node_agent.health.faults import OpenFault

QUIET_SECONDS: Final = 10.0


class FaultJournal:
    """Compares the open faults with those of the time before.

    Args:
        known: faults that an agent before us has told of (from the state file).
        log: the agent's own log.
    """

    def __init__(self, *, known: Mapping[str, OpenFault], log: FilteringBoundLogger) -> None:
        self._known = known
        self._log = log
        self._told: dict[str, float] = {}

    def observe(self, faults: Mapping[str, OpenFault], *, now: float) -> None:
        """Tell what is new. ``now``: epoch seconds."""
        if faults is self._known:
            return
        for key, fault in faults.items():
            before = self._known.get(key)
            if before is None or (fault is not before and fault.count > before.count):
                self._tell(key, fault, now)
        for key, fault in self._known.items():
            if key not in faults:
                self._told.pop(key, None)
                self._log.info("a fault is over", fault=describe(fault), count=fault.count)
        self._known = faults

    def _tell(self, key: str, fault: OpenFault, now: float) -> None:
        if 0.0 <= now - self._told.get(key, float("-inf")) < QUIET_SECONDS:
            return
        self._told[key] = now
        say = self._log.info if fault.severity is Severity.INFO else self._log.warning
        say(
            "a fault",
            fault=describe(fault),
            severity=fault.severity.value,
            count=fault.count,
            action=fault.action,
            pid=fault.pid,
            pods=list(fault.pods),
            sources=list(fault.sources),
        )
