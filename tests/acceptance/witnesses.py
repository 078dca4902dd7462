"""Who sees a fault beside the agent, and when: kernel log, tracepoint, NVML, each in a thread.

Their times (CLOCK_MONOTONIC) say when the driver told of a fault, without the agent's word for it.
A source that this machine does not offer is named in `absent` and is not waited for.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self


KERNEL_LOG: Final = "kernel-log"
TRACEPOINT: Final = "tracepoint"
NVML: Final = "nvml"
_XID: Final = re.compile(r"NVRM: Xid \([^)]*\): (\d+),(?:.*?pid='?(\d+))?")
_TRACE: Final = re.compile(r" (\d+\.\d+): nvidia_dev_xid: Xid \([^)]*\): (\d+)")
_RECORD: Final = 8192
_LOOK_SECONDS: Final = 0.2
_NVML_XID: Final = 0x8
_NVML_TIMEOUT: Final = 10


class Sighting(NamedTuple):
    """`at`: when it was seen; `stamped`: when the kernel stamped it, where it does so."""

    source: str
    at: float
    code: int
    pid: int | None = None
    stamped: float | None = None
    text: str = ""


class Witnesses:
    """All that there are; a context manager.

    Args:
        kmsg: the kernel's log device, or a file that is followed.
        tracefs: where tracefs is mounted.
        nvml: whether to wait for NVML's events too.
    """

    def __init__(self, *, kmsg: Path, tracefs: Path, nvml: bool) -> None:
        self.absent: dict[str, str] = {}
        self._kmsg = kmsg
        self._instance = tracefs / "instances" / "gpu-remediator-acceptance"
        self._tracefs = tracefs
        self._sightings: list[Sighting] = []
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._with_nvml = nvml

    def __enter__(self) -> Self:
        """Open what can be opened, and watch."""
        self._begin(KERNEL_LOG, self._open_kmsg)
        self._begin(TRACEPOINT, self._open_trace)
        if self._with_nvml:
            self._begin(NVML, self._open_nvml)
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of everything."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        with contextlib.suppress(OSError):
            (self._instance / "events" / "nvidia" / "nvidia_dev_xid" / "enable").write_text("0")
        with contextlib.suppress(OSError):
            self._instance.rmdir()

    def since(self, at: float) -> list[Sighting]:
        """What was seen from then on, in the order of being seen."""
        return [one for one in list(self._sightings) if one.at >= at]

    def _begin(self, source: str, make: Callable[[], Callable[[], Iterator[Sighting]]]) -> None:
        try:
            look = make()
        except Exception as error:  # noqa: BLE001 - whatever it lacks, it is named in the result
            self.absent[source] = f"{type(error).__name__}: {error}"
            return
        self._threads.append(threading.Thread(target=self._run, args=(look,), daemon=True))
        self._threads[-1].start()

    def _run(self, look: Callable[[], Iterator[Sighting]]) -> None:
        while not self._stopped.is_set():
            self._sightings.extend(look())

    # -- the kernel log --

    def _open_kmsg(self) -> Callable[[], Iterator[Sighting]]:
        descriptor = os.open(self._kmsg, os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(descriptor, 0, os.SEEK_END)
        if self._kmsg.is_file():
            return lambda: _of_file(descriptor)
        return lambda: _of_kmsg(descriptor)

    # -- the tracepoint --

    def _open_trace(self) -> Callable[[], Iterator[Sighting]]:
        if not (self._tracefs / "events" / "nvidia" / "nvidia_dev_xid").is_dir():
            raise FileNotFoundError("the tracepoint nvidia:nvidia_dev_xid")
        self._instance.mkdir(exist_ok=True)
        (self._instance / "trace_clock").write_text("mono\n")
        (self._instance / "events" / "nvidia" / "nvidia_dev_xid" / "enable").write_text("1\n")
        descriptor = os.open(self._instance / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        return lambda: _of_trace(descriptor)

    # -- NVML --

    def _open_nvml(self) -> Callable[[], Iterator[Sighting]]:
        import pynvml  # noqa: PLC0415 - only where it is wanted

        pynvml.nvmlInit()
        events = pynvml.nvmlEventSetCreate()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceRegisterEvents(handle, _NVML_XID, events)
        return lambda: _of_nvml(pynvml, events)


def _of_kmsg(descriptor: int) -> Iterator[Sighting]:
    if not select.select([descriptor], [], [], _LOOK_SECONDS)[0]:
        return
    try:
        record = os.read(descriptor, _RECORD).decode("utf-8", "replace")
    except OSError:  # overwritten before it was read, or taken by nobody
        return
    at = time.monotonic()
    head, _, text = record.partition(";")
    found = _XID.search(text)
    if found is not None:
        stamped = int(head.split(",")[2]) / 1e6
        yield Sighting(KERNEL_LOG, at, int(found[1]), _pid(found[2]), stamped, text.strip())


def _of_file(descriptor: int) -> Iterator[Sighting]:
    text = os.read(descriptor, 1 << 20).decode("utf-8", "replace")
    at = time.monotonic()
    for found in _XID.finditer(text):
        yield Sighting(KERNEL_LOG, at, int(found[1]), _pid(found[2]), None, found[0])
    time.sleep(0.001)


def _of_trace(descriptor: int) -> Iterator[Sighting]:
    if not select.select([descriptor], [], [], _LOOK_SECONDS)[0]:
        return
    with contextlib.suppress(BlockingIOError):
        text = os.read(descriptor, 65536).decode("utf-8", "replace")
        at = time.monotonic()
        for line in text.splitlines():
            found = _TRACE.search(line)
            if found is not None:
                yield Sighting(TRACEPOINT, at, int(found[2]), None, float(found[1]), line.strip())


def _of_nvml(nvml: Any, events: Any) -> Iterator[Sighting]:
    try:
        data = nvml.nvmlEventSetWait_v2(events, int(_LOOK_SECONDS * 1000))
    except nvml.NVMLError as error:
        if error.value != _NVML_TIMEOUT:
            time.sleep(_LOOK_SECONDS)
        return
    yield Sighting(NVML, time.monotonic(), int(data.eventData))


def _pid(text: str | None) -> int | None:
    return int(text) if text else None
