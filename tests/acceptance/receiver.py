"""Stands for the API server where there is none: one Node, and when each patch of it arrived.

It speaks TLS with a certificate made for this run, since the agent in a pod speaks nothing else.
It checks nothing: who may write what is tested elsewhere, on a real API server.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Any, Final, NamedTuple, Self

import trustme  # type: ignore[import-not-found] # only in this run

from node_agent.contract import FAULTS_ANNOTATION


class Patch(NamedTuple):
    """One patch of the Node's status. `at`: CLOCK_MONOTONIC, when all of it had arrived."""

    at: float
    body: dict[str, Any]

    @property
    def faults(self) -> list[dict[str, Any]] | None:
        """The faults that it writes; None if it leaves the annotation as it is."""
        text = self.body.get("metadata", {}).get("annotations", {}).get(FAULTS_ANNOTATION)
        faults: list[dict[str, Any]] | None = json.loads(text).get("faults", []) if text else None
        return faults


class Receiver:
    """The server; a context manager.

    Args:
        folder: where the certificate is written.
        node: name of the Node.
        boot_id: what its kubelet would say.
    """

    def __init__(self, folder: Path, *, node: str, boot_id: str) -> None:
        self.ca_file = folder / "receiver-ca.crt"
        self.patches: list[Patch] = []
        self.events: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._node: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node, "uid": str(uuid.uuid4()), "annotations": {}},
            "status": {"conditions": [], "nodeInfo": {"bootID": boot_id}},
        }
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.ca_file))
        context = SSLContext(PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"https://127.0.0.1:{self._server.server_address[1]}"

    @property
    def conditions(self) -> dict[str, tuple[str, str, str]]:
        """Status, reason and message of each condition on the Node."""
        with self._lock:
            found = self._node["status"]["conditions"]
            return {c["type"]: (c["status"], c["reason"], c["message"]) for c in found}

    def __enter__(self) -> Self:
        """Serve."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()

    def node(self) -> bytes:
        """The Node as JSON."""
        with self._lock:
            return json.dumps(self._node).encode()

    def take(self, at: float, raw: bytes) -> bytes:
        """A patch has arrived; the Node after it."""
        body = json.loads(raw)
        with self._lock:
            self.patches.append(Patch(at, body))
            annotations = body.get("metadata", {}).get("annotations", {})
            self._node["metadata"]["annotations"].update(annotations)
            conditions = {c["type"]: c for c in self._node["status"]["conditions"]}
            conditions |= {c["type"]: c for c in body.get("status", {}).get("conditions", [])}
            self._node["status"]["conditions"] = list(conditions.values())
        return self.node()


_OK: Final = 200
_CREATED: Final = 201
_NOT_FOUND: Final = 404


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            if "/nodes/" in self.path:
                self._answer(_OK, receiver.node())
            else:
                self._answer(_NOT_FOUND, b'{"message": "only the Node is here"}')

        def do_PATCH(self) -> None:
            raw = self._body()
            self._answer(_OK, receiver.take(time.monotonic(), raw))

        def do_POST(self) -> None:
            receiver.events.append(json.loads(self._body()))
            self._answer(_CREATED, b"{}")

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers["Content-Length"]))

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
