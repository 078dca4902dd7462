"""Being told that something changed in a folder that may come and go.

Used for the kubelet's folders: its socket is made anew when it starts, and it writes its
checkpoint when it hands out a device. What changed does not matter, see
:mod:`node_agent.sources.kernel_log.inotify`: the listener asks the kubelet, who knows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from node_agent.sources.kernel_log import inotify


_EVENTS: Final = inotify.CREATE | inotify.MOVED_TO | inotify.DELETE_SELF | inotify.MOVE_SELF


async def watch_folders(
    folders: Sequence[Path], *, changed: Callable[[], None], again: float
) -> None:
    """Call ``changed`` after each burst of changes, until cancelled.

    Args:
        folders: those to watch; one that is not there is looked for again.
        changed: called on the event loop.
        again: seconds between looks for folders that are missing or were replaced.

    Raises:
        OSError: this process may have no (more) inotify descriptors.
    """
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    watches: dict[Path, tuple[int, int]] = {}
    with inotify.Inotify() as notify:
        loop.add_reader(notify.fileno(), told.set)
        try:
            while True:
                if _watch_missing(notify, folders, watches):
                    changed()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(again):
                        await told.wait()
                if told.is_set():
                    told.clear()
                    notify.drain()
                    changed()
        finally:
            loop.remove_reader(notify.fileno())


def _watch_missing(
    notify: inotify.Inotify, folders: Sequence[Path], watches: dict[Path, tuple[int, int]]
) -> bool:
    """Watch each folder that is not watched as it is now. True if there was one."""
    found = False
    for folder in folders:
        with contextlib.suppress(OSError):
            status = folder.stat()
            identity = (status.st_dev, status.st_ino)
            if watches.get(folder) != identity:
                notify.add(str(folder), _EVENTS)
                watches[folder] = identity
                found = True
    return found
