"""What the status document says beside the nodes, shortened until it leaves them room.

Others write much of it (names of nodes, errors in files, why people paused), and a document that
is too long is not written at all. Names go first, then the ends of long texts, then whole lines.
Numbers stay, and how many lines were left out is said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec.structs import replace

from remediator.record.status import Status


_ROWS: Final = ("budgets", "rates", "breakers", "policies", "policy_problems")
_NOTES: Final = 20


class _Room(NamedTuple):
    """How many names a line has, how many characters a text, and how many lines there are."""

    names: int
    text: int
    rows: int | None = None


_LESS_AND_LESS: Final = (
    _Room(5, 2000),
    _Room(5, 200),
    _Room(0, 200),
    _Room(0, 200, 1000),
    _Room(0, 200, 100),
    _Room(0, 50, 10),
)


def shortened(status: Status, *, fits: Callable[[Status], bool]) -> Status:
    """Return a status whose rest, without its nodes, `fits`; itself if it does already."""
    if fits(replace(status, nodes=())):
        return status
    shorter = status
    for room in _LESS_AND_LESS:
        shorter = _within(status, room)
        if fits(replace(shorter, nodes=())):
            break
    return shorter


def _within(status: Status, room: _Room) -> Status:
    """Return the status with so much of each."""
    names, text = room.names, room.text
    pause, outbox = status.pause, status.outbox
    left = sum(max(0, len(getattr(status, name)) - _most(room)) for name in _ROWS)
    said = (
        (f"no room for {left} lines about policies, budgets, rates and breakers",) if left else ()
    )
    return replace(
        status,
        pause=None
        if pause is None
        else replace(
            pause, reason=pause.reason[:text], by=pause.by[:text], since=pause.since[:text]
        ),
        outbox=None
        if outbox is None
        else replace(
            outbox,
            trouble=tuple(one[:text] for one in outbox.trouble[:_NOTES]),
            last_failure=outbox.last_failure[:text],
        ),
        budgets=tuple(
            replace(one, holders=one.holders[:names], escalated=one.escalated[:names])
            for one in status.budgets[: _most(room)]
        ),
        rates=status.rates[: _most(room)],
        breakers=tuple(
            replace(
                one,
                reason=one.reason[:text],
                nodes=one.nodes[:names],
                backlog_nodes=one.backlog_nodes[:names],
            )
            for one in status.breakers[: _most(room)]
        ),
        policies=tuple(
            replace(one, source=one.source[:text], expression_error=one.expression_error[:text])
            for one in status.policies[: _most(room)]
        ),
        policy_problems=tuple(
            replace(one, source=one.source[:text], message=one.message[:text])
            for one in status.policy_problems[: _most(room)]
        ),
        notes=(*said, *(one[:text] for one in status.notes[:_NOTES])),
    )


def _most(room: _Room) -> int:
    return 10**9 if room.rows is None else room.rows
