"""How long to wait before the next attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from random import Random


class Backoff:
    """Decorrelated jitter: each wait is drawn between `base` and three times the last one.

    Many clients that fail at one moment (an API server restarts) spread out
    at once instead of coming back in step. See "Exponential Backoff And Jitter", AWS, 2015.

    Args:
        base: shortest wait, seconds.
        cap: longest wait, seconds.
        rng: where chance comes from.
    """

    def __init__(self, *, base: float, cap: float, rng: Random) -> None:
        self._base = base
        self._cap = cap
        self._rng = rng
        self._last = base

    def next(self, at_least: float = 0.0) -> float:
        """Seconds to wait now; no less than a server's Retry-After."""
        self._last = min(self._cap, self._rng.uniform(self._base, self._last * 3))
        return max(self._last, at_least)

    def reset(self) -> None:
        """It worked: the next failure starts from the base again."""
        self._last = self._base
