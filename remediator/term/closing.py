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
        self._over: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Close what was over at the look before, too, and is still open."""
        waiting = self._topics.waiting()
        if not waiting:
            self._over.clear()
            return
        busy, worlds = self._outbox.conversations(), dict[bool, Standing]()
        over: set[tuple[str, str]] = set()
        for channel, name in waiting:
            dry_run = channel.startswith(DRY_RUN)
            if dry_run not in worlds:
                worlds[dry_run] = self._standing(dry_run)
            message = closing(name, channel.removeprefix(DRY_RUN), worlds[dry_run])
            if message is None or name in busy:
                continue
            over.add((channel, name))
            if (channel, name) in self._over:
                self._outbox.submit(message, dry_run=dry_run)
        self._over = over


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
