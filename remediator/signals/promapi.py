"""The one module that knows prometheus-api-client and its HTTP library.

Every call has a session of its own: credentials are read anew, and a thread that hangs shares
nothing. The body is bounded in size and time: the library itself would read without end.
"""

from __future__ import annotations

import time
from typing import Any, Final

import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from urllib3.util.retry import Retry

from remediator.policy.sources import Prometheus
from remediator.signals.prometheus import QueryRefusedError, SourceFailedError


MAX_BODY: Final = 64 << 20
_CHUNK: Final = 1 << 16
_EXCERPT: Final = 300
_REFUSED: Final = ("HTTP Status Code 400 ", "HTTP Status Code 422 ")
"""Bad data, and a query that cannot be executed.
https://prometheus.io/docs/prometheus/latest/querying/api/#format-overview"""


class _Session(requests.Session):
    """A session whose answers end: after so many seconds, and so many bytes."""

    def __init__(self, *, seconds: float) -> None:
        super().__init__()
        self.trust_env = False  # a .netrc would replace our token
        self.max_redirects = 0  # and a redirect would carry it away
        self._deadline = time.monotonic() + seconds

    def send(self, request: Any, **options: Any) -> requests.Response:
        """Send, and read the whole body."""
        options["stream"] = True
        response = super().send(request, **options)
        body = bytearray()
        for chunk in response.iter_content(_CHUNK):
            body += chunk
            if len(body) > MAX_BODY:
                response.close()
                raise SourceFailedError(f"its answer is longer than {MAX_BODY} bytes")
            if time.monotonic() > self._deadline:
                response.close()
                raise SourceFailedError("its answer does not end")
        response._content = bytes(body)  # noqa: SLF001 - what `content` would have kept
        return response


def ask_prometheus(spec: Prometheus, promql: str, *, headers: dict[str, str]) -> Any:
    """Ask one instant query; blocks. Raises SourceFailedError or QueryRefusedError."""
    session = _Session(seconds=spec.timeout)
    session.verify = spec.access.ca_file or True
    if spec.access.cert_file and spec.access.key_file:
        session.cert = (spec.access.cert_file, spec.access.key_file)
    client = PrometheusConnect(
        url=spec.url.rstrip("/"),
        headers=headers,
        session=session,
        retry=Retry(0),
        timeout=spec.timeout,  # type: ignore[arg-type]  # requests takes fractions of seconds
        method="POST",
    )
    try:
        return client.custom_query(promql, params={"timeout": f"{spec.timeout:g}s"})
    except PrometheusApiClientException as error:
        text = str(error)[:_EXCERPT]
        if text.startswith(_REFUSED):
            raise QueryRefusedError(text) from error
        raise SourceFailedError(text) from error
    except requests.RequestException as error:
        raise SourceFailedError(f"{type(error).__name__}: {str(error)[:_EXCERPT]}") from error
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise SourceFailedError(
            f"its answer is none of Prometheus: {error!r}"[:_EXCERPT]
        ) from error
    finally:
        client.close()
