"""How fast pods are evicted, by all drains of the process together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final


TICK: Final = 0.001
"""Seconds of the shortest wait: a rest of rounding must not become a busy loop."""


class EvictionRate:
    """A token bucket that requests wait for, in the order in which they came.

    Args:
        per_second: tokens in the long run.
        burst: tokens that a pause saves up.
        clock: seconds that only grow; None for the event loop's.
    """

    def __init__(
        self, *, per_second: float, burst: int, clock: Callable[[], float] | None = None
    ) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._clock = clock
        self._at: float | None = None
        self._paused_until = 0.0
        self._turn = asyncio.Lock()

    async def take(self) -> None:
        """Wait until one more request may be sent."""
        async with self._turn:
            while (wait := self._missing()) > 0:  # noqa: ASYNC110 - tokens come by time
                await asyncio.sleep(max(wait, TICK))
            self._tokens -= 1.0

    def pause(self, seconds: float) -> None:
        """Let nobody send anything for so long: the server asked for patience."""
        self._paused_until = max(self._paused_until, self._now() + seconds)

    def _missing(self) -> float:
        """Return seconds until there is a token; 0 if there is one."""
        now = self._now()
        passed = now - (self._at if self._at is not None else now)
        self._tokens = min(self._burst, self._tokens + passed * self._per_second)
        self._at = now
        return max(self._paused_until - now, (1.0 - self._tokens) / self._per_second, 0.0)

    def _now(self) -> float:
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()
