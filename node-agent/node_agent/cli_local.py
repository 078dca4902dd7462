"""Commands that speak to the running agent over its local socket: set-healthy, release."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any, Final

from node_agent.terminal import say


_TIMEOUT: Final = 90.0
"""A release waits for a child that hangs to be killed."""


class NoAgentError(Exception):
    """No agent answers at this socket. The text says what to do."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(path: str, method: str, url: str, body: object = None) -> Any:
    """The agent's answer, decoded.

    Raises:
        NoAgentError: nobody answers, or not in our language.
    """
    connection = _UnixConnection(path)
    try:
        connection.request(method, url, body=None if body is None else json.dumps(body))
        return json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NoAgentError(
            f"no answer from the agent at {path}: {error}. "
            "Run this beside the agent (kubectl exec), or give its --socket."
        ) from error
    finally:
        connection.close()


def set_healthy(path: str, before: str) -> int:
    """``node-agent set-healthy``; the exit status."""
    answer = ask(path, "POST", "/set-healthy", {"before": before})
    if answer.get("refused"):
        return _refused(answer)
    for line in answer.get("cleared", ()):
        say(f"cleared: {line}")
    if not answer.get("cleared"):
        say("nothing to clear")
    return 0


def release(path: str, seconds: float) -> int:
    """``node-agent release``; the exit status. 1 if something still holds the driver."""
    answer = ask(path, "POST", "/release", {"seconds": seconds})
    if answer.get("refused"):
        return _refused(answer)
    if answer.get("held"):
        say(f"node-agent: not released: {answer['held']}", err=True)
        return 1
    say(f"released for {seconds:g} s" if seconds else "the GPUs are watched again")
    return 0


def _refused(answer: Any) -> int:
    say(f"node-agent: refused: {answer['refused']}", err=True)
    return 1
