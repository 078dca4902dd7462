"""Source sanity: no new disruptive step rests on a source that cannot be trusted now.

Silent agents in numbers, a failing Alertmanager or Prometheus, a gap in our own watch of the
nodes: each says more about the source than about a node. A policy is held only by the sources
that its match rests on; where one entry that can be trusted is enough, the others do not hold it.
"""

from __future__ import annotations

from typing import Final

from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.facts import WATCH
from remediator.decide.ledger import Ledger


LOOK_AGAIN: Final = 60.0
"""Seconds; a source that recovers has every node looked at sooner."""


def sources(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:  # noqa: ARG001
    """Hold while the watch, or a source that the match rests on, cannot be trusted."""
    watch = candidate.cluster_facts.sources.get(WATCH)
    doubt = candidate.match.doubt
    if watch is not None and not watch.ok:
        doubt = f"our watch of the nodes: {watch.why}"
    if not doubt:
        return None
    return Hold(candidate.policy.name, "sources", doubt, now + LOOK_AGAIN)
