"""Scope: only GPU nodes, and control-plane nodes only where the policy names them."""

from __future__ import annotations

from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.facts import NodeFacts
from remediator.decide.ledger import Ledger
from remediator.policy.model import RemediationPolicy


def scope(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:  # noqa: ARG001
    """Hold a node that is not a GPU node, or a control-plane node the policy does not name."""
    why = out_of_scope(candidate.facts, candidate.policy)
    return Hold(candidate.policy.name, "scope", why) if why else None


def out_of_scope(facts: NodeFacts, policy: RemediationPolicy) -> str:
    """Say why a node is to be left alone by a policy, however faulty; "" if it is not."""
    if not facts.gpu:
        return "not a GPU node by RemediatorConfig gpuNodes"
    if facts.control_plane and not policy.spec.nodes.control_plane:
        return "a control-plane node: the policy must say nodes.controlPlane: true"
    return ""
