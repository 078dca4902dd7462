"""Which messages arrived lately: told to the next leader, so that it sends none of them again.

A node's history owes people the message that its session ended, until it is known that it arrived
and a patch of the node says so. If the leader changes in between, its successor knows by this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


TOLD_FOR: Final = 600.0
"""Seconds for which it is remembered: by then no node owes the message any more."""
MAX_TOLD: Final = 500


class Told:
    """When messages arrived, by key, oldest first."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def __contains__(self, key: str) -> bool:
        """Tell whether a message arrived lately."""
        return key in self._at

    def add(self, key: str, now: float) -> None:
        """Note that a message arrived."""
        self._at[key] = now

    def take_over(self, earlier: Mapping[str, float]) -> None:
        """Add what an earlier leader knew."""
        self._at = {**earlier, **self._at}

    def lately(self, now: float) -> dict[str, float]:
        """Return the newest, and forget others."""
        recent = [(key, at) for key, at in self._at.items() if at > now - TOLD_FOR]
        self._at = dict(recent[-MAX_TOLD:])
        return dict(self._at)
