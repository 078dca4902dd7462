"""The controller's clock: the time of day at start, and what has passed since.

Facts and sessions carry epoch seconds, so that people can read them and another
replica can go on with them. Within a process time must never jump, and must go on
through a suspend: so the wall clock is read once.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Whoever tells the time."""

    def now(self) -> float:
        """Return seconds since the epoch; never less than the last answer."""


class BootClock:
    """The wall clock at creation plus CLOCK_BOOTTIME, which also runs through a suspend."""

    def __init__(self) -> None:
        self._offset = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> float:
        """Return seconds since the epoch."""
        return self._offset + time.clock_gettime(time.CLOCK_BOOTTIME)
