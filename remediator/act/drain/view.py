"""The pods of one node while it is drained: listed once, then watched.

A watch of one node's pods is small, and tells of a pod's end at once. There is one for
each drain under way, and none otherwise: the controller does not follow all pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from remediator.kube.client import ApiClient, pod_reflector
from remediator.kube.pods import Pod
from remediator.kube.store import Store


class Pods(Protocol):
    """The pods of one node as they are now."""

    changed: asyncio.Event
    """Set when there is something new; whoever waits for it clears it."""

    @property
    def synced(self) -> bool:
        """Whether all of them are known."""

    @property
    def trouble(self) -> str:
        """Why they cannot be followed now, "" if they can."""

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Pods that are there and cannot be read, and why."""

    def all(self) -> list[Pod]:
        """Return every pod."""

    def get(self, name: str) -> Pod | None:
        """Return a pod by ``namespace/name``."""


class WatchedPods:
    """Pods that a reflector keeps current; see `Pods`."""

    def __init__(self, api: ApiClient, node: str) -> None:
        self.changed = asyncio.Event()
        self._store: Store[Pod] = Store()
        self._store.on_event(lambda _old, _new: self.changed.set())
        self._failure: Exception | None = None
        self._reflector = pod_reflector(api, self._store, node=node)

    @property
    def synced(self) -> bool:
        """See `Pods`."""
        return self._reflector.synced.is_set()

    @property
    def trouble(self) -> str:
        """See `Pods`."""
        error = self._failure or self._reflector.last_error
        return str(error) if error is not None else ""

    @property
    def unreadable(self) -> Mapping[str, str]:
        """See `Pods`."""
        return self._reflector.unreadable

    def all(self) -> list[Pod]:
        """See `Pods`."""
        return list(self._store)

    def get(self, name: str) -> Pod | None:
        """See `Pods`."""
        return self._store.get(name)

    async def run(self) -> None:
        """Follow them until cancelled."""
        synced = asyncio.create_task(self._reflector.synced.wait())
        synced.add_done_callback(lambda _: self.changed.set())
        try:
            await self._reflector.run()
        except Exception as error:
            self._failure = error
            self.changed.set()
            raise
        finally:
            synced.cancel()


Watch = Callable[[str], AbstractAsyncContextManager[Pods]]


def watch_with(api: ApiClient) -> Watch:
    """Return what follows a node's pods, by its name, for as long as it is entered."""

    @asynccontextmanager
    async def watch(node: str) -> AsyncIterator[Pods]:
        pods = WatchedPods(api, node)
        task = asyncio.create_task(pods.run(), name=f"pods of {node}")
        try:
            yield pods
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return watch
