"""Rate: at most so many starts of an action per time and pool, across restarts."""

from __future__ import annotations

from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.ledger import CORDON, Ledger
from remediator.policy.quantities import Rate, format_rate


def rate(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:
    """Hold until the cluster's rate and the policy's own have room in the node's pool."""
    if candidate.action == CORDON and ledger.nodes[candidate.facts.uid].ours:
        return None  # it has been started already
    pool = candidate.facts.pool
    for owner, limit in rates_of(candidate, ledger):
        until = ledger.room(candidate.action, pool, owner, limit, now)
        if until is not None:
            whose = "the policy's" if owner else "the cluster's"
            why = f"{whose} rate of {format_rate(limit)} {candidate.action}s per pool is used up"
            return Hold(candidate.policy.name, "rate", why, until)
    return None


def rates_of(candidate: Candidate, ledger: Ledger) -> list[tuple[str, Rate]]:
    """Return the rates that apply, each with whose it is ("" for the cluster's)."""
    limits = (
        ("", ledger.cluster.rates.of(candidate.action)),
        (candidate.policy.name, candidate.policy.spec.limits.rate.of(candidate.action)),
    )
    return [(owner, limit) for owner, limit in limits if limit is not None]
