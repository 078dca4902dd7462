"""Processes of one program that begin at once: forked from one that has it imported already.

For tests that kill the program at a hundred places. What a child does from its fork on is what it
does after its imports; it shares nothing with its siblings.

Invariants: children are ended by their own pid; they end with the zygote, and that with us.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self


_SERVE = """\
import ctypes, json, os, signal, sys
PR_SET_PDEATHSIG = 1
prctl = ctypes.CDLL(None, use_errno=True).prctl
prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
exec(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    if "pid" in asked:
        if asked["kill"]:
            os.kill(asked["pid"], signal.SIGKILL)
        pid, status = os.waitpid(asked["pid"], 0 if asked["kill"] else os.WNOHANG)
        print(-1 if pid == 0 else status, flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = asked["argv"]
        exec(asked["code"])
        os._exit(0)
    print(pid, flush=True)
"""


class Zygote:
    """A context manager; safe to share between threads.

    Args:
        imports: Python statements that import the program.
        code: what a child runs, with its `sys.argv` set.
    """

    def __init__(self, imports: str, code: str) -> None:
        self._code = code
        self._lock = threading.Lock()
        self._parent = subprocess.Popen(
            [sys.executable, "-c", _SERVE, imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, argv: Sequence[str], *, log: Path) -> int:
        """Begin a child and return its pid; what it prints is appended to `log`."""
        return self._ask({"argv": list(argv), "code": self._code, "log": str(log)})

    def kill(self, pid: int) -> None:
        """End a child by SIGKILL and wait until it is gone. Once only."""
        self._ask({"pid": pid, "kill": True})

    def status(self, pid: int) -> int | None:
        """Return how a child ended by itself (as of `waitpid`); None while it runs."""
        status = self._ask({"pid": pid, "kill": False})
        return None if status < 0 else status

    def __enter__(self) -> Self:
        """It runs already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it, and with it all children."""
        self._parent.kill()
        self._parent.wait()
        for pipe in (self._parent.stdin, self._parent.stdout):
            _open(pipe).close()

    def _ask(self, question: dict[str, object]) -> int:
        with self._lock:
            _open(self._parent.stdin).write(json.dumps(question) + "\n")
            _open(self._parent.stdin).flush()
            return int(_open(self._parent.stdout).readline())


def _open(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:  # pragma: no cover - both are pipes
        raise RuntimeError("the zygote has no pipe")
    return pipe
