"""Rate: at most so many starts of an action per time and pool, across restarts."""

from __future__ import annotations

from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.ledger import Ledger
from remediator.policy.model import Rates
from remediator.policy.quantities import Rate, format_rate


def rate(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:
    """Hold until the cluster's rate and the policy's own have room in the node's pool."""
    own = candidate.policy.spec.limits.rate
    for owner, rates in (("", ledger.cluster.rates), (candidate.policy.name, own)):
        limit = _limit(rates, candidate.action)
        if limit is None:
            continue
        pool = candidate.facts.pool
        until = ledger.room(candidate.action, pool, owner, limit, now)
        if until is not None:
            whose = "the policy's" if owner else "the cluster's"
            why = f"{whose} rate of {format_rate(limit)} {candidate.action}s per pool is used up"
            return Hold(candidate.policy.name, "rate", why, until)
    return None


def _limit(rates: Rates, action: str) -> Rate | None:
    return rates.cordon if action == "cordon" else None
