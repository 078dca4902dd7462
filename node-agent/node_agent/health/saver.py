"""When the state file is written: changed faults at once, counts and positions a little later."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from node_agent.health.store import StoreError, save


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from node_agent.health.state import NodeHealth

_LATER_SECONDS: Final = 2.0
"""Mere counts and positions are saved at most this often."""
_RETRY_SECONDS: Final = 30.0


class Saver:
    """Writes the latest state, one write at a time.

    Args:
        path: of the state file.
        latest: the state, or None while it is not to be written yet.
        wrote: told of each write: "" for a good one, else why it failed.
    """

    def __init__(
        self,
        path: Path,
        *,
        latest: Callable[[], NodeHealth | None],
        wrote: Callable[[str], None],
    ) -> None:
        self._path = path
        self._latest = latest
        self._wrote = wrote
        self._saved: NodeHealth | None = None
        self._saving = asyncio.Lock()
        self._unsaved = asyncio.Event()
        self._now = asyncio.Event()

    def changed(self, health: NodeHealth) -> None:
        """Take in that the state is this one now."""
        if health is not self._saved:
            self._unsaved.set()
            if self._saved is None or self._saved.faults.keys() != health.faults.keys():
                self._now.set()

    async def run(self) -> None:
        """Write what changes, until cancelled."""
        while True:
            await self._unsaved.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LATER_SECONDS):
                    await self._now.wait()
            self._now.clear()
            self._unsaved.clear()
            await self.once()

    async def once(self) -> None:
        """Write the latest state now, unless it is written already."""
        async with self._saving:
            health = self._latest()
            if health is None or health is self._saved:
                return
            try:
                await asyncio.to_thread(save, self._path, health)
            except StoreError as error:
                self._wrote(str(error))
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._unsaved.set)
                return
            self._saved = health
            self._wrote("")
