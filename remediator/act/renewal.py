"""Tells receivers again and again of what is open, where they would forget it otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, runtime_checkable

import structlog

from remediator.act.envelope import Channel, RefusedError, RetryLaterError


_log = structlog.get_logger(__name__)


@runtime_checkable
class Renews(Protocol):
    """A channel whose receiver forgets."""

    @property
    def renew_every(self) -> float:
        """Seconds between two calls of `renew`."""

    async def renew(self, name: str) -> None:
        """Send what is open at the channel of this name anew.

        Raises:
            RetryLaterError, RefusedError: it was not taken.
        """


async def renew(
    channels: Mapping[str, Channel], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Renew what is open at all channels that need it, until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for name, channel in channels.items():
            if isinstance(channel, Renews):
                tasks.create_task(_renew(name, channel, sleep))


async def _renew(name: str, channel: Renews, sleep: Callable[[float], Awaitable[None]]) -> None:
    while True:
        await sleep(channel.renew_every)
        try:
            await channel.renew(name)
        except (RetryLaterError, RefusedError) as error:
            _log.warning("alerts_not_renewed", channel=name, reason=str(error))
        except Exception as error:  # noqa: BLE001 - a broken channel must not stop the others
            reason = type(error).__name__  # and not its text: that may hold a token
            _log.error("alerts_not_renewed", channel=name, reason=reason)
