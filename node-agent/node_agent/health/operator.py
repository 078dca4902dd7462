"""An operator's word: everything older than a time is well.

It comes by annotation, with the operator's own credentials, or by the agent's local
socket; either way it means the same. A human's word is taken as it is, with one limit: a
time in the future is refused, since it would clear faults that nobody has seen yet.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from node_agent.health.faults import OpenFault
from node_agent.health.fold import is_pci_level
from node_agent.health.levels import LINKS
from node_agent.health.past import since
from node_agent.health.rules import ABSENT, Clear, Level
from node_agent.health.state import NodeHealth


_CLOCK_SKEW_SECONDS: Final = 5.0
"""How far an operator's clock may be ahead of this node's before a time counts as future."""


class TimeError(ValueError):
    """A text is not a time that an operator may give. The text says why."""


class SetHealthy(NamedTuple):
    """Answer to an operator: what was cleared, or why not."""

    health: NodeHealth
    cleared: tuple[OpenFault, ...] = ()
    refusal: str = ""


def parse_time(text: str) -> float:
    """An RFC 3339 time, with its zone, to epoch seconds.

    Raises:
        TimeError: it is none.
    """
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise TimeError(f"{text!r} is not an RFC 3339 time, as 2026-01-31T12:00:00Z") from error
    if time.tzinfo is None:
        raise TimeError(f"{text!r} has no time zone; add Z for UTC")
    return time.timestamp()


def set_healthy(health: NodeHealth, before: float, *, now: float) -> SetHealthy:
    """An operator declares everything older than ``before`` (epoch seconds) well.

    Missing devices that are older than that are no longer expected. A time in the future
    is refused: it would clear faults that nobody has seen yet. One that a clock only a few
    seconds fast has given means now.
    """
    if before > now + _CLOCK_SKEW_SECONDS:
        ahead = before - now
        return SetHealthy(health, refusal=f"the time lies {ahead:.0f} s in the future")
    before = min(before, now)
    cleared = tuple(
        f
        for f in health.worst_first()
        if (f.first_seen if is_pci_level(f) else f.last_seen) < before
        and f.is_cleared_by(Clear.OPERATOR)
    )
    known = bool(cleared) or since(health.past, before) is not health.past
    if not known and before <= health.cleared_before and not health.forgotten:
        return SetHealthy(health)
    gone = {fault.key for fault in cleared}
    missing = {fault.pci for fault in cleared if fault.subcode == ABSENT}
    # Links that are down and declared well are no longer expected to be up.
    unlinked = {f"{fault.gpu}|{LINKS}" for fault in cleared if fault.subcode == Level.NVLINK_DOWN}
    return SetHealthy(
        msgspec.structs.replace(
            health,
            faults={key: f for key, f in health.faults.items() if key not in gone},
            expected={pci: kind for pci, kind in health.expected.items() if pci not in missing},
            baselines={k: v for k, v in health.baselines.items() if k not in unlinked},
            past=since(health.past, before),
            cleared_before=max(before, health.cleared_before),
            forgotten=False,
        ),
        cleared,
    )
