"""Kinds of channels, and how RemediatorConfig's names become them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp

from remediator.act.channels.alertmanager import AlertmanagerSender
from remediator.act.channels.apprise import AppriseSender
from remediator.act.channels.log import LogSender
from remediator.act.channels.pagerduty import PagerDutySender
from remediator.act.channels.slack import SlackSender
from remediator.act.channels.smtp import SmtpSender
from remediator.act.channels.webhook import WebhookSender
from remediator.act.channels.words import OwnWords, as_they_are
from remediator.act.envelope import Channel
from remediator.act.outbox import LOG_CHANNEL
from remediator.decide.topics import Topics
from remediator.kube.sockets import http_session
from remediator.policy.channels import Channel as ChannelSpec
from remediator.policy.sources import rooted


def open_session() -> AbstractAsyncContextManager[aiohttp.ClientSession]:
    """Return the session that channels share. Leave it after the outbox has ended.

    TLS is verified against the system's authorities; ``HTTPS_PROXY`` and ``NO_PROXY``
    are heeded. No cookie is kept.
    """
    return http_session(trust_env=True)


def make_channels(
    specs: Mapping[str, ChannelSpec],
    *,
    session: aiohttp.ClientSession,
    folder: Path = Path(),
    topics: Topics | None = None,
    template_failed: Callable[[str], None] = lambda _: None,
) -> dict[str, Channel]:
    """Return the channels by name; ``log`` exists also where nobody configured it.

    Args:
        specs: of RemediatorConfig.
        session: shared; owned by the caller.
        folder: where relative names of files begin.
        topics: what is open at the receivers; they remember it there.
        template_failed: told a channel's name when its template failed.
    """
    channels: dict[str, Channel] = {LOG_CHANNEL: LogSender()}
    known = Topics() if topics is None else topics
    for name, spec in specs.items():
        channels[name] = _make(
            rooted(spec, str(folder)), session=session, topics=known, failed=template_failed
        )
    return channels


def _make(
    spec: ChannelSpec,
    *,
    session: aiohttp.ClientSession,
    topics: Topics,
    failed: Callable[[str], None],
) -> Channel:
    words = as_they_are if spec.template is None else OwnWords(spec.template, failed=failed)
    made: Channel = LogSender(words=words)
    if spec.webhook is not None:
        made = WebhookSender(spec.webhook, session=session, words=words)
    elif spec.slack is not None:
        made = SlackSender(spec.slack, session=session, topics=topics, words=words)
    elif spec.pagerduty is not None:
        made = PagerDutySender(spec.pagerduty, session=session, topics=topics, words=words)
    elif spec.alertmanager is not None:
        made = AlertmanagerSender(spec.alertmanager, session=session, topics=topics, words=words)
    elif spec.smtp is not None:
        made = SmtpSender(spec.smtp, words=words)
    elif spec.apprise is not None:
        made = AppriseSender(spec.apprise, words=words)
    return made
