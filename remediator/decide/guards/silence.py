"""Silence: people silenced an alert that the policy names. That is how they say "leave it"."""

from __future__ import annotations

from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.ledger import Ledger


def silence(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:  # noqa: ARG001
    """Hold while an alert about this node that the policy names is silenced or inhibited."""
    said = candidate.match.silenced
    if not said:
        return None
    return Hold(candidate.policy.name, "silence", f"{said[0]}: the node stays as it is")
