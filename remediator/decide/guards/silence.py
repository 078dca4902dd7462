"""Silence: people silenced an alert about the node. That is how they say "leave it"."""

from __future__ import annotations

from typing import Final

from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.ledger import Ledger


SILENCE: Final = "silence"


def silence(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:  # noqa: ARG001
    """Hold while an alert about this node that any policy names is silenced or inhibited."""
    if not candidate.silenced:
        return None
    return Hold(candidate.policy.name, SILENCE, f"{candidate.silenced}: the node stays as it is")
