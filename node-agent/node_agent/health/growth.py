"""How counters of NVML grew of late: what a judge asks instead of how high they are.

Invariants:

- What a counter stood at when it was first seen is no growth, except for :data:`REMEMBERED`
  ones, which are compared with the state file: they may have grown while no agent ran.
- A counter that fell began anew (the driver was loaded again): that is no growth either.
- Bounded: an hour is remembered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from node_agent.nvml.model import Reading

GROWING: Final = (
    "ecc_sbe_vol",
    "ecc_dbe_vol",
    "ecc_dbe_agg",
    "pcie_replay",
    "pcie_count_fatal_error",
    "nvlink_crc_flit_errors",
    "nvlink_crc_data_errors",
    "nvlink_replay_errors",
    "nvlink_recovery_errors",
    "nvlink5_recovery_failed",
)
"""Counters that judges ask the growth of."""
REMEMBERED: Final = frozenset(("ecc_dbe_vol", "ecc_dbe_agg"))
"""Those whose growth while no agent runs counts too: kept in the state file."""
_SECONDS: Final = 3600.0


class Growth:
    """The growth of every counter of every device."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], float] = {}
        self._grown: dict[tuple[str, str], list[tuple[float, float]]] = {}

    def note(self, reading: Reading, baselines: dict[str, float]) -> None:
        """Take a reading. ``baselines``: of the state file, by ``uuid|quantity``; updated."""
        for quantity in GROWING:
            value = reading.values.get(quantity)
            if value is None:
                continue
            name = (reading.uuid, quantity)
            before = self._last.get(name)
            if quantity in REMEMBERED:
                kept = baselines.get(f"{reading.uuid}|{quantity}")
                before = kept if before is None else before
                baselines[f"{reading.uuid}|{quantity}"] = value
            self._last[name] = value
            if before is not None and value > before:
                events = self._grown.setdefault(name, [])
                events.append((reading.at, value - before))
                while reading.at - events[0][0] > _SECONDS:
                    events.pop(0)

    def since(self, uuid: str, quantity: str, at: float) -> float:
        """By how much a counter grew since then (epoch seconds)."""
        return sum(by for seen, by in self._grown.get((uuid, quantity), ()) if seen >= at)

    def newest_uncorrected(self, uuid: str) -> float | None:
        """When uncorrected memory errors last grew."""
        times = [at for name in REMEMBERED for at, _ in self._grown.get((uuid, name), ())]
        return max(times, default=None)
