"""The NVML child: the only process that loads libnvidia-ml, so that a hung driver hangs it alone.

``python -m node_agent.nvml.child SOCKET PAGE PARENT PROC DEV``: two inherited file descriptors,
the agent's pid, and where procfs and device nodes are. Started by
:mod:`node_agent.nvml.process`, never by a person.

Invariants:

- Imports only pynvml, msgspec and the standard library.
- Every NVML call goes through a :class:`Watch`, so that the agent sees which one hangs.
- On Stop, SIGTERM or the end of the socket it closes its handles and exits: a process that dies
  with open handles has frozen GPUs. If the agent dies in any way, the kernel ends the child.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from node_agent.nvml.access import bound_gpus, denied, driver_loaded
from node_agent.nvml.collect import DeviceReader
from node_agent.nvml.enumerate import Enumerator, Found
from node_agent.nvml.events import EventWaiter
from node_agent.nvml.findings import GpuLostError
from node_agent.nvml.mig import InstanceReader, first_of_each
from node_agent.nvml.model import NvmlState, Process
from node_agent.nvml.processes import ProcessReader
from node_agent.nvml.protocol import (
    PAGE_BYTES,
    Answer,
    Done,
    Enumerate,
    Enumerated,
    Failed,
    Group,
    Poll,
    Processes,
    Slot,
    Unframer,
    frame,
    read_request,
)
from node_agent.nvml.watch import Watch


_PR_SET_PDEATHSIG: Final = 1
_RECEIVE_BYTES: Final = 65536
_STATES: Final = {
    4: NvmlState.NO_ACCESS,
    9: NvmlState.DRIVER_NOT_LOADED,
    12: NvmlState.NO_LIBRARY,
    17: NvmlState.NO_ACCESS,
    18: NvmlState.VERSION_MISMATCH,
}
_MAY_BE_ACCESS: Final = frozenset({4, 9, 17, 999})


class NvmlUnusableError(Exception):
    """NVML cannot be used; ``state`` is what to call it."""

    def __init__(self, state: NvmlState, why: str) -> None:
        super().__init__(why)
        self.state = state


class Opened:
    """NVML initialized, with its devices; :meth:`close` lets go of everything."""

    def __init__(self, *, nvml: Any, watch: Watch, enumerator: Enumerator) -> None:
        self._nvml = nvml
        self._enumerator = enumerator
        self.enumeration = enumerator.everything()
        found = self.enumeration.found
        self.readers = [DeviceReader(nvml=nvml, watch=watch, handle=one.handle) for one in found]
        self.instances = {
            one.handle.uuid: [
                InstanceReader(nvml=nvml, watch=watch, gpu=one.handle, instance=instance)
                for instance in first_of_each(one.instances)
            ]
            for one in found
        }
        self.processes = [ProcessReader(nvml=nvml, watch=watch, handle=one.handle) for one in found]
        self.events: EventWaiter | None = None

    def changed_mig(self) -> str:
        """Which device's MIG layout is not what was enumerated; empty when all are."""
        for one in self.enumeration.found:
            if one.device.mig_enabled is not None and self._mig_differs(one):
                return f"MIG of gpu {one.device.index} was reconfigured"
        return ""

    def _mig_differs(self, one: Found) -> bool:
        enabled, instances = self._enumerator.mig(one.handle.raw, one.handle.index)
        mig = tuple(instance.of for instance in instances)
        return (enabled, mig) != (one.device.mig_enabled, one.device.mig)

    def close(self) -> None:
        """Stop the event thread, free samples, shut NVML down."""
        if self.events is not None:
            self.events.stop()
        for reader in self.readers:
            reader.close()
            for instance in self.instances[reader.handle.uuid]:
                instance.close()
        self._nvml.nvmlShutdown()


class Child:
    """Answers the agent's requests, one at a time.

    Args:
        agent: the socket.
        page: shared with the agent.
        nvml: the ``pynvml`` module.
        proc: where procfs is.
        devices: where device nodes are.
    """

    def __init__(
        self, *, agent: socket.socket, page: mmap.mmap, nvml: Any, proc: Path, devices: Path
    ) -> None:
        self._agent = agent
        self._nvml = nvml
        self._proc = proc
        self._devices = devices
        self._sending = threading.Lock()
        self._watch = Watch(page=page, slot=Slot.POLL)
        self._event_watch = Watch(page=page, slot=Slot.EVENTS)
        self._opened: Opened | None = None
        self._bound: tuple[str, ...] | None = None

    def serve(self) -> None:
        """Until the agent says Stop or goes away, or NVML cannot be used."""
        unframer = Unframer()
        try:
            while received := self._agent.recv(_RECEIVE_BYTES):
                for body in unframer.feed(received):
                    if not self._answer(body):
                        return
        finally:
            self._close()

    def _answer(self, body: bytes) -> bool:
        """Answer one request. False: there will be no other."""
        request = read_request(body)
        if isinstance(request, Enumerate):
            try:
                self._send(self._enumerate(request.id))
            except NvmlUnusableError as error:
                self._send(Failed(request.id, error.state, str(error)))
                return False
            return True
        if isinstance(request, Poll):
            self._poll(request)
            return True
        return False

    def _send(self, answer: Answer) -> None:
        message = frame(answer)
        with self._sending:  # the event thread sends too
            self._agent.sendall(message)

    def _close(self) -> None:
        if self._opened is not None:
            opened, self._opened = self._opened, None
            opened.close()

    # -- enumerating --

    def _enumerate(self, number: int) -> Enumerated:
        self._close()
        nvml = self._nvml
        try:
            self._watch.call(nvml.nvmlInit)
        except nvml.NVMLError as error:
            raise self._unusable("nvmlInit", error) from error
        try:
            self._opened = Opened(
                nvml=nvml,
                watch=self._watch,
                enumerator=Enumerator(nvml=nvml, watch=self._watch),
            )
        except nvml.NVMLError as error:
            nvml.nvmlShutdown()
            raise self._unusable("nvmlDeviceGetCount", error) from error
        self._bound = bound_gpus(self._proc)
        found = self._opened.enumeration.found
        refused = denied(self._devices)
        if not found and refused:
            raise NvmlUnusableError(NvmlState.NO_ACCESS, refused)
        self._opened.events = EventWaiter(
            nvml=nvml, watch=self._event_watch, found=found, send=self._send
        )
        self._opened.events.start()
        enumeration = self._opened.enumeration
        return Enumerated(
            number,
            enumeration.driver,
            tuple(one.device for one in found),
            enumeration.unanswered,
            enumeration.any_lost,
            None if self._bound is None else len(self._bound),
        )

    def _unusable(self, call: str, error: Any) -> NvmlUnusableError:
        text = f"{call}: {error}"
        if error.value in _MAY_BE_ACCESS and driver_loaded(self._proc):
            refused = denied(self._devices)
            if refused:
                return NvmlUnusableError(NvmlState.NO_ACCESS, f"{text}; {refused}")
        return NvmlUnusableError(_STATES.get(error.value, NvmlState.RESTARTING), text)

    # -- polling --

    def _poll(self, request: Poll) -> None:
        changed = "nothing was enumerated"
        if self._opened is not None:
            changed = ""
            for group in request.groups:
                if group is Group.PROCESSES:
                    self._send(Processes(self._read_processes(self._opened)))
                else:
                    changed = self._read_group(self._opened, group, request.last) or changed
            if Group.SLOW in request.groups:
                changed = changed or self._changed(self._opened)
        self._send(Done(request.id, {**self._watch.take(), **self._event_watch.take()}, changed))

    def _read_group(self, opened: Opened, group: Group, last: tuple[str, ...]) -> str:
        """Read and send one group. Returns why to enumerate again, or nothing."""
        why = ""
        # A device on which a call has hung comes last: the others are read before it hangs again.
        for reader in sorted(opened.readers, key=lambda reader: reader.handle.uuid in last):
            values = reader.read(group)
            self._send(values)
            if group is Group.FAST and values.errors and not values.values:
                why = f"gpu {reader.handle.index} gives nothing but errors"
            if not values.lost:
                self._read_instances(opened.instances[reader.handle.uuid], group)
        return why

    def _read_instances(self, readers: Iterable[InstanceReader], group: Group) -> None:
        for reader in readers:
            try:
                values = reader.read(group)
            except GpuLostError:
                return  # the next look at the GPU says so
            if values is not None:
                self._send(values)

    def _read_processes(self, opened: Opened) -> tuple[Process, ...]:
        processes: list[Process] = []
        for reader in opened.processes:
            try:
                processes += reader.read()
            except GpuLostError:
                continue  # the other groups say so
        return tuple(processes)

    def _changed(self, opened: Opened) -> str:
        bound = bound_gpus(self._proc)
        if bound != self._bound:
            return "the driver has other GPUs than before"
        try:
            self._watch.call(self._nvml.nvmlSystemGetDriverVersion)
        except self._nvml.NVMLError as error:
            return f"the driver went away: {error}"
        return opened.changed_mig()


def _die_with_the_agent(agent_pid: int) -> None:
    """Ask the kernel to end this process when the agent ends, however it ends."""
    from ctypes import CDLL  # noqa: PLC0415 - only after the stop signals are set

    CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent_pid:
        sys.exit(0)  # it died before


def _stop(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)  # unwinds through serve(), which closes the handles


def main(arguments: list[str]) -> None:
    """Serve the agent on the inherited descriptors."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C; the agent stops us
    descriptor, page_descriptor, agent_pid = (int(number) for number in arguments[:3])
    _die_with_the_agent(agent_pid)
    agent = socket.socket(fileno=descriptor)
    page = mmap.mmap(page_descriptor, PAGE_BYTES)
    try:
        import pynvml  # noqa: PLC0415 - if it is missing, the agent is told so
    except ImportError:
        why = "the Python package nvidia-ml-py is not installed"
        agent.sendall(frame(Failed(0, NvmlState.NO_LIBRARY, why)))
        return
    child = Child(
        agent=agent,
        page=page,
        nvml=pynvml,
        proc=Path(arguments[3]),
        devices=Path(arguments[4]),
    )
    child.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
