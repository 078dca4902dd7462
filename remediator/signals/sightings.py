"""What other programs say of the nodes at one time: for those who look once, or record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from remediator.decide.facts import NOTHING_KNOWN, AlertFact, ClusterFacts, QueryFact


@dataclass(frozen=True, slots=True)
class Sightings:
    """Facts from alerts and queries.

    ``around``: sources and all alerts, as in :class:`ClusterFacts`. ``alerts`` and ``queries``: by
    node, those that name it; the latter then by the query's key.
    """

    around: ClusterFacts = NOTHING_KNOWN
    alerts: Mapping[str, tuple[AlertFact, ...]] = field(default_factory=dict)
    queries: Mapping[str, Mapping[str, QueryFact]] = field(default_factory=dict)

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes of which anything is said."""
        return frozenset({*self.alerts, *self.queries})


NOTHING_SIGHTED = Sightings()
"""Nobody was asked."""
