"""Choosing the kernel-log source, and keeping it going.

``auto`` takes /dev/kmsg where it can be opened, else syslog(2), else a file. A source
that fails is reported with its reason and tried again from where it stopped; it never
takes the agent down. This is one view of the node, the others do not depend on it.
"""

from __future__ import annotations

import asyncio
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from node_agent.sources.kernel_log import fifo, file, kmsg, syslog
from node_agent.sources.kernel_log.grouping import Grouper
from node_agent.sources.kernel_log.model import (
    Batch,
    Clock,
    Counters,
    Mode,
    Position,
    SourceState,
    SystemClock,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from node_agent.xid.catalogue import Catalogue

RETRY_SECONDS: Final = 30.0
DEFAULT_FILES: Final = (
    Path("/var/log/kern.log"),
    Path("/var/log/messages"),
    Path("/var/log/syslog"),
)


@dataclass(frozen=True, slots=True)
class KernelLogPaths:
    """Where things are; all of them can be mounted elsewhere. ``files``: the first that exists."""

    kmsg: Path = Path("/dev/kmsg")
    files: tuple[Path, ...] = DEFAULT_FILES
    fifo: Path | None = None
    boot_id: Path = Path("/proc/sys/kernel/random/boot_id")


class _Reader(Protocol):
    async def run(self, deliver: Callable[[Batch], None]) -> None:
        """Read until cancelled; OSError when that is impossible."""
        ...


class KernelLog:
    """The kernel log of this node, from whichever source works.

    ``counters`` and ``state`` may be read at any time; ``boot_id`` is this boot's, empty
    if it cannot be read (then nothing is resumed, the whole boot is replayed).
    """

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        mode: Mode = Mode.AUTO,
        paths: KernelLogPaths | None = None,
        resume: Position | None = None,
        clock: Clock | None = None,
        poll_seconds: float = syslog.DEFAULT_POLL_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        on_state: Callable[[SourceState], None] | None = None,
        on_loss: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``resume``: position of the last batch that was stored. ``on_state``: on change.

        ``on_loss``: told in words when lines may be missing.
        """
        self._mode = mode
        self._paths = paths or KernelLogPaths()
        self._clock = clock or SystemClock()
        self._poll_seconds = poll_seconds
        self._retry_seconds = retry_seconds
        self._on_state = on_state
        self._on_loss = on_loss
        self._position = resume
        self.counters = Counters()
        self._grouper = Grouper(catalogue=catalogue, counters=self.counters)
        self.boot_id = read_boot_id(self._paths.boot_id)
        self.state = SourceState(mode.value, working=False, reason="not started")

    async def run(self, deliver: Callable[[Batch], None]) -> None:
        """Deliver batches until cancelled. ``deliver`` runs on the loop and must be quick."""

        def track(batch: Batch) -> None:
            deliver(batch)
            if batch.position is not None:
                self._position = batch.position

        while True:
            mode = self._choose()
            try:
                await self._reader(mode).run(track)
            except OSError as error:
                self._set_state(mode, _explain(mode, error))
            await asyncio.sleep(self._retry_seconds)

    def _choose(self) -> Mode:
        if self._mode is not Mode.AUTO:
            return self._mode
        if can_open_kmsg(self._paths.kmsg):
            return Mode.KMSG
        return Mode.SYSLOG if can_read_ring() else Mode.FILE

    def _reader(self, mode: Mode) -> _Reader:
        def report_state(reason: str) -> None:
            self._set_state(mode, reason)

        resume = self._position
        if mode is Mode.KMSG:
            return kmsg.KmsgLog(
                self._paths.kmsg,
                boot_id=self.boot_id,
                clock=self._clock,
                grouper=self._grouper,
                counters=self.counters,
                resume=resume,
                report_state=report_state,
            )
        if mode is Mode.SYSLOG:
            return syslog.SyslogRing(
                boot_id=self.boot_id,
                clock=self._clock,
                grouper=self._grouper,
                counters=self.counters,
                resume=resume,
                report_state=report_state,
                poll_seconds=self._poll_seconds,
            )
        if mode is Mode.FIFO:
            return fifo.FifoLog(
                self._paths.fifo or self._paths.files[0],
                clock=self._clock,
                grouper=self._grouper,
                counters=self.counters,
                report_state=report_state,
            )
        return file.FileLog(
            self._file_path(),
            boot_id=self.boot_id,
            clock=self._clock,
            grouper=self._grouper,
            counters=self.counters,
            resume=resume,
            report_state=report_state,
            report_loss=self._on_loss,
        )

    def _file_path(self) -> Path:
        files = self._paths.files or DEFAULT_FILES
        return next((path for path in files if path.is_file()), files[0])

    def _set_state(self, mode: Mode, reason: str) -> None:
        state = SourceState(mode.value, working=not reason, reason=reason)
        if state != self.state:
            self.state = state
            if self._on_state is not None:
                self._on_state(state)


def read_boot_id(path: Path) -> str:
    """This boot's id (equal to the kubelet's nodeInfo.bootID), empty if unreadable."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def can_open_kmsg(path: Path) -> bool:
    """Whether /dev/kmsg can be opened here; a mounted one may still be refused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return stat.S_ISCHR(os.fstat(fd).st_mode)
    finally:
        os.close(fd)


def can_read_ring() -> bool:
    """Whether syslog(2) lets us read the ring."""
    try:
        syslog.read_ring(1)
    except OSError:
        return False
    return True


_REMEDY: Final = {
    Mode.KMSG: "give the container the device and CAP_SYSLOG, or set the source to syslog or file",
    Mode.SYSLOG: "give the container CAP_SYSLOG, or set the source to file",
    Mode.FILE: "mount the directory of the log file, or set its path",
    Mode.FIFO: "create the FIFO, readable and writable by the agent",
}


def _explain(mode: Mode, error: OSError) -> str:
    where = f" {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}: {_REMEDY.get(mode, '')}"
