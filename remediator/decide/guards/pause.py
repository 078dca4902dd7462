"""Pause: a person stopped new disruptive steps (``remediator pause``)."""

from __future__ import annotations

from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.ledger import Ledger


def pause(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:  # noqa: ARG001
    """Hold everything while paused, and say by whom and why."""
    if ledger.pause is None:
        return None
    given = f": {ledger.pause.reason}" if ledger.pause.reason else ""
    why = f"paused by {ledger.pause.by} at {ledger.pause.at}{given}"
    return Hold(candidate.policy.name, "pause", why)
