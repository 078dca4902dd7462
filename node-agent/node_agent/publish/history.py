"""What a scrape cannot see in the present: Xids and clock events of the recent past.

The two histories give the counts that DCGM-Exporter makes itself, and our transitions.
Xids come as episodes (a run of lines about one fault is one), merged from all sources by
the time they reach the totals of the state: one fault is counted once here too.

No clock of its own; bounded by the totals' own bound and by the window.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from node_agent.contract import FaultKind


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from node_agent.health.state import NodeHealth
    from node_agent.nvml.model import Reading

WINDOW_SECONDS: Final = 300.0
"""Window of the ``_COUNT`` families; DCGM-Exporter's default."""
CLOCK_REASONS: Final = {
    "gpu_idle": 0x1,
    "clocks_setting": 0x2,
    "power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
}
"""Bits of NVML's clocks event reasons by DCGM-Exporter's names."""
_MAX_IN_WINDOW: Final = 1024


class _Seen(NamedTuple):
    at: float
    code: int
    episodes: int


class XidHistory:
    """Last Xid, totals and those of the last five minutes, by PCI address."""

    def __init__(self) -> None:
        self._known: Mapping[str, int] | None = None
        self._last: dict[str, int] = {}
        self._recent: dict[str, deque[_Seen]] = {}
        self.totals: dict[str, dict[int, int]] = {}

    def observe(self, health: NodeHealth, *, now: float) -> None:
        """Compare the state's totals with those of the time before.

        The first state is what the agent found when it started: its totals are not new.
        """
        episodes = {
            key: total.episodes
            for key, total in health.totals.items()
            if total.kind is FaultKind.XID and total.code is not None
        }
        if self._known is None:
            self._start(health)
        elif episodes != self._known:
            self._add(health, episodes, self._known, now)
        self._known = episodes
        self.totals = {}
        for key, count in episodes.items():
            total = health.totals[key]
            codes = self.totals.setdefault(total.pci, {})
            codes[total.code or 0] = codes.get(total.code or 0, 0) + count

    def last(self, pci: str) -> int:
        """The last Xid of this device since the agent or the machine started; 0: none."""
        return self._last.get(pci, 0)

    def recent(self, pci: str, *, now: float) -> dict[int, int]:
        """Episodes of the last five minutes by code."""
        queue = self._recent.get(pci)
        counts: Counter[int] = Counter()
        if queue:
            while queue and queue[0].at <= now - WINDOW_SECONDS:
                queue.popleft()
            for seen in queue:
                counts[seen.code] += seen.episodes
        return dict(counts)

    def _start(self, health: NodeHealth) -> None:
        """Faults of this boot that are still open tell what the last Xid was."""
        newest: dict[str, float] = {}
        for fault in health.faults.values():
            of_now = fault.kind is FaultKind.XID and fault.boot_id == health.boot_id
            if of_now and fault.code is not None and fault.last_seen > newest.get(fault.pci, 0.0):
                newest[fault.pci] = fault.last_seen
                self._last[fault.pci] = fault.code

    def _add(
        self,
        health: NodeHealth,
        episodes: Mapping[str, int],
        known: Mapping[str, int],
        now: float,
    ) -> None:
        times: dict[tuple[str, int], float] = {}
        for fault in health.faults.values():
            if fault.kind is FaultKind.XID and fault.code is not None:
                key = (fault.pci, fault.code)
                times[key] = max(times.get(key, 0.0), fault.last_seen)
        new = []
        for name, count in episodes.items():
            total = health.totals[name]
            code = total.code or 0
            more = count - known.get(name, 0)
            if more > 0:
                # Lines that are replayed at start are as old as they say.
                at = min(now, times.get((total.pci, code), now))
                new.append((total.pci, _Seen(at, code, more)))
        for pci, seen in sorted(new, key=lambda each: each[1].at):
            self._last[pci] = seen.code
            self._recent.setdefault(pci, deque(maxlen=_MAX_IN_WINDOW)).append(seen)


class ClockEvents:
    """How often each clock reason held, by device: looks in the window, and transitions.

    A *look* is one reading in which the bit was set, as in DCGM-Exporter's ``_COUNT``; a
    *transition* is a reading in which it is set and in the one before it was not.
    """

    def __init__(self) -> None:
        self._bits: dict[str, tuple[float, int]] = {}
        self._looks: dict[str, deque[tuple[float, int]]] = {}
        self.transitions: dict[str, dict[str, int]] = {}

    def observe(self, readings: Iterable[Reading]) -> None:
        """Take each reading that is newer than the one before."""
        for reading in readings:
            value = reading.values.get("clocks_event_reasons")
            if value is None:
                continue
            bits = int(value)
            at, before = self._bits.get(reading.uuid, (0.0, 0))
            if reading.at <= at:
                continue
            self._bits[reading.uuid] = (reading.at, bits)
            counts = self.transitions.setdefault(reading.uuid, dict.fromkeys(CLOCK_REASONS, 0))
            for name, bit in CLOCK_REASONS.items():
                counts[name] += bool(bits & bit & ~before)
            looks = self._looks.setdefault(reading.uuid, deque(maxlen=_MAX_IN_WINDOW))
            looks.append((reading.at, bits))

    def recent(self, uuid: str, *, now: float) -> dict[str, int]:
        """Looks of the last five minutes in which each reason held; without those of none."""
        looks = self._looks.get(uuid)
        if not looks:
            return {}
        while looks and looks[0][0] <= now - WINDOW_SECONDS:
            looks.popleft()
        same = Counter(bits for _, bits in looks)
        counts = {
            name: sum(times for bits, times in same.items() if bits & bit)
            for name, bit in CLOCK_REASONS.items()
        }
        return {name: count for name, count in counts.items() if count}
