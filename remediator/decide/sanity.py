"""Whether agents as a whole can be believed: how many of them have gone silent.

Few silent agents are broken nodes. Many at once are a broken rollout or network, and then the
word of the others is worth less, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from remediator.decide.facts import OWN_CONDITIONS, NodeFacts, SourceFact
from remediator.policy.cluster import Sanity


_HUNDRED = 100


def agents_now(
    nodes: Iterable[NodeFacts], *, sanity: Sanity, before: SourceFact | None, now: float
) -> SourceFact:
    """Judge all agents by their heartbeats. Costs a walk: call it a few times a minute.

    An agent is one of a GPU node that has ever stated a condition of ours; it is silent when
    none of those is fresh. ``before``: the last answer, which keeps its ``since``.
    """
    agents = silent = 0
    for facts in nodes:
        until = heard_until(facts)
        if until is not None:
            agents += 1
            silent += now >= until
    allowed = max(sanity.min_agents, agents * sanity.percent // _HUNDRED)
    why = f"{silent} of {agents} are silent, {allowed} are believable" if silent > allowed else ""
    same = before is not None and before.ok is not bool(why)
    since = before.since if before is not None and same else now
    return SourceFact(ok=not why, since=since, why=why)


def heard_until(facts: NodeFacts) -> float | None:
    """Return from when on a node's agent counts as silent; None where it has none."""
    stated = [one for kind, one in facts.conditions.items() if kind in OWN_CONDITIONS]
    return max(one.fresh_until for one in stated) if facts.gpu and stated else None
