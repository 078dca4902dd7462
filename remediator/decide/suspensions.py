"""Since when work is suspended: its deadline moves by that long once the work goes on.

Nothing may be written to the node meanwhile, so that its session cannot say it. It is kept with
what guards remember, over a restart, too. Where it is not known, since the controller died
before it was kept, work counts as suspended from its beginning: that may end it later than its
deadline says, never earlier.

What is remembered names the beginning of the work that it is about. Once the session says the
beginning that was moved, it is about nothing any more: no time is given back twice.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple


class Suspension(NamedTuple):
    """The work that began then is suspended since; both are epoch seconds."""

    began: float
    since: float


class Suspensions:
    """What is suspended in one world, by policy and node UID."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Suspension] = {}
        self._changed = False

    def add(self, policy: str, uid: str, suspension: Suspension) -> None:
        """Note that work is suspended, unless that is known."""
        known = self._known.get((policy, uid))
        if known is None or known.began != suspension.began:
            self._known[policy, uid] = suspension
            self._changed = True

    def since(self, policy: str, uid: str, *, began: float) -> float | None:
        """Return since when the work that began then is suspended, None if it is not."""
        known = self._known.get((policy, uid))
        return known.since if known is not None and known.began == began else None

    def end(self, policy: str, uid: str) -> None:
        """Forget what was suspended: other work begins."""
        self._changed = self._known.pop((policy, uid), None) is not None or self._changed

    def forget(self, uid: str) -> None:
        """Forget a node."""
        for policy, known in [key for key in self._known if key[1] == uid]:
            self.end(policy, known)

    # --- surviving a restart ------------------------------------------------------------

    def take_changed(self) -> bool:
        """Tell whether :meth:`state` changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def state(self, uids: Container[str]) -> dict[str, Suspension]:
        """Return what must survive a restart: of these nodes, by ``policy uid``."""
        return {" ".join(key): known for key, known in self._known.items() if key[1] in uids}

    def restore(self, state: Mapping[str, Suspension]) -> None:
        """Take over what an earlier controller remembered."""
        for name, known in state.items():
            policy, _, uid = name.partition(" ")
            self._known[policy, uid] = known
