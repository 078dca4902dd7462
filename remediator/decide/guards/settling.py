"""Settling: after taking over, look at the whole fleet before touching any of it."""

from __future__ import annotations

from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.ledger import Ledger
from remediator.policy.quantities import format_duration


def settling(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:
    """Hold for ``settling`` after the controller took over."""
    until = ledger.started + ledger.cluster.settling
    if now >= until:
        return None
    why = f"the controller took over less than {format_duration(ledger.cluster.settling)} ago"
    return Hold(candidate.policy.name, "settling", why, until)
