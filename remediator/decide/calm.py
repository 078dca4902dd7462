"""What a node's agent says is not there, and its one answer to nearly every policy.

Of a fleet nearly all nodes are well at nearly every look, and one with a fault has few of those
that policies name. Asking each policy's clauses what the agent has already said takes most of
the time of deciding.

Invariant: what is said here is what ``match`` would say, but for a next look that may be earlier
(a property test compares the two).
"""

from __future__ import annotations

from dataclasses import dataclass

from node_agent.contract import ConditionStatus, ConditionType
from remediator.decide.facts import OWN_CONDITIONS, NodeFacts
from remediator.decide.node_clauses import report_trusted
from remediator.policy.codes import Asked


@dataclass(frozen=True, slots=True)
class Calm:
    """What a node's agent vouches for: ``until`` it falls silent, none of this is there.

    ``types``: conditions that are well. ``codes``: all that its report names, so that no other
    is there; None where the report proves nothing.
    """

    types: frozenset[str]
    codes: frozenset[int | None] | None
    until: float

    def vouches(self, asked: Asked | None) -> bool:
        """Tell whether a policy that asks this of the agent, and nobody else, is clear."""
        if asked is None or not asked.types <= self.types:
            return False
        if not asked.report:
            return True
        if self.codes is None:
            return False
        return not self.codes if asked.codes is None else asked.codes.isdisjoint(self.codes)


def calm(facts: NodeFacts, now: float) -> Calm | None:
    """Return what a node's agent says is not there, freshly and of the running boot, if it does."""
    if not facts.boot_id or facts.faults_boot_id != facts.boot_id:
        return None
    reports = report_trusted(facts, now)
    spoken = [
        known
        for known in facts.conditions.values()
        if known.type in OWN_CONDITIONS
        and now < known.fresh_until
        and (
            known.status == ConditionStatus.FALSE
            or (reports and known.type == ConditionType.XID_ERROR)
        )
    ]
    if not spoken:
        return None
    return Calm(
        frozenset(known.type for known in spoken if known.status == ConditionStatus.FALSE),
        frozenset(fault.code for fault in facts.faults) if reports else None,
        until=min(known.fresh_until for known in spoken),
    )
