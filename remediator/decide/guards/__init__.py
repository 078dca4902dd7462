"""The guards: each a small function that allows a candidate's step or says why not.

A guard is ``(candidate, ledger, now) -> Hold | None`` (None: allowed). To add one,
write its file and name it in :data:`GUARDS`. They are asked in this order, and the
first hold is the answer; ``budget`` comes last, since it is the one that frees
places for others when it is not reached.

A guard is asked before a *disruptive* step only. Undo, recovery and notification
never pass here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.guards.breaker import breaker
from remediator.decide.guards.budget import budget
from remediator.decide.guards.opt_out import opt_out
from remediator.decide.guards.pause import pause
from remediator.decide.guards.rate import rate
from remediator.decide.guards.scope import scope
from remediator.decide.guards.settling import settling
from remediator.decide.guards.silence import silence
from remediator.decide.guards.sources import sources
from remediator.decide.guards.unless import unless
from remediator.decide.guards.windows import windows
from remediator.decide.ledger import Ledger


Guard = Callable[[Candidate, Ledger, float], Hold | None]

GUARDS: Final[tuple[Guard, ...]] = (
    scope,
    opt_out,
    pause,
    silence,
    settling,
    sources,
    unless,
    windows,
    breaker,
    rate,
    budget,
)
GUARD_NAMES: Final = tuple(guard.__name__.replace("_", "-") for guard in GUARDS)
"""Their names, as holds and audit records give them."""
