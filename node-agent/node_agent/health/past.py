"""Episodes of faults that are over: what a count over a day needs, and nothing else rests on.

A reset that helps clears the fault, and an application's error ages away; a GPU that needs such a
reset again and again would otherwise look each time as though it were the first. So the times of
an Xid or SXid outlive it by a day, over restarts and boots, by code and device.

Invariants:

- A time is here or in an open fault, never in both.
- What an operator declared well is not remembered, nor what another GPU had in the same slot.

Pure; times are epoch seconds that come as arguments. At most :data:`MAX_PAST` pairs of code and
device are kept, those with the newest episodes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from node_agent.contract import MAX_TIMES, PAST_SECONDS, FaultKind, Past
from node_agent.xid.episodes import EPISODE_WINDOW_SECONDS


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from node_agent.health.faults import OpenFault

MAX_PAST: Final = 128
_COUNTED: Final = frozenset((FaultKind.XID, FaultKind.SXID))


class PastFault(msgspec.Struct, frozen=True, omit_defaults=True):
    """The times of one code on one device, newest last."""

    kind: FaultKind
    code: int
    pci: str
    times: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]

    @property
    def key(self) -> str:
        """Identity within the node: MIG instances and subcodes of a device count together."""
        return f"{self.kind}|{self.pci}|{self.code}"

    def published(self) -> Past:
        """As it stands in the annotation."""
        times = tuple(datetime.fromtimestamp(round(t, 3), tz=UTC) for t in self.times)
        return Past(kind=self.kind, code=self.code, pci=self.pci, times=times)


def remembered(past: dict[str, PastFault], over: Iterable[OpenFault]) -> dict[str, PastFault]:
    """Add the times of faults that have just ended."""
    found = dict(past)
    for fault in over:
        if fault.kind in _COUNTED and fault.code is not None and fault.times:
            _add(found, PastFault(fault.kind, fault.code, fault.pci, fault.times))
    return past if found == past else _bounded(found)


def since(past: dict[str, PastFault], limit: float) -> dict[str, PastFault]:
    """Leave out what began before ``limit``."""
    return _between(past, limit, inf)


def within_a_day(past: dict[str, PastFault], now: float) -> dict[str, PastFault]:
    """Leave out what is further than a day from now.

    Also ahead of now: it was written while the clock was wrong. As the newest it would hide all
    that comes, until the clock gets there.
    """
    return _between(past, now - PAST_SECONDS, now + PAST_SECONDS)


def of_these_devices(
    past: dict[str, PastFault], before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, PastFault]:
    """Leave out what another GPU had: ``before`` and ``after`` are UUIDs by PCI address."""
    if not past or before is after:
        return past
    changed = {pci for pci, uuid in before.items() if after.get(pci, uuid) != uuid}
    if not changed:
        return past
    return {key: one for key, one in past.items() if one.pci not in changed}


def restored_past(
    past: dict[str, PastFault], published: Iterable[Past], faults: Iterable[OpenFault]
) -> dict[str, PastFault]:
    """Take over what our own annotation still shows, after the state was lost.

    The replay of the log finds the same episodes again, at times that differ a little, and some as
    open faults: its word is the better one.
    """
    known: dict[str, list[float]] = {}
    for fault in faults:
        if fault.code is not None:
            one = PastFault(fault.kind, fault.code, fault.pci, fault.times)
            known.setdefault(one.key, []).extend(fault.times)
    for key, one in past.items():
        known.setdefault(key, []).extend(one.times)
    found = dict(past)
    for given in published:
        one = PastFault(given.kind, given.code, given.pci, ())
        times = tuple(
            at
            for at in (time.timestamp() for time in given.times)
            if all(abs(at - other) > EPISODE_WINDOW_SECONDS for other in known.get(one.key, ()))
        )
        if times:
            _add(found, msgspec.structs.replace(one, times=times))
    return past if found == past else _bounded(found)


def next_end(past: Mapping[str, PastFault]) -> float | None:
    """When the oldest time is to be forgotten (epoch seconds)."""
    return min((one.times[0] + PAST_SECONDS for one in past.values()), default=None)


def _between(past: dict[str, PastFault], first: float, last: float) -> dict[str, PastFault]:
    if all(first <= one.times[0] and one.times[-1] <= last for one in past.values()):
        return past
    kept = {
        key: msgspec.structs.replace(one, times=tuple(t for t in one.times if first <= t <= last))
        for key, one in past.items()
    }
    return {key: one for key, one in kept.items() if one.times}


def _add(found: dict[str, PastFault], one: PastFault) -> None:
    before = found.get(one.key)
    times = sorted((*one.times, *(before.times if before is not None else ())))[-MAX_TIMES:]
    found[one.key] = msgspec.structs.replace(one, times=tuple(times))


def _bounded(found: dict[str, PastFault]) -> dict[str, PastFault]:
    if len(found) <= MAX_PAST:
        return found
    newest = sorted(found.values(), key=lambda one: one.times[-1], reverse=True)
    return {one.key: one for one in newest[:MAX_PAST]}
