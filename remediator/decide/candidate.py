"""A candidate: one policy that wants one disruptive step on one node now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from remediator.decide.facts import NOTHING_KNOWN, ClusterFacts, NodeFacts
from remediator.decide.match import Match, severity_rank
from remediator.policy.model import RemediationPolicy


class ActivePolicy(NamedTuple):
    """A policy that is in force, and since when (controller's clock)."""

    policy: RemediationPolicy
    loaded_at: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One policy that wants one disruptive step on one node now.

    ``since``: unhealthy since, by whoever saw it first; for the order alone. ``silenced``: why
    people want the node left as it is.
    """

    facts: NodeFacts
    active: ActivePolicy
    match: Match
    action: str
    since: float
    cluster_facts: ClusterFacts = NOTHING_KNOWN
    silenced: str = ""

    @property
    def policy(self) -> RemediationPolicy:
        """The policy."""
        return self.active.policy

    @property
    def order(self) -> tuple[bool, int, float, str, str]:
        """Emergency first, then severity, then longest unhealthy; names make it total."""
        return (
            not self.policy.spec.emergency,
            -severity_rank(self.match.severity),
            self.since,
            self.facts.name,
            self.policy.name,
        )
