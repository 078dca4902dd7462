"""A child process that never outlives us, its log, and the ports that servers listen on.

Invariants: a child is ended by its own pid only; if this process dies in any way, SIGKILL
included, the kernel ends the child (PR_SET_PDEATHSIG); what a child printed is in one file and
its end is part of every error about it.
"""

import errno
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


# Runs before the program, in its process: asks the kernel for SIGKILL at our death, then becomes
# the program. Not `preexec_fn`, which forks a multi-threaded interpreter (a warning since 3.12).
_EXEC_BOUND_TO_PARENT = """\
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
    raise OSError(ctypes.get_errno(), "prctl")
if os.getppid() != int(sys.argv[1]):
    sys.exit("parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""
_LOG_TAIL_BYTES = 6000
_FIRST_PORT = 12000
_FEWEST_PORTS = 2000


class ServerFailedError(Exception):
    """A server did not start, or died; the message ends with what it printed last."""


class Child:
    """One program with its log file; can be started again after it ended."""

    def __init__(self, name: str, argv: Sequence[str], *, log: Path) -> None:
        self.name = name
        self.argv = list(argv)
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        # The kernel sends the death signal when the *thread* that forked ends; this one lives
        # as long as the child may, whatever thread calls start().
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"parent-of-{name}")

    @property
    def running(self) -> bool:
        """Whether the process exists and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id; an error when it was never started."""
        if self._process is None:
            raise ServerFailedError(f"{self.name} was never started")
        return self._process.pid

    def start(self) -> None:
        """Start the program; its output is appended to the log."""
        self._process = self._thread.submit(self._fork).result()

    def _fork(self) -> subprocess.Popen[bytes]:
        bound = [sys.executable, "-I", "-S", "-c", _EXEC_BOUND_TO_PARENT, str(os.getpid())]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*bound, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for us: we end it in order, while what it depends on still runs.
                process_group=0,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP to make a server hang."""
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def stop(self, *, grace: float = 10.0) -> None:
        """End the process: SIGTERM, after `grace` seconds SIGKILL; a grace of 0 kills at once."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        if grace > 0:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # a stopped process cannot act on SIGTERM
            try:
                process.wait(grace)
            except subprocess.TimeoutExpired:
                pass
            else:
                return
        process.kill()
        process.wait()

    def close(self) -> None:
        """End the process at once and the thread that was its parent."""
        self.stop(grace=0)
        self._thread.shutdown()

    def log_tail(self) -> str:
        """The end of what the program printed."""
        if not self.log.exists():
            return ""
        return self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def wait_until(self, ready: Callable[[], bool], *, timeout: float) -> None:
        """Return when `ready()` is true.

        Raises:
            ServerFailedError: the process ended, or `timeout` seconds went by.
        """
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.running:
                raise ServerFailedError(f"{self.name} ended at its start:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerFailedError(
                    f"{self.name} not ready after {timeout:.0f} s:\n{self.log_tail()}"
                )
            time.sleep(0.02)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    choice = server_ports(_lowest_ephemeral_port())
    for _ in range(200):
        port = choice.start + secrets.randbelow(len(choice))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                    continue
                raise
        return port
    raise ServerFailedError("no free TCP port on 127.0.0.1 after 200 tries")


def server_ports(lowest_ephemeral: int) -> range:
    """Ports for servers, below the ones that the kernel gives to clients where that is possible.

    A client that keeps reconnecting to a stopped server is else one day given the server's own
    port as its source port, connects to itself, and the server cannot come back.
    """
    if lowest_ephemeral - _FIRST_PORT < _FEWEST_PORTS:
        return range(_FIRST_PORT, 60000)
    return range(_FIRST_PORT, lowest_ephemeral)


def _lowest_ephemeral_port() -> int:
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    return int(text.split()[0])
