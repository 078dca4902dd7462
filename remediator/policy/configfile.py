"""``RemediatorConfig`` that follows its file, as policies do theirs.

A version with an error changes nothing: the one before stays in force, and the problem is
shown until the file is good. So does a file that is gone, or cannot be read (a volume that
is being mounted anew). Like a policy file, it is looked at once a second, and a change counts
once it was seen twice unchanged.

What takes a good version up is not decided here: `changed` says that there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from remediator.policy.cluster import ClusterSpec
from remediator.policy.load import load_config
from remediator.policy.problems import PolicyError
from remediator.policy.reload import POLL_SECONDS, Stamps, stamps


_log = structlog.get_logger(__name__)


class ConfigFile:
    """The file, what is in force, and what is wrong with the newest version.

    Args:
        path: None where there is no file; then nothing ever changes.
        in_force: what it said when it was read first.
        poll: seconds between two looks.
        sleep: waits; injected for tests.

    Attributes:
        in_force: the version that counts now.
        problem: why the newest version is not in force; "" while it is, or is about to be.
        changed: set while there is a good version other than the one in force.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        in_force: ClusterSpec,
        poll: float = POLL_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.in_force = in_force
        self.problem = ""
        self.changed = asyncio.Event()
        self._path = path
        self._poll = poll
        self._sleep = sleep
        self._newest = in_force
        self._taken: Stamps | None = None
        self._seen: Stamps | None = None

    async def follow(self) -> None:
        """Look at the file until cancelled."""
        while self._path is not None:
            await self._sleep(self._poll)
            await self.look()

    async def look(self) -> None:
        """Look once, and take in a change that has come to rest."""
        if self._path is None:
            return
        now = await self._stamps(self._path)
        settled, self._seen = now == self._seen, now
        if settled and now != self._taken:
            await self._read(self._path)

    async def refresh(self) -> None:
        """Read the file now, if it changed: who asks, is about to act by it."""
        if self._path is not None and await self._stamps(self._path) != self._taken:
            await self._read(self._path)

    def take(self) -> ClusterSpec:
        """Put the newest good version in force, and return it."""
        self.changed.clear()
        self.in_force = self._newest
        return self.in_force

    def go_back(self, before: ClusterSpec, why: str) -> ClusterSpec:
        """Put the version before in force again: the newest cannot be, and why. Return it."""
        self.in_force = before
        if not self.changed.is_set():  # else there is a newer one already
            self._say(f"{self._path}: {why}")
        return before

    async def _read(self, path: Path) -> None:
        self._taken = self._seen = await self._stamps(path)
        try:
            found = await asyncio.to_thread(load_config, path)
        except PolicyError as error:
            more = len(error.problems) - 1
            self._say(f"{error.problems[0]}{f' (and {more} more)' if more > 0 else ''}")
            return
        self._newest, self.problem = found, ""
        if found == self.in_force:
            self.changed.clear()
        else:
            _log.info("config_changed", file=str(path))
            self.changed.set()

    @staticmethod
    async def _stamps(path: Path) -> Stamps:
        return await asyncio.to_thread(stamps, [path])

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            _log.error("config_problem", problem=problem, kept="the version before")
        self.problem = problem
