"""How long a leader may act: the times of a lease, the clock for them, and its ends."""

from __future__ import annotations

import time
from dataclasses import dataclass


class LeaseLost(Exception):  # noqa: N818 - what happened, as client-go calls it
    """We no longer lead: stop at once, without another write."""


class NotLeading(Exception):  # noqa: N818 - a state
    """The lease is not fresh: this write must not be sent."""


@dataclass(frozen=True)
class LeaseTimings:
    """The three times of a lease in seconds, as client-go names and defaults them.

    Attributes:
        duration: a follower takes over this long after the last sign of the leader.
        renew_deadline: the leader stops this long after its last successful renewal.
        retry_period: between two renewals or two looks of a follower.
        call_timeout: for one call, if the deadline leaves that much.
    """

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    call_timeout: float = 4.0

    def __post_init__(self) -> None:
        """Refuse times with which two could lead, or a leader could not keep its lease."""
        if not 0 < 2 * self.retry_period <= self.renew_deadline < self.duration:
            raise ValueError(
                "lease: need 2 x retry period <= renew deadline < duration, got"
                f" {self.retry_period:g} s, {self.renew_deadline:g} s, {self.duration:g} s"
            )


def boot_time() -> float:
    """Seconds since boot, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
