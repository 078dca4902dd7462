"""A plain log file, followed through rotation, truncation and late birth.

Every wake-up does the same thing from the state of the file system alone: read what was
appended, see whether the path names another file by now, and if so read the old one to
its end before the new one. After a rename the old file stays open until the new one has
got its first bytes, because the syslog daemon goes on writing to the old one until it
is told.

At start the log is replayed from the last boot banner in the file (all of it, less what
is stamped before this boot, where it has none), or from the saved position if that is
of this boot; if the file was rotated meanwhile, its rest is read from where it went.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import zlib
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from node_agent.sources.kernel_log import inotify
from node_agent.sources.kernel_log.model import (
    BLOCK_BYTES,
    Batch,
    Clock,
    Counters,
    Position,
)
from node_agent.sources.kernel_log.text import LineSplitter, LogText, is_boot_banner


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from node_agent.sources.kernel_log.grouping import Grouper

SOURCE: Final = "file"
_SEARCH_BYTES: Final = 262144
_OVERLAP_BYTES: Final = 512
_CHECK_BYTES: Final = 64
_DIRECTORY_EVENTS: Final = (
    inotify.ATTRIB  # of a file that may be read from now on
    | inotify.CREATE
    | inotify.MOVED_TO
    | inotify.MOVED_FROM
    | inotify.DELETE_SELF
    | inotify.MOVE_SELF
)
_BANNER: Final = b"Linux version "
_ROTATED: Final = re.compile(r"[.-]\d[\d.-]*")
"""What a rotation adds to a log's name, a number or a date; others may keep copies."""


@dataclass(slots=True)
class _OpenLog:
    """An open log and how far it was read."""

    fd: int
    inode: int
    device: int
    offset: int
    watch: int = -1
    splitter: LineSplitter = field(default_factory=LineSplitter)

    def position_offset(self) -> int:
        """Where the first line begins that was not complete yet."""
        return self.offset - self.splitter.held


class FileLog:
    """Follows one path. ``working`` tells the caller whether there is a file to read."""

    def __init__(
        self,
        path: Path,
        *,
        boot_id: str,
        clock: Clock,
        grouper: Grouper,
        counters: Counters,
        resume: Position | None,
        report_state: Callable[[str], None],
        report_loss: Callable[[str], None],
    ) -> None:
        """``resume`` is used if it is of this boot and source. ``report_state("")``: it works.

        ``report_loss`` is told in words when lines may be missing.
        """
        self._path = path
        self._boot_id = boot_id
        self._clock = clock
        self._grouper = grouper
        self._counters = counters
        self._text = LogText(grouper=grouper, counters=counters)
        self._resume = resume
        self._report_state = report_state
        self._report_loss = report_loss
        self._current: _OpenLog | None = None
        self._retiring: deque[_OpenLog] = deque()
        """Older files that may not be read to their end, oldest first."""
        self._directory: tuple[str, int] | None = None
        self._directory_watch = -1
        self._live = False
        self._only_this_boot = False
        self._caught_up = False

    async def run(self, deliver: Callable[[Batch], None]) -> None:
        """Follow the file until cancelled. OSError if the system refuses inotify."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        with inotify.Inotify() as notify:

            def on_event() -> None:
                notify.drain()
                changed.set()

            loop.add_reader(notify.fileno(), on_event)
            try:
                while True:
                    changed.clear()
                    await self._look(notify, deliver)
                    await changed.wait()
            finally:
                loop.remove_reader(notify.fileno())
                for log in (*self._retiring, self._current):
                    self._close(notify, log)

    async def _look(self, notify: inotify.Inotify, deliver: Callable[[Batch], None]) -> None:
        """One wake-up: bring everything up to the present state of the file system."""
        while self._watch_directory(notify):
            pass  # watch first, look then: what is born in between is not missed
        if self._current is None:
            await self._open(notify)
        if self._current is None:
            return
        await self._read(notify, deliver)
        if self._moved() and self._switch(notify):
            await self._read(notify, deliver)
        if not self._caught_up:
            self._caught_up = self._live = True
            self._only_this_boot = False
            self._deliver(deliver)

    def _watch_directory(self, notify: inotify.Inotify) -> bool:
        """Watch the nearest directory that exists. True if that changed the watch."""
        for parent in self._path.absolute().parents:
            with contextlib.suppress(OSError):
                found = (str(parent), parent.stat().st_ino)
                if found == self._directory:
                    return False
                watch = notify.add(found[0], _DIRECTORY_EVENTS)
                if self._directory_watch not in {-1, watch}:
                    notify.remove(self._directory_watch)
                self._directory, self._directory_watch = found, watch
                return True
        return False

    async def _open(self, notify: inotify.Inotify) -> None:
        log = self._open_path(notify)
        if log is None:
            return
        self._current = log
        resume = self._usable_resume()
        if resume is None:
            log.offset = await _last_boot(log.fd)
            # The last banner may be of the boot before: a syslog daemon that started late, or
            # died. So what can tell its age is asked for it, banner or not.
            self._only_this_boot = True
        elif resume.inode == log.inode and _is_unchanged(log.fd, resume):
            log.offset = resume.offset
        elif rotated := self._reopen_rotated(resume, notify):
            self._retiring.extend(rotated)
        else:
            self._lose_place()
        self._resume = None

    def _lose_place(self) -> None:
        self._counters.lost_places += 1
        self._report_loss(
            f"{self._path} is not the file that was read before, and that one is deleted, "
            "compressed or overwritten: what it held behind the last line that was read is not seen"
        )

    def _open_path(self, notify: inotify.Inotify) -> _OpenLog | None:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._report_state(f"{self._path} does not exist (yet)")
            return None
        except OSError as error:
            self._report_state(f"{self._path} cannot be opened: {error.strerror}")
            return None
        self._report_state("")
        return self._opened(fd, notify)

    @staticmethod
    def _opened(fd: int, notify: inotify.Inotify, offset: int = 0) -> _OpenLog:
        status = os.fstat(fd)
        log = _OpenLog(fd, status.st_ino, status.st_dev, offset)
        log.watch = notify.add(f"/proc/self/fd/{fd}", inotify.MODIFY | inotify.ATTRIB)
        return log

    def _usable_resume(self) -> Position | None:
        saved = self._resume
        usable = saved and saved.source == SOURCE and saved.boot_id == self._boot_id != ""
        return saved if usable else None

    def _reopen_rotated(self, saved: Position, notify: inotify.Inotify) -> list[_OpenLog]:
        """The file of the saved position under its new name, and the rotated ones after it.

        Or a copy, as copy-and-truncate leaves it. Empty if it is gone, or compressed: what else
        is there may have been read before.
        """
        kept: list[_OpenLog] = []
        for log, is_rotated in sorted(self._siblings(notify), key=_last_written):
            same = log.inode == saved.inode or (is_rotated and saved.offset > 0)
            if not kept and same and _is_unchanged(log.fd, saved):
                log.offset = saved.offset
                kept.append(log)
            elif kept and is_rotated:
                kept.append(log)
            else:
                self._close(notify, log)
        return kept

    def _siblings(self, notify: inotify.Inotify) -> Iterator[tuple[_OpenLog, bool]]:
        """The files beside the path that bear its name and more, and whether as a rotation's."""
        for sibling in self._path.parent.iterdir():
            more = sibling.name.removeprefix(self._path.name)
            if more in {"", sibling.name}:
                continue
            with contextlib.suppress(OSError):
                log = self._opened(os.open(sibling, os.O_RDONLY | os.O_CLOEXEC), notify)
                yield log, _ROTATED.fullmatch(more) is not None

    async def _read(self, notify: inotify.Inotify, deliver: Callable[[Batch], None]) -> None:
        """Read the old files, if any, to their end; and the current one, once it is alone."""
        current = self._current
        while current is not None and self._retiring:
            old, *later = self._retiring
            is_written_to = any(os.fstat(log.fd).st_size > 0 for log in (*later, current))
            await self._read_to_end(old, deliver)
            if not is_written_to:
                return
            self._take(old.splitter.flush(), deliver)
            self._retiring.popleft()
            self._close(notify, old)
        if current is not None:
            await self._read_to_end(current, deliver)

    async def _read_to_end(self, log: _OpenLog, deliver: Callable[[Batch], None]) -> None:
        if os.fstat(log.fd).st_size < log.offset:
            self._counters.truncations += 1
            log.offset, log.splitter = 0, LineSplitter()
        while chunk := os.pread(log.fd, BLOCK_BYTES, log.offset):
            log.offset += len(chunk)
            self._take(log.splitter.push(chunk), deliver)
            await asyncio.sleep(0)

    def _take(self, block: bytes, deliver: Callable[[Batch], None]) -> None:
        if not block:
            return
        self._text.read(
            block, self._clock.now(), live=self._live, only_this_boot=self._only_this_boot
        )
        self._deliver(deliver)

    def _deliver(self, deliver: Callable[[Batch], None]) -> None:
        # While an old file is open its end, not the new file, is the position to go on from.
        log = self._retiring[0] if self._retiring else self._current
        position = None
        if log is not None:
            offset = log.position_offset()
            check = _check(log.fd, offset)
            position = Position(SOURCE, self._boot_id, inode=log.inode, offset=offset, check=check)
        deliver(
            Batch(self._grouper.take(), self._grouper.take_identities(), position, self._caught_up)
        )

    def _moved(self) -> bool:
        """Whether the path names another file than the one we read."""
        if self._current is None:
            return False
        try:
            status = self._path.stat()
        except OSError:
            return False  # renamed away, the new one is not born yet: go on reading
        return (status.st_ino, status.st_dev) != (self._current.inode, self._current.device)

    def _switch(self, notify: inotify.Inotify) -> bool:
        new = self._open_path(notify)
        if new is None:
            return False
        self._counters.rotations += 1
        if self._current is not None:
            self._retiring.append(self._current)
        self._current = new
        return True

    @staticmethod
    def _close(notify: inotify.Inotify, log: _OpenLog | None) -> None:
        if log is not None:
            notify.remove(log.watch)
            os.close(log.fd)


def _last_written(found: tuple[_OpenLog, bool]) -> int:
    return os.fstat(found[0].fd).st_mtime_ns


def _check(fd: int, offset: int) -> int:
    """CRC of the bytes before an offset: whether a file is still the one we read."""
    start = max(0, offset - _CHECK_BYTES)
    return zlib.crc32(os.pread(fd, offset - start, start))


def _is_unchanged(fd: int, saved: Position) -> bool:
    """Whether what was read up to a saved position still stands in the file."""
    return saved.offset <= os.fstat(fd).st_size and _check(fd, saved.offset) == saved.check


async def _last_boot(fd: int) -> int:
    """Offset of the last boot banner's line; 0 where there is none."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _SEARCH_BYTES)
        data = os.pread(fd, end - start + _OVERLAP_BYTES, start)
        found = data.rfind(_BANNER)
        while found >= 0:
            line = data.rfind(b"\n", 0, found) + 1
            if (line > 0 or start == 0) and is_boot_banner(data[line : found + len(_BANNER)]):
                return start + line
            found = data.rfind(_BANNER, 0, found)
        end = start
        await asyncio.sleep(0)
    return 0
