"""Scope: only GPU nodes, and control-plane nodes only where the policy names them."""

from __future__ import annotations

from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.ledger import Ledger


def scope(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:  # noqa: ARG001
    """Hold a node that is not a GPU node, or a control-plane node the policy does not name."""
    facts, spec = candidate.facts, candidate.policy.spec
    if not facts.gpu:
        return Hold(candidate.policy.name, "scope", "not a GPU node by RemediatorConfig gpuNodes")
    if facts.control_plane and not spec.nodes.control_plane:
        why = "a control-plane node: the policy must say nodes.controlPlane: true"
        return Hold(candidate.policy.name, "scope", why)
    return None
