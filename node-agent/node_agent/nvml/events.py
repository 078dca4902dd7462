"""Waits for the driver's events, in a thread of the child so that polling never waits for it.

Only the types that each device supports are registered, and of them only those we use: clock
and performance-state events come in bursts whenever a process starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from ctypes import c_void_p, cast
from typing import Any, Final

from node_agent.nvml.enumerate import Found
from node_agent.nvml.model import EVENT_NAMES
from node_agent.nvml.protocol import EVENT_WAIT_SECONDS, Answer, Event, EventsFailed
from node_agent.nvml.watch import Watch


WANTED: Final = sum(EVENT_NAMES)
_WAIT_MS: Final = int(EVENT_WAIT_SECONDS * 1000)
_TIMEOUT: Final = 10
_NO_ID: Final = 0xFFFFFFFF
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0


class EventWaiter:
    """One thread that waits on one event set.

    Args:
        nvml: the ``pynvml`` module.
        watch: makes this thread's calls.
        found: the devices to register.
        send: delivers to the agent; called from the thread.
    """

    def __init__(
        self, *, nvml: Any, watch: Watch, found: Iterable[Found], send: Callable[[Answer], None]
    ) -> None:
        self._nvml = nvml
        self._watch = watch
        self._found = tuple(found)
        self._send = send
        self._uuids = {_address(one.handle.raw): one.handle.uuid for one in self._found}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)

    def start(self) -> None:
        """Begin to wait."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when it has let go of the event set."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            try:
                if not self._wait_until_error():
                    return
            except self._nvml.NVMLError as error:
                # Waiting again at once would spin: the error mostly stays.
                self._send(EventsFailed(str(error)))
                self._stopped.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _wait_until_error(self) -> bool:
        """Deliver events until stopped. False: no device has any events."""
        nvml = self._nvml
        event_set = self._watch.call(nvml.nvmlEventSetCreate)
        try:
            if not self._register(event_set):
                return False
            while not self._stopped.is_set():
                self._wait_once(event_set)
        finally:
            nvml.nvmlEventSetFree(event_set)
        return True

    def _register(self, event_set: Any) -> bool:
        registered = False
        for one in self._found:
            types = one.device.event_mask & WANTED
            if not types:
                continue
            try:
                self._watch.call(
                    self._nvml.nvmlDeviceRegisterEvents,
                    one.handle.raw,
                    types,
                    event_set,
                    about=f"gpu {one.handle.index}",
                )
                registered = True
            except self._nvml.NVMLError as error:
                self._send(EventsFailed(f"gpu {one.handle.index}: {error}"))
        return registered

    def _wait_once(self, event_set: Any) -> None:
        try:
            data = self._watch.call(self._nvml.nvmlEventSetWait_v2, event_set, _WAIT_MS)
        except self._nvml.NVMLError as error:
            if error.value == _TIMEOUT:
                return
            raise
        self._send(
            Event(
                self._uuids.get(_address(data.device), ""),
                data.eventType,
                data.eventData,
                _instance_id(data.gpuInstanceId),
                _instance_id(data.computeInstanceId),
            )
        )


def _address(raw: Any) -> int:
    return cast(raw, c_void_p).value or 0


def _instance_id(number: int) -> int | None:
    return None if number == _NO_ID else number
