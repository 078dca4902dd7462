"""A plain, blocking client of the API server for tests and demo: JSON in, JSON out.

Why not the official package: tests must send exactly what they claim to send (a raw PATCH of a
subresource, a wrong token, another content type), and it takes most of a second to import.
"""

import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit


Json = dict[str, Any]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML


class ApiError(Exception):
    """The API server refused; `status` is the HTTP code, `reason` and `body` its Status object."""

    def __init__(self, method: str, path: str, status: int, body: Json) -> None:
        self.status = status
        self.body = body
        self.reason: str = str(body.get("reason", ""))
        super().__init__(f"{method} {path}: {status} {body.get('message', body)}")


class Api:
    """Requests with one identity. Safe to share between threads (a connection for each)."""

    def __init__(self, url: str, *, token: str, ca_file: Path, timeout: float = 30.0) -> None:
        self.url = url
        self.token = token
        self._ca_file = ca_file
        self._timeout = timeout
        self._address = urlsplit(url)
        self._tls = ssl.create_default_context(cafile=str(ca_file))
        self._local = threading.local()
        self._open: list[http.client.HTTPSConnection] = []

    def with_token(self, token: str) -> "Api":
        """The same server, seen with another identity."""
        return Api(self.url, token=token, ca_file=self._ca_file, timeout=self._timeout)

    def get(self, path: str, **query: str) -> Json:
        """GET `path` (as `/api/v1/nodes`)."""
        return self.request("GET", path, query=query)

    def create(self, path: str, body: Json, **query: str) -> Json:
        """POST `body` to a collection or a subresource."""
        return self.request("POST", path, body=body, query=query)

    def patch(
        self, path: str, body: object, *, content_type: str = STRATEGIC_MERGE_PATCH, **query: str
    ) -> Json:
        """PATCH; strategic merge unless told otherwise."""
        return self.request("PATCH", path, body=body, content_type=content_type, query=query)

    def delete(self, path: str, *, missing_ok: bool = True) -> None:
        """DELETE at once (grace period 0)."""
        try:
            self.request("DELETE", path, query={"gracePeriodSeconds": "0"})
        except ApiError as error:
            if not (missing_ok and error.status == http.HTTPStatus.NOT_FOUND):
                raise

    def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """Send one request and return the decoded answer.

        Raises:
            ApiError: an answer of 400 or more.
            OSError: the server cannot be reached.
        """
        status, text = self.raw(method, path, body=body, content_type=content_type, query=query)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"message": text.decode(errors="replace")}
        if status >= http.HTTPStatus.BAD_REQUEST:
            raise ApiError(method, path, status, answer)
        return answer if isinstance(answer, dict) else {"value": answer}

    def raw(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Send one request; the HTTP status and the answer's bytes, whatever they are."""
        target = f"{path}?{urlencode(query)}" if query else path
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type}
        data = None if body is None else json.dumps(body).encode()
        try:
            return self._send(method, target, data, headers)
        except (
            http.client.RemoteDisconnected,
            BrokenPipeError,
            ConnectionResetError,
            ssl.SSLEOFError,
        ):
            # A kept connection that the server closed meanwhile, as after a restart: once more.
            return self._send(method, target, data, headers)

    def _send(
        self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        connection = self._connection()
        try:
            connection.request(method, target, body=data, headers=dict(headers))
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            connection.close()  # it opens again with its next request
            raise

    def _connection(self) -> http.client.HTTPSConnection:
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            host, port = self._address.hostname or "", self._address.port
            connection = http.client.HTTPSConnection(
                host, port, timeout=self._timeout, context=self._tls
            )
            self._local.connection = connection
            self._open.append(connection)
        return connection

    def close(self) -> None:
        """Close the connections of all threads."""
        for connection in self._open:
            connection.close()

    def __del__(self) -> None:
        """Close what a test left open: pytest turns an unclosed socket into an error."""
        self.close()
