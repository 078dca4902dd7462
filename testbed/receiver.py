"""The other end of webhooks and chat: an HTTP server that notes what it is told.

It answers as Slack does, which a webhook does not read. It can be out of order.
"""

import json
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self

from testbed.api import Json


class Told(NamedTuple):
    """One POST that was taken: where to, under which `Idempotency-Key`, and what it said."""

    path: str
    key: str
    body: Json


class Receiver:
    """A context manager.

    Attributes:
        works: whether it takes what comes; otherwise it answers 503.
        got: what it took, in order.
    """

    def __init__(self) -> None:
        self.works = True
        self.got: list[Told] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                works = receiver.works
                if works:
                    key = self.headers.get("Idempotency-Key", "")
                    receiver.got.append(Told(self.path, key, body))
                said = json.dumps({"ok": True, "ts": f"{len(receiver.got)}.0", "channel": "C1"})
                with suppress(OSError):  # who asked is gone
                    self.send_response(200 if works else 503)
                    self.end_headers()
                    self.wfile.write(said.encode())
                    self.wfile.flush()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens; it takes any path below."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def of(self, path: str) -> list[Json]:
        """What was said at this path, in order."""
        return [one.body for one in tuple(self.got) if one.path == path]

    def close(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        """It listens already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the port."""
        self.close()
