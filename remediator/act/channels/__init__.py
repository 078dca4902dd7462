"""Kinds of channels, and how RemediatorConfig's names become them."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from remediator.act.channels.log import LogSender
from remediator.act.channels.webhook import WebhookSender
from remediator.act.envelope import Channel
from remediator.act.outbox import LOG_CHANNEL
from remediator.policy.channels import Channel as ChannelSpec


def open_session() -> aiohttp.ClientSession:
    """Return the session that webhooks share. Close it after the outbox has ended.

    TLS is verified against the system's authorities; ``HTTPS_PROXY`` and ``NO_PROXY``
    are heeded. No cookie is kept.
    """
    return aiohttp.ClientSession(trust_env=True, cookie_jar=aiohttp.DummyCookieJar())


def make_channels(
    specs: Mapping[str, ChannelSpec],
    *,
    session: aiohttp.ClientSession,
) -> dict[str, Channel]:
    """Return the channels by name; ``log`` exists also where nobody configured it."""
    channels: dict[str, Channel] = {LOG_CHANNEL: LogSender()}
    for name, spec in specs.items():
        if spec.webhook is not None:
            channels[name] = WebhookSender(spec.webhook, session=session)
        else:
            channels[name] = LogSender()
    return channels
