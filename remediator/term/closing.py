"""Closes what is open at receivers though its reason has gone.

What that is, says :mod:`remediator.decide.closings`. Looked at now and then, and only where
something is open. What is under way about a conversation, its own last word perhaps, comes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Protocol

from remediator.act.side import Side
from remediator.decide.closings import Standing, closing
from remediator.decide.decision import SendMessage
from remediator.decide.facts import NodeFacts
from remediator.decide.look import unusable_session
from remediator.decide.session import Session
from remediator.decide.topics import Topics


LOOK_SECONDS: Final = 10.0
MAX_WAIT_LOOKS: Final = 360
"""Looks after an attempt that was given up, at most; 2, 4, 8 and so on before."""
DRY_RUN: Final = "dry-run/"
"""Begins the names under which channels keep what dry-run opened."""


class Outbox(Protocol):
    """Sends messages; see :class:`remediator.act.outbox.Outbox`."""

    def conversations(self) -> Collection[str]:
        """Return those that messages are under way about."""

    def submit(self, message: SendMessage, *, dry_run: bool) -> bool:
        """Take a message; False if its key was taken before."""


class Closing:
    """Sends what closes conversations.

    Args:
        topics: what is open.
        outbox: sends.
        standing: what there is now, of the real world or of dry-run.
    """

    def __init__(
        self, *, topics: Topics, outbox: Outbox, standing: Callable[[bool], Standing]
    ) -> None:
        self._topics = topics
        self._outbox = outbox
        self._standing = standing
        self._tried: dict[tuple[bool, str], tuple[int, int]] = {}
        """By world and conversation that is over: attempts, and looks until the next."""

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Close what was over at the look before, too, and is still open, wherever it is.

        Still open and not under way after an attempt: that was given up, and another follows.
        """
        places: dict[tuple[bool, str], list[str]] = {}
        for channel, name in self._topics.waiting():
            dry_run = channel.startswith(DRY_RUN)
            places.setdefault((dry_run, name), []).append(channel.removeprefix(DRY_RUN))
        busy = self._outbox.conversations() if places else ()
        worlds = {dry_run: self._standing(dry_run) for dry_run in {one for one, _ in places}}
        before, self._tried = self._tried, {}
        for key, channels in places.items():
            (dry_run, name), (tries, wait) = key, before.get(key, (0, 1))
            message = closing(name, tuple(channels), worlds[dry_run], number=tries + 1)
            if message is None or (name in busy and not tries):
                continue
            if name not in busy and not wait:
                self._outbox.submit(message, dry_run=dry_run)
                tries, wait = tries + 1, min(2 ** (tries + 1), MAX_WAIT_LOOKS)
            elif name not in busy:
                wait -= 1
            self._tried[key] = tries, wait


def standing_of(
    side: Side, nodes: Collection[NodeFacts], *, now: float, alerts: Collection[str] = ()
) -> Standing:
    """Return what there is in a world. ``nodes``: as that world sees them."""
    ledger = side.ledger
    return Standing(
        nodes={one.uid: one.name for one in nodes},
        sessions={one.session.id for one in nodes if isinstance(one.session, Session)},
        decided=side.decisions.keys(),
        held={(policy, uid) for uid, held in ledger.held_since.items() for policy in held},
        frozen={one.uid for one in nodes if unusable_session(one)},
        waived={
            (one.uid, waiver.policy, f"{waiver.at:.0f}")
            for one in nodes
            for waiver in one.history.waivers
        },
        refused={one.uid for one in nodes if ledger.refusals.of_node(one.uid, now) is not None},
        breakers=ledger.breakers.keys(),
        alerts=alerts,
    )
