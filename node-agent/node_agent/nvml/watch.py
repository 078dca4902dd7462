"""Makes NVML calls so that the agent can see one that does not return, and counts them.

One :class:`Watch` for each thread of the child: its slot holds one call at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from node_agent.nvml.protocol import Calls, Page, Slot, begin_call, end_call


class Watch:
    """Makes calls and keeps what they cost.

    Args:
        page: shared with the agent.
        slot: this thread's.
    """

    def __init__(self, *, page: Page, slot: Slot) -> None:
        self._page = page
        self._slot = slot
        self._stats: dict[str, Calls] = {}

    def call(self, function: Callable[..., Any], *arguments: Any, about: str = "") -> Any:
        """Call ``function(*arguments)``. ``about``: which device, for the name of a hung call.

        Raises:
            pynvml.NVMLError: as the function does.
        """
        name = function.__name__
        started = time.monotonic()
        begin_call(self._page, self._slot, f"{name} {about}".rstrip(), started)
        failed = 1
        try:
            result = function(*arguments)
            failed = 0
        finally:
            end_call(self._page, self._slot)
            self._count(name, failed, time.monotonic() - started)
        return result

    def take(self) -> dict[str, Calls]:
        """What was counted since the last time."""
        stats, self._stats = self._stats, {}
        return stats

    def _count(self, name: str, failed: int, seconds: float) -> None:
        before = self._stats.get(name)
        if before is None:
            self._stats[name] = Calls(1, failed, seconds, seconds)
            return
        self._stats[name] = Calls(
            before.count + 1, before.errors + failed, before.total_seconds + seconds, seconds
        )
