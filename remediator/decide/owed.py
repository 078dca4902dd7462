"""Messages that nobody would send again: that a session ended, that a policy let go of a node.

What would send them again ends with the patch that makes them true. So that patch writes them into
the node's history, and they stay there until it is known that they arrived, or were given
up. Until then every decision sends them again under the same key, which the shell takes once: the
next leader does, if the process died in between. They are taken out by the next patch that
is written anyway, or a while later by one of its own.

Dry-run owes nothing: it begins anew with its process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from remediator.decide.decision import NodePhase, Outcome, Urgency
from remediator.decide.draft import Draft, World
from remediator.decide.session import DAY


CLEAR_AFTER: Final = 300.0
"""Seconds after which what has arrived is taken out of the history by a patch of its own."""
_ALONE: Final = frozenset({NodePhase.FROZEN, NodePhase.LEFT_ALONE})


def tell_owed(draft: Draft, outcomes: Mapping[str, Outcome]) -> None:
    """Send again what the node's history owes people; take out what has arrived.

    Call it when all else is decided.
    """
    owed, now = draft.facts.history.owed, draft.now
    if not owed or draft.world is World.VIRTUAL:
        return
    draft.settled = frozenset(one.key for one in owed if one.key in outcomes or now > one.at + DAY)
    for one in owed:
        if one.key not in draft.settled:
            draft.tell(
                one.key,
                one.title,
                one.text,
                kind="end",
                to=one.to,
                policy=one.policy,
                urgency=Urgency.INFO,
                resolves=True,
                notice=True,
            )
    due = min(one.at for one in owed) + CLEAR_AFTER
    if now < due or not draft.settled:
        draft.look_at(due if now < due else now + CLEAR_AFTER)
    elif draft.phase not in _ALONE and draft.refusal() is None:
        draft.history = draft.history.without(draft.settled)
        draft.act("record", "", "what was owed to people is told")
