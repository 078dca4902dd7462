"""The driver's tracepoints as a source of Xids: ``nvidia_dev_xid`` and ``nvswitch_dev_sxid``.

They exist since driver 575 and carry device, code and text, but neither process nor MIG
instance. They are read by a tracefs instance of our own, so that nobody else's tracing is
touched and nobody's is seen: its ``trace_pipe`` wakes the event loop, and nothing is polled.
The instance is removed at the end; one that a killed agent left is emptied first.

A missing tracefs, driver or permission switches this one view off and is looked for again
each minute. While the agent has released the GPUs, the tracepoints are off too: an enabled
event of a module may keep it from being unloaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from node_agent.xid.parse import parse


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from node_agent.sources.kernel_log import Clock, Moment
    from node_agent.xid.catalogue import Catalogue
    from node_agent.xid.parse import XidReport

INSTANCE: Final = "gpu-remediator"
RETRY_SECONDS: Final = 60.0
EVENTS: Final = {
    "nvidia/nvidia_dev_xid": "NVRM: ",
    "nvswitch/nvswitch_dev_sxid": "nvidia-nvswitch0: ",
}
"""Tracepoints, and how the kernel-log line of the same report begins."""
_PREFIXES: Final = {path.partition("/")[2]: prefix for path, prefix in EVENTS.items()}
_LINE = re.compile(r" (\d{1,12}\.\d{1,9}): (nvidia_dev_xid|nvswitch_dev_sxid): (.*)")
_LOST = re.compile(r"\[LOST (\d+) EVENTS\]")
_BLOCK: Final = 16384
_MAX_PENDING: Final = 65536
_BELIEVABLE_SECONDS: Final = 60.0


class TraceReport(NamedTuple):
    """One traced report, and when it was (epoch seconds, never in the future)."""

    report: XidReport
    at: float


class OnState(Protocol):
    """Told why the source does not work; empty when it does."""

    def __call__(self, reason: str, *, absent: bool = False) -> None:
        """``absent``: this node has no such thing."""
        ...


class _AwayError(Exception):
    """Nothing to read here. ``absent``: this node has no such thing."""

    def __init__(self, reason: str, *, absent: bool) -> None:
        super().__init__(reason)
        self.absent = absent


class Tracepoints:
    """Reads one tracefs.

    Args:
        root: where tracefs is mounted, as ``/sys/kernel/tracing``.
        catalogue: what codes mean.
        clock: the machine's clocks; the trace is stamped by the monotonic one.
        on_state: told when it begins or ceases to work.
        instance: name of the instance; one belongs to one process.
    """

    def __init__(
        self,
        *,
        root: Path,
        catalogue: Catalogue,
        clock: Clock,
        on_state: OnState,
        instance: str = INSTANCE,
    ) -> None:
        self.lines = 0
        """Reports read since start."""
        self.lost = 0
        """Events that the kernel's buffer had no room for."""
        self._root = root
        self._folder = root / "instances" / instance
        self._catalogue = catalogue
        self._clock = clock
        self._on_state = on_state
        self._paused = False
        self._changed = asyncio.Event()
        self._rest = b""

    def pause(self, *, paused: bool) -> None:
        """Let go of the tracepoints, or take them again."""
        self._paused = paused
        self._changed.set()

    async def run(self, deliver: Callable[[TraceReport], None]) -> None:
        """Read until cancelled. Never raises for what the machine lacks."""
        while True:
            self._changed.clear()
            if self._paused:
                self._on_state("released, so that the driver can be unloaded")
                await self._changed.wait()
                continue
            try:
                await self._read(deliver)
            except _AwayError as away:
                self._on_state(str(away), absent=away.absent)
            except OSError as error:
                text = f"{error.filename or self._folder}: {error.strerror or error}"
                self._on_state(text)
            if not self._paused:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_SECONDS):
                        await self._changed.wait()

    async def _read(self, deliver: Callable[[TraceReport], None]) -> None:
        enabled = self._enable()
        descriptor = -1
        readable = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.open(
                self._folder / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )
            loop.add_reader(descriptor, readable.set)
            self._on_state("")
            while True:
                readable.clear()
                self._take(descriptor, deliver)
                await _first_of(readable, self._changed)
                if self._changed.is_set():
                    return
        finally:
            if descriptor >= 0:
                loop.remove_reader(descriptor)
                os.close(descriptor)
            self._disable(enabled)

    def _enable(self) -> list[str]:
        """Make the instance and switch the events on; which ones there are."""
        if not (self._root / "events").is_dir():
            raise _AwayError(f"tracefs is not mounted at {self._root}", absent=True)
        there = [path for path in EVENTS if (self._root / "events" / path).is_dir()]
        if not there:
            raise _AwayError(
                "the driver has no tracepoints (before 575, or not loaded)", absent=True
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "trace").write_bytes(b"")
        (self._folder / "trace_clock").write_text("mono\n", "ascii")
        for path in there:
            (self._folder / "events" / path / "enable").write_text("1\n", "ascii")
        return there

    def _disable(self, enabled: list[str]) -> None:
        self._rest = b""
        for path in enabled:
            with contextlib.suppress(OSError):
                (self._folder / "events" / path / "enable").write_text("0\n", "ascii")
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _take(self, descriptor: int, deliver: Callable[[TraceReport], None]) -> None:
        """One block: more of it wakes the loop again, so that others get their turn."""
        try:
            block = os.read(descriptor, _BLOCK)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > _MAX_PENDING:
            self._rest = b""
        now = self._clock.now()
        for line in lines:
            text = line.decode("utf-8", "replace")
            lost = _LOST.search(text)
            self.lost += int(lost.group(1)) if lost else 0
            traced = parse_trace(text, now=now, catalogue=self._catalogue)
            if traced is not None:
                self.lines += 1
                deliver(traced)


def parse_trace(text: str, *, now: Moment, catalogue: Catalogue) -> TraceReport | None:
    """One line of ``trace_pipe``; None if it is no report of ours."""
    found = _LINE.search(text)
    if found is None:
        return None
    stamp, event, body = found.groups()
    report = parse(_PREFIXES[event] + body, catalogue=catalogue)
    if report is None or report.continuation:
        return None
    age = now.boot - float(stamp)
    return TraceReport(report, now.wall - (age if 0 <= age <= _BELIEVABLE_SECONDS else 0.0))


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
