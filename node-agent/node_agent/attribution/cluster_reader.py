"""Asks the API server for one kind of object: slowly, and at once when something new is seen.

What it does not know is not new the second time: a pod that it never lists costs one question.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final

from node_agent.attribution.cluster import ClusterReadError, Get
from node_agent.attribution.kubelet import pause_after


if TYPE_CHECKING:
    from random import Random

INTERVAL_SECONDS: Final = 120.0


class ClusterReader:
    """One kind of object of this node.

    Args:
        path: of the list request, with its query.
        resource: its RBAC name.
        get: sends it.
        take: reads the answer's body; raises ClusterReadError if it cannot.
        report: gets why it does not work, or the empty text.
        gap: shortest time between two questions in seconds.
        random: spreads the questions of many nodes over time.
    """

    def __init__(
        self,
        *,
        path: str,
        resource: str,
        get: Get,
        take: Callable[[bytes], None],
        report: Callable[[str], None],
        gap: float,
        random: Random,
    ) -> None:
        self._path = path
        self._resource = resource
        self._get = get
        self._take = take
        self._report = report
        self._gap = gap
        self._random = random
        self._unknown: frozenset[Hashable] = frozenset()
        self._something = asyncio.Event()

    def missing(self, unknown: frozenset[Hashable]) -> None:
        """These are in use here and were in no answer yet."""
        if unknown - self._unknown:
            self._something.set()
        self._unknown = unknown

    async def run(self) -> None:
        """Ask until cancelled."""
        failures = 0
        while True:
            self._something.clear()
            error = await self._ask()
            self._report("" if error is None else str(error))
            failures = 0 if error is None else failures + 1
            spread = self._random.uniform(0.9, 1.1)
            if error is not None:
                pause = pause_after(failures, interval=INTERVAL_SECONDS, gap=self._gap)
                await asyncio.sleep(max(error.retry_after, pause * spread))
                continue
            await asyncio.sleep(self._gap * spread)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_SECONDS * spread):
                    await self._something.wait()

    async def _ask(self) -> ClusterReadError | None:
        try:
            self._take(await self._get(self._path, self._resource))
        except ClusterReadError as error:
            return error
        return None
