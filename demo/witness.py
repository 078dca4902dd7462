"""An independent reader: watches the Nodes with the admin's own plain HTTP, none of our code.

What it saw is what the demo believes. Times are ``time.time()`` at arrival.
"""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit


Json = dict[str, Any]


class Sight(NamedTuple):
    """One version of a Node, and when it arrived."""

    at: float
    node: Json

    @property
    def unschedulable(self) -> bool:
        """Whether the scheduler leaves this node out."""
        return bool(self.node["spec"].get("unschedulable"))

    @property
    def taints(self) -> list[str]:
        """As `key=value:effect`."""
        found = self.node["spec"].get("taints", ())
        return [f"{one['key']}={one.get('value', '')}:{one['effect']}" for one in found]

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition; empty where there is none."""
        for one in self.node["status"].get("conditions", []):
            if one["type"] == kind:
                return one["status"], one.get("reason", "")
        return "", ""

    def ours(self) -> Json:
        """What the controller could have changed: spec, labels, and all but the agent's words."""
        metadata = self.node["metadata"]
        annotations = dict(metadata.get("annotations", {}))
        annotations.pop("gpu-remediator.io/gpu-faults", None)
        return {
            "spec": self.node["spec"],
            "labels": metadata.get("labels", {}),
            "annotations": annotations,
        }


class Witness:
    """Follows all Nodes from now on, in a thread of its own. Close it at the end."""

    def __init__(self, url: str, *, token: str, ca_file: Path) -> None:
        self._url, self._token = url, token
        self._context = ssl.create_default_context(cafile=str(ca_file))
        self._seen: list[Sight] = []
        self._changed = threading.Condition()
        self._connection: http.client.HTTPSConnection | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._follow, name="witness", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._closed = True
        if self._connection is not None and self._connection.sock is not None:
            self._connection.sock.close()

    def latest(self, name: str) -> Sight | None:
        """The newest version of a Node that was seen."""
        with self._changed:
            return next((one for one in reversed(self._seen) if _is(one, name)), None)

    def versions(self, name: str) -> list[Sight]:
        """Every version of a Node that was seen, oldest first."""
        with self._changed:
            return [one for one in self._seen if _is(one, name)]

    def wait_for(
        self, name: str, holds: Callable[[Sight], bool], *, since: float, timeout: float
    ) -> Sight | None:
        """Return the first version after a time for which this holds; None if none came."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                for one in self._seen:
                    if one.at >= since and _is(one, name) and holds(one):
                        return one
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)

    def _follow(self) -> None:
        address = urlsplit(self._url)
        while not self._closed:
            self._connection = http.client.HTTPSConnection(
                address.hostname or "", address.port, context=self._context
            )
            try:
                self._watch(self._connection)
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(0.1)
            finally:
                self._connection.close()

    def _watch(self, connection: http.client.HTTPSConnection) -> None:
        connection.request(
            "GET", "/api/v1/nodes?watch=true", headers={"Authorization": f"Bearer {self._token}"}
        )
        response = connection.getresponse()
        while line := response.readline():
            at = time.time()
            event = json.loads(line)
            if event["type"] in {"ADDED", "MODIFIED"}:
                with self._changed:
                    self._seen.append(Sight(at, event["object"]))
                    self._changed.notify_all()


def _is(sight: Sight, name: str) -> bool:
    return bool(sight.node["metadata"]["name"] == name)
