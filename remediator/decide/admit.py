"""Stage 2, *admit*: the candidates of the whole fleet, in one order, against one ledger.

Each admission reserves its place before the next candidate is asked, so that two
nodes that arrive together cannot both take the last one. So it is with a node's one drain and one
job: the first policy that may takes it, and who may not keeps nobody else from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.guards import GUARDS
from remediator.decide.guards.rate import rates_of
from remediator.decide.ledger import CORDON, Ledger


Verdicts = dict[tuple[str, str], Hold | None]
"""By node UID and policy name: None is allowed."""
ONE_AT_A_TIME: Final = frozenset({"drain", "job"})
"""Actions of which a node has one under way at most."""


def admit(candidates: Iterable[Candidate], ledger: Ledger, now: float) -> Verdicts:
    """Ask the guards about every candidate; reserve for those that they let through.

    Not about one whose drain or job has to wait for that of another policy.
    """
    verdicts: Verdicts = {}
    begun: set[tuple[str, str]] = set()
    for candidate in sorted(candidates, key=lambda one: one.order):
        place = (candidate.facts.uid, candidate.action)
        if place in begun:
            continue
        verdict = first_hold(candidate, ledger, now)
        key = (candidate.facts.uid, candidate.policy.name)
        verdicts[key] = verdict
        if verdict is None:
            _reserve(candidate, ledger, now)
            if candidate.action in ONE_AT_A_TIME:
                begun.add(place)
        else:
            held = ledger.held_since.setdefault(candidate.facts.uid, {})
            held.setdefault(candidate.policy.name, now)
    return verdicts


def first_hold(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:
    """Return the first guard's hold, or None if all allow."""
    for guard in GUARDS:
        hold = guard(candidate, ledger, now)
        if hold is not None:
            return hold
    return None


def _reserve(candidate: Candidate, ledger: Ledger, now: float) -> None:
    """Take the places: once per node, however many policies want it cordoned."""
    facts = candidate.facts
    entry = ledger.nodes[facts.uid]
    if candidate.action == CORDON and (entry.reserved or entry.ours):
        return
    if not entry.counted or candidate.action == CORDON:
        ledger.reserve(facts.uid)
    owners = [owner for owner, _ in rates_of(candidate, ledger)]
    ledger.start(candidate.action, facts.pool, owners, facts.uid, now)
