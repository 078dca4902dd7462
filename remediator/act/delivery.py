"""Gets an envelope to its channel: attempts, with growing pauses, until it is there or given up."""

from __future__ import annotations

import asyncio
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Final

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from remediator.act.envelope import Channel, Envelope, RefusedError, RetryLaterError


_SHORTEST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 60.0
_LONGEST_RETRY_AFTER: Final = 300.0
_MAX_NOTE: Final = 300

_log = structlog.get_logger(__name__)


class Delivery:
    """Delivers envelopes; any number at a time.

    Args:
        channels: by name.
        at_once: attempts per channel, so that one that hangs does not stop the others.
        clock, sleep: seconds that only grow, and waiting by them; None: the loop's clock.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        channels: Mapping[str, Channel],
        at_once: int,
        clock: Callable[[], float] | None,
        sleep: Callable[[float], Awaitable[None]],
        rng: Random,
    ) -> None:
        self._channels = channels
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(at_once),
        )
        self._clock, self._sleep, self._rng = clock, sleep, rng
        self.trouble: dict[str, str] = {}
        """Why channels do not take what is on its way to them, by name, as they last said."""

    async def deliver(self, envelope: Envelope) -> str:
        """Return "" once it has arrived, else why it was given up."""
        try:
            await self._attempts(envelope)
        except (RetryLaterError, RefusedError) as error:
            return str(error)[:_MAX_NOTE] or type(error).__name__
        except Exception as error:  # noqa: BLE001 - a broken channel must not stop the others
            # Where, but not its text: that may hold what the channel knows, a token say.
            where = "".join(traceback.format_tb(error.__traceback__))
            name = type(error).__name__
            _log.error("channel_broken", channel=envelope.channel, error=name, where=where)
            return f"the channel failed: {name}"
        return ""

    async def _attempts(self, envelope: Envelope) -> None:
        give_up_at = self._time() + self._channel(envelope.channel).give_up_after

        def out_of_time(state: RetryCallState) -> bool:
            return self._time() + state.upcoming_sleep > give_up_at

        retrying = AsyncRetrying(
            sleep=self._sleep,
            stop=out_of_time,
            wait=self._wait,
            retry=retry_if_exception_type(RetryLaterError),
            reraise=True,
        )
        await retrying(self._attempt, envelope)

    async def _attempt(self, envelope: Envelope) -> None:
        name = envelope.channel
        async with self._slots[name]:
            try:
                await self._channel(name).send(envelope)
            except RetryLaterError as error:
                self.trouble[name] = str(error)[:_MAX_NOTE]
                raise
            self.trouble.pop(name, None)

    def _channel(self, name: str) -> Channel:
        channel = self._channels.get(name)
        if channel is None:
            known = ", ".join(sorted(self._channels)) or "none"
            raise RefusedError(f"there is no channel {name!r}; RemediatorConfig has: {known}")
        return channel

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.after if isinstance(error, RetryLaterError) else 0.0
        longest = min(_LONGEST_WAIT, _SHORTEST_WAIT * 2.0 ** min(state.attempt_number, 10))
        wait = max(self._rng.uniform(_SHORTEST_WAIT, longest), min(asked, _LONGEST_RETRY_AFTER))
        _log.info(
            "message_delayed",
            channel=state.args[0].channel,
            attempt=state.attempt_number,
            wait=wait,
            reason=str(error),
        )
        return wait

    def _time(self) -> float:
        return asyncio.get_running_loop().time() if self._clock is None else self._clock()
