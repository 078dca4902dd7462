"""What the API server refused to write: which step's change, since when, in its own words.

RBAC or an admission policy may refuse a change for good. One that several steps made together
is made again step by step, so that a label that is refused does not keep a cordon away; a step
that is refused alone is left out of other writes, and tried again now and then until its deadline.

Memory only: after a restart the API server is asked anew. A refusal that was not repeated for a
while, since a guard held the step or it was not wanted, counts no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from remediator.decide.decision import PatchNode


REFUSED: Final = "refused"
"""What holds a step that is to be tried again, as a guard would."""
UNDO: Final = ("", -1)
"""Stands among a patch's steps for what it undoes, too."""
AGAIN_AFTER: Final = 30.0
"""Seconds until a step that was refused is tried again."""
STALE_AFTER: Final = 120.0
"""Seconds after which a refusal that was not repeated is forgotten."""
TOLD_AFTER: Final = 360.0
"""Seconds of nothing but refusals until people are told; a step with a default deadline tells
by itself a minute earlier."""


class Refused(NamedTuple):
    """A refusal: of which step (-1: of a node's writes), when first and last, and why."""

    step: int
    since: float
    last: float
    why: str

    @property
    def again(self) -> float:
        """When it is to be tried again."""
        return self.last + AGAIN_AFTER

    def is_stale(self, now: float) -> bool:
        """Tell whether it was not repeated for so long that it says nothing any more."""
        return now > self.last + STALE_AFTER


class Refusals:
    """The refusals of one world, by node. ``at`` of a patch is the time of all."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, str], Refused] = {}
        self._nodes: dict[str, Refused] = {}
        self._singly: dict[str, float] = {}

    def refused(self, patch: PatchNode, why: str) -> None:
        """A patch was refused."""
        self._nodes[patch.uid] = _next(self._nodes.get(patch.uid), -1, patch.at, why)
        if len(patch.changes) > 1:
            self._singly[patch.uid] = patch.at
        for policy, step in patch.changes if len(patch.changes) == 1 else ():
            key = (policy, patch.uid)
            self._steps[key] = _next(self._steps.get(key), step, patch.at, why)

    def accepted(self, patch: PatchNode) -> None:
        """A patch was written."""
        self._nodes.pop(patch.uid, None)
        for policy, step in patch.changes:
            known = self._steps.get((policy, patch.uid))
            if known is not None and known.step == step:
                del self._steps[policy, patch.uid]

    def of_step(self, policy: str, uid: str, step: int, now: float) -> Refused | None:
        """Return what is known of a policy's step that was refused alone."""
        return _known(self._steps.get((policy, uid)), now, lambda one: one.step == step)

    def of_node(self, uid: str, now: float) -> Refused | None:
        """Return since when nothing could be written to a node, if that is long enough to tell."""
        return _known(self._nodes.get(uid), now, lambda one: now >= one.since + TOLD_AFTER)

    def known(self, uid: str) -> bool:
        """Tell whether anything of a node was refused that may still be wanted."""
        return uid in self._nodes or any(key[1] == uid for key in self._steps)

    def singly(self, uid: str, now: float) -> bool:
        """Tell whether each step's change is to be written for itself."""
        at = self._singly.get(uid)
        return at is not None and now <= at + TOLD_AFTER

    def forget(self, uid: str) -> None:
        """Drop what is known of a node: nothing is to be written to it, or it is gone."""
        self._nodes.pop(uid, None)
        self._singly.pop(uid, None)
        for key in [key for key in self._steps if key[1] == uid]:
            del self._steps[key]


def _next(before: Refused | None, step: int, at: float, why: str) -> Refused:
    if before is None or before.step != step or before.is_stale(at):
        return Refused(step, at, at, why)
    return before._replace(last=at, why=why)


def _known(one: Refused | None, now: float, condition: Callable[[Refused], bool]) -> Refused | None:
    return one if one is not None and not one.is_stale(now) and condition(one) else None
