"""Opt-out: what the node's people allow, by ``gpu-remediator.io/mode``."""

from __future__ import annotations

from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.facts import NodeMode
from remediator.decide.ledger import Ledger
from remediator.decide.session import MODE_KEY


def opt_out(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:  # noqa: ARG001
    """Hold a node on which we may do nothing, or only tell."""
    mode = candidate.facts.mode
    if mode in {NodeMode.DISABLED, NodeMode.NOTIFY_ONLY}:
        return Hold(candidate.policy.name, "opt-out", f"the node says {MODE_KEY}: {mode}")
    return None
