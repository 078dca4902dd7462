"""TLS of the webhook, with certificates that are renewed under a running server.

A new connection is given the newest good context when it says hello, so that a new certificate
and new authorities of callers hold at once, and old ones no longer. No session can be resumed: a
caller that did would not show its certificate again, and an authority that was removed would
still count. (Of TLS 1.2 the library keeps sessions whatever we say, so callers that must show a
certificate need 1.3.) Files that cannot be used
(a half-written renewal) leave the context before in force.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog

from remediator.policy.sources import WebhookTls


_log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 5.0


class TlsError(OSError):
    """The certificate, its key or the authorities cannot be used; ``str()`` says why."""


class ReloadingTls:
    """The server's side of TLS.

    Args:
        spec: the files.

    Attributes:
        context: to listen with.

    Raises:
        TlsError: they cannot be used at the start.
    """

    def __init__(self, spec: WebhookTls) -> None:
        self._spec = spec
        self._stamp = self._look()
        self._current = self._load()
        self.context = self._load()
        self.context.sni_callback = self._hello

    def reload(self) -> bool:
        """Use the files if they changed; tell whether they are used. Blocks for the reading."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        try:
            self._current = self._load()
        except TlsError as error:
            _log.error("certificate_not_reloaded", reason=str(error))
            return False
        self._stamp = stamp
        _log.info("certificate_reloaded", file=self._spec.cert_file)
        return True

    async def follow(self, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Reload when the files change, until cancelled."""
        while True:
            await sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.reload)

    def _hello(self, connection: ssl.SSLObject, _name: str | None, _context: object) -> None:
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        spec = self._spec
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        asks = spec.client_ca_file is not None
        context.minimum_version = ssl.TLSVersion.TLSv1_3 if asks else ssl.TLSVersion.TLSv1_2
        context.num_tickets = 0
        try:
            context.load_cert_chain(spec.cert_file, spec.key_file)
            if spec.client_ca_file is not None:
                context.load_verify_locations(spec.client_ca_file)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (spec.cert_file, spec.key_file, spec.client_ca_file)))
            raise TlsError(f"{files} cannot be used: {error.strerror or error}") from error
        return context

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        spec = self._spec
        return tuple(
            _stamp(Path(path))
            for path in (spec.cert_file, spec.key_file, spec.client_ca_file)
            if path is not None
        )


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return (about.st_ino, about.st_size, about.st_mtime_ns)
