"""One of the two worlds that are decided about: the real one, and that of dry-run."""

from __future__ import annotations

from dataclasses import dataclass, field

from remediator.decide.core import World
from remediator.decide.decision import Decision, Outcome
from remediator.decide.ledger import Ledger


@dataclass(kw_only=True)
class Side:
    """A world: what its guards remember, what its messages came to, what was decided last.

    ``decisions`` are by UID, for people to see; ``outcomes`` by message key.
    """

    world: World
    ledger: Ledger
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)

    @property
    def dry_run(self) -> bool:
        """Tell whether nothing of this world may reach a node."""
        return self.world is World.VIRTUAL
