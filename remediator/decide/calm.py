"""The node on which nothing is wrong, and its one answer to nearly every policy.

Of a fleet nearly all nodes are well at nearly every look. Asking each policy's clauses what the
agent's conditions have already said takes most of the time of deciding about all of them.

Invariant: what is said here is what ``match`` would say, but for a next look that may be earlier
(a property test compares the two).
"""

from __future__ import annotations

from dataclasses import dataclass

from node_agent.contract import ConditionStatus
from remediator.decide.facts import OWN_CONDITIONS, NodeFacts


@dataclass(frozen=True, slots=True)
class Calm:
    """What the agent of a node without faults vouches for: ``types``, ``until`` it falls silent."""

    types: frozenset[str]
    until: float

    def vouches(self, asked: frozenset[str] | None) -> bool:
        """Tell whether a policy that asks for these of the agent's types, if so, is clear."""
        return asked is not None and asked <= self.types


def calm(facts: NodeFacts, now: float) -> Calm | None:
    """Return what a node's agent says is well, freshly and of the running boot, if it does."""
    if (
        facts.faults
        or facts.info_truncated
        or not facts.boot_id
        or facts.faults_boot_id != facts.boot_id
    ):
        return None
    well = [
        known
        for known in facts.conditions.values()
        if known.type in OWN_CONDITIONS
        and known.status == ConditionStatus.FALSE
        and now < known.fresh_until
    ]
    if not well:
        return None
    types = frozenset(known.type for known in well)
    return Calm(types, until=min(known.fresh_until for known in well))
