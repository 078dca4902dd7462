"""The webhook as the process runs it: its TLS kept fresh, its calls handed to the feeds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from remediator.policy.cluster import ClusterSpec
from remediator.signals.alertbook import BookFullError
from remediator.signals.alerts import Report
from remediator.signals.feeds import Feeds
from remediator.web.server import Check, Server
from remediator.web.tls import ReloadingTls
from remediator.web.webhook import CallObserver, Token, make_webhook


MAX_PENDING: Final = 100_000
"""Alerts that are accepted and not yet facts; beyond, callers are asked to try again."""
FLAG: Final = "--webhook-listen"
UNREADABLE_CODE: Final = 400
"""By which aiohttp answers what is no HTTP request."""


@asynccontextmanager
async def webhook(
    cluster: ClusterSpec,
    *,
    host: str,
    port: int,
    feeds: Feeds,
    ready: Mapping[str, Check],
    observer: CallObserver,
) -> AsyncIterator[int]:
    """Serve the webhook while the context is open, if one is configured; give its port, or 0.

    Args:
        cluster: with the webhook, and the Alertmanagers that may call it.
        host: "" for every address.
        port: 0 for any free one.
        feeds: take the alerts.
        ready: what keeps this replica from accepting any, by name.
        observer: counts calls, and connections that were dropped.

    Raises:
        ListenError: the address cannot be listened on.
        TlsError: certificate or key cannot be used.
    """
    spec = cluster.webhook
    if spec is None:
        yield 0
        return

    def accept(source: str, report: Report) -> None:
        if feeds.pending > MAX_PENDING:
            raise BookFullError
        feeds.told(source, report)

    tls = None if spec.tls is None else ReloadingTls(spec.tls)
    app = make_webhook(
        sources=tuple(one.name for one in cluster.alertmanagers),
        accept=accept,
        ready=ready,
        token=Token(spec.bearer_token_file),
        observer=observer,
    )
    async with Server(
        app,
        host=host,
        port=port,
        tls=None if tls is None else tls.context,
        flag=FLAG,
        on_drop=observer.connection_dropped,
        on_unreadable=lambda: observer.webhook_called(UNREADABLE_CODE),
    ) as server:
        following = None if tls is None else asyncio.create_task(tls.follow())
        try:
            yield server.port
        finally:
            if following is not None:
                following.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await following
