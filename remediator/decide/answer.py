"""What a clause, an entry or a policy says of a node, and how answers are joined.

Every clause has one of four answers. ``CLEAR`` needs positive evidence: a fresh statement
that the fault is not there. Silence, a stale condition or unreadable details are ``UNKNOWN``:
neither a reason to act nor to undo.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from node_agent.contract import Severity


MAX_INSTANCES: Final = 32


class Answer(IntEnum):
    """What a clause says of a node. Ordered: an entry is as good as its worst clause."""

    CLEAR = 0
    UNKNOWN = 1
    PENDING = 2
    """Holds, but not yet for long enough."""
    HOLDS = 3


@dataclass(frozen=True, slots=True)
class Match:
    """What one policy says of one node.

    ``fresh``: it rests on facts whose writer is alive. ``next_look``: when the answer may
    change without any new fact. ``doubt``: why a source that it rests on cannot be trusted
    now, "" if all can. ``silenced``: alerts that the policy names and people silenced.
    ``error``: how an expression failed, so that nobody knows; "" if none did.
    """

    answer: Answer
    instances: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    severity: Severity = Severity.WARNING
    fresh: bool = True
    next_look: float | None = None
    doubt: str = ""
    silenced: tuple[str, ...] = ()
    error: str = ""

    @property
    def holds(self) -> bool:
        """Tell whether the policy matches."""
        return self.answer is Answer.HOLDS


CLEAR: Final = Match(Answer.CLEAR)
UNKNOWN: Final = Match(Answer.UNKNOWN)


def all_of(parts: Sequence[Match]) -> Match:
    """Join what must all hold: the worst answer decides."""
    if len(parts) == 1:
        return parts[0]
    return Match(
        min(part.answer for part in parts),
        instances=named(i for part in parts for i in part.instances),
        reasons=tuple(dict.fromkeys(reason for part in parts for reason in part.reasons)),
        severity=worst(part.severity for part in parts if part.instances),
        fresh=all(part.fresh for part in parts),
        next_look=_soonest(parts),
        doubt=next((part.doubt for part in parts if part.doubt), ""),
        silenced=_silenced(parts),
        error=_error(parts),
    )


def any_of(entries: Sequence[Match]) -> Match:
    """Join what is enough by itself: the best answer decides, with all that give it.

    One of them that can be trusted is enough. A silence of any of them counts: whoever
    silenced an alert that the policy names wants the node left as it is.
    """
    if len(entries) == 1:
        return entries[0]
    answer = max(entry.answer for entry in entries)
    best = [entry for entry in entries if entry.answer is answer]
    return Match(
        answer,
        instances=named(i for entry in best for i in entry.instances),
        reasons=tuple(dict.fromkeys(reason for entry in best for reason in entry.reasons)),
        severity=worst(entry.severity for entry in best),
        fresh=any(entry.fresh for entry in best),
        next_look=_soonest(entries),
        doubt="" if any(not entry.doubt for entry in best) else best[0].doubt,
        silenced=_silenced(entries),
        error=_error(entries),
    )


def named(instances: Iterable[str]) -> tuple[str, ...]:
    """Return fault instances, each once: as many as a session has room for."""
    return tuple(sorted(set(instances))[:MAX_INSTANCES])


def doubted(found: Match, doubt: str) -> Match:
    """Return an answer with why its source cannot be trusted now, if it cannot."""
    return replace(found, doubt=doubt) if doubt else found


def worst(severities: Iterable[Severity]) -> Severity:
    """Return the worst of them; of none, ``warning``."""
    return max(severities, key=severity_rank, default=Severity.WARNING)


_SEVERITY_RANK: Final = {Severity.INFO: 0, Severity.WARNING: 1, Severity.FATAL: 2}


def severity_rank(severity: Severity) -> int:
    """Order severities: the worse, the higher."""
    return _SEVERITY_RANK[severity]


def _soonest(parts: Sequence[Match]) -> float | None:
    return min((one.next_look for one in parts if one.next_look is not None), default=None)


def _error(parts: Sequence[Match]) -> str:
    return next((part.error for part in parts if part.error), "")


def _silenced(parts: Sequence[Match]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(said for part in parts for said in part.silenced))
