"""The agent's end of one NVML child: start by exec, frames, which call hangs, the end.

Never forked from the agent: the interpreter is started anew, imports only what the child needs,
and shares with the agent a socket and one page of memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from node_agent.nvml.protocol import (
    PAGE_BYTES,
    Answer,
    InFlight,
    ProtocolError,
    Request,
    Unframer,
    frame,
    in_flight,
    read_answer,
)


_RECEIVE_BYTES: Final = 65536
_REAP_SECONDS: Final = (0.01, 0.05, 0.2, 0.5)
_MODULE: Final = "node_agent.nvml.child"


class ChildGoneError(Exception):
    """The child ended or cannot be started. The text says what is known of it."""


class NvmlChild(Protocol):
    """One child, as the supervisor handles it."""

    async def send(self, request: Request) -> None:
        """Send a request.

        Raises:
            ChildGoneError: it ended.
        """

    async def receive(self) -> Answer:
        """The next message.

        Raises:
            ChildGoneError: it ended, or spoke nonsense.
        """

    def in_flight(self) -> tuple[InFlight, ...]:
        """NVML calls that have not returned."""

    def kill(self) -> None:
        """End it by SIGKILL; in state D it dies only when the kernel lets go of it."""

    def ended(self) -> bool:
        """Whether the process is gone. Reaps it."""

    def close(self) -> None:
        """Let go of the socket and the page. The child sees the end of its socket and exits."""


class ChildProcess:
    """A running child process."""

    def __init__(
        self,
        *,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        page: mmap.mmap,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._page = page
        self._unframer = Unframer()
        self._bodies: deque[bytes] = deque()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def send(self, request: Request) -> None:
        """See :meth:`NvmlChild.send`."""
        try:
            self._writer.write(frame(request))
            await self._writer.drain()
        except OSError as error:
            raise ChildGoneError(await self._how_it_ended()) from error

    async def receive(self) -> Answer:
        """See :meth:`NvmlChild.receive`."""
        while not self._bodies:
            try:
                received = await self._reader.read(_RECEIVE_BYTES)
                self._bodies.extend(self._unframer.feed(received))
            except ProtocolError as error:
                raise ChildGoneError(str(error)) from error
            except OSError:
                received = b""  # reset: it died with an unread request
            if not received:
                raise ChildGoneError(await self._how_it_ended())
        try:
            return read_answer(self._bodies.popleft())
        except ProtocolError as error:
            raise ChildGoneError(str(error)) from error

    def in_flight(self) -> tuple[InFlight, ...]:
        """See :meth:`NvmlChild.in_flight`."""
        return in_flight(self._page)

    def kill(self) -> None:
        """See :meth:`NvmlChild.kill`."""
        self._process.kill()

    def ended(self) -> bool:
        """See :meth:`NvmlChild.ended`."""
        return self._process.poll() is not None

    def close(self) -> None:
        """See :meth:`NvmlChild.close`."""
        self._writer.close()
        self._page.close()

    async def _how_it_ended(self) -> str:
        for pause in _REAP_SECONDS:  # its socket closes a moment before it can be reaped
            code = self._process.poll()
            if code is not None:
                return f"the NVML child ended with {'signal' if code < 0 else 'status'} {abs(code)}"
            await asyncio.sleep(pause)
        return "the NVML child closed its socket"


async def start_child(
    *,
    proc: Path = Path("/proc"),
    devices: Path = Path("/dev"),
    env: Mapping[str, str] | None = None,
) -> ChildProcess:
    """Start a child.

    Args:
        proc: where procfs is.
        devices: where device nodes are.
        env: its environment; the agent's own by default.

    Raises:
        ChildGoneError: it cannot be started.
    """
    with contextlib.ExitStack() as opened:
        ours, theirs = socket.socketpair()
        opened.callback(theirs.close)
        opened_ours = opened.enter_context(contextlib.ExitStack())
        opened_ours.callback(ours.close)
        memory = os.memfd_create("nvml-calls", os.MFD_CLOEXEC)
        opened.callback(os.close, memory)
        os.truncate(memory, PAGE_BYTES)
        process = _spawn(theirs.fileno(), memory, proc=proc, devices=devices, env=env)
        page = mmap.mmap(memory, PAGE_BYTES, prot=mmap.PROT_READ)
        ours.setblocking(False)  # noqa: FBT003 - the name says what it is
        reader, writer = await asyncio.open_connection(sock=ours)
        opened_ours.pop_all()  # the transport owns the socket now
    return ChildProcess(process=process, reader=reader, writer=writer, page=page)


def _spawn(
    channel: int, memory: int, *, proc: Path, devices: Path, env: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    """Start the process. Blocks for the few milliseconds that exec takes."""
    arguments = map(str, (channel, memory, os.getpid(), proc, devices))
    try:
        return subprocess.Popen(  # noqa: S603 - our own module by our own interpreter
            [sys.executable, "-m", _MODULE, *arguments],
            pass_fds=(channel, memory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=env,
        )
    except OSError as error:
        raise ChildGoneError(f"the NVML child cannot be started: {error}") from error
