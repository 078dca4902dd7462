"""Messages into the controller's own log: the channel that always exists."""

from __future__ import annotations

from typing import Final

import structlog

from remediator.act.channels.words import Words, as_they_are
from remediator.act.envelope import Envelope
from remediator.decide.decision import Urgency


_LEVEL: Final = {Urgency.INFO: "info", Urgency.WARNING: "warning", Urgency.CRITICAL: "error"}


class LogSender:
    """Writes each envelope as one line ``message`` of logger ``notify``. Never fails."""

    give_up_after = 0.0

    def __init__(self, *, words: Words = as_they_are) -> None:
        self._words = words

    async def send(self, envelope: Envelope) -> None:
        """Write the line."""
        own = self._words(envelope)
        write = getattr(structlog.get_logger("notify"), _LEVEL[envelope.urgency])
        write(
            "message",
            channel=envelope.channel,
            key=envelope.key,
            title=own.title,
            text=own.text,
            policy=envelope.policy,
            nodes=list(envelope.nodes),
            resolves=envelope.resolves,
            dry_run=envelope.dry_run,
        )
