"""What takes time in the lab: drains, Jobs and the like end after an assumed duration.

As in the controller, work that is suspended (``pause --all``, a breaker that stops evictions) is
not followed, and taken up again later; its deadline does not run meanwhile. A drain stands still
with its evictions: decide moves its beginning by that long, and its end is counted from there. A
Job or a created object is the cluster's by then and goes on: how it ended meanwhile is seen once it
is followed again. Kubernetes knows of no suspension, and ends a Job at the deadline that it
was made with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from remediator.act.side import Side
from remediator.decide.decision import Outcome, SendMessage, Work, WriteEvent
from remediator.decide.work import assumed_seconds, reboots


GOES_ON: Final = frozenset({"job", "create"})
"""Actions that make an object, which goes on whether or not anybody follows it."""


@dataclass(frozen=True, slots=True)
class Assumed:
    """How work of one action ends: after so many seconds, or never; done, or failed and why."""

    seconds: float | None
    fails: str = ""


@dataclass(slots=True, kw_only=True)
class Assumptions:
    """What the outside does with effects; changed at will while the lab runs."""

    work: dict[str, Assumed] = field(default_factory=dict)
    """By action; others end well after what dry-run assumes."""
    failing: dict[str, str] = field(default_factory=dict)
    """Channels that deliver nothing, and why."""
    reboots: bool = False
    """Whether a Job that proves itself by a reboot is played; else what happens says so."""
    reboot: float | None = None
    """Seconds until such a node is back with another boot id; None: never."""
    approval: float | None = None
    """Seconds until a person approves a step that waits for it; None: nobody does."""

    def of(self, action: str) -> Assumed:
        """Return how work of an action ends."""
        return self.work.get(action) or Assumed(assumed_seconds(action))

    def undelivered(self, effect: SendMessage | WriteEvent) -> str:
        """Say why a message does not arrive: all of its channels must take it."""
        to = effect.to if isinstance(effect, SendMessage) else ()
        return "; ".join(f"{one}: {self.failing[one]}" for one in to if one in self.failing)


@dataclass(eq=False, slots=True)
class _Made:
    """A Job or another object in the lab's cluster. ``outcome``: how it ended, seen by nobody."""

    node: str
    outcome: Outcome | None = None


class _End(NamedTuple):
    """When and how work ends: after so many seconds or never; failed and why; out of time."""

    seconds: float | None
    fails: str = ""
    late: bool = False


_Slot = tuple[bool, str]
"""Whether in dry-run, and a key."""


class Works:
    """Work under way, in both worlds. What no decision wants any more is stopped.

    Args:
        assume: how work ends.
        call_after: has something happen after so many seconds.
        reboot: has a node reboot.
        look: has a node looked at.
        now: the lab's clock.
    """

    def __init__(
        self,
        *,
        assume: Assumptions,
        call_after: Callable[[float, Callable[[], None]], None],
        reboot: Callable[[str], None],
        look: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        self._assume = assume
        self._call_after = call_after
        self._reboot = reboot
        self._look = look
        self._now = now
        self._followed: dict[_Slot, tuple[Side, Work]] = {}
        """By whom: another controller has other sides."""
        self._made: dict[_Slot, _Made] = {}

    def begin(self, side: Side, work: Work) -> bool:
        """Begin or go on, unless it is under way or has ended. Tells whether it did."""
        slot = (side.dry_run, work.key)
        if work.suspended or slot in self._followed or work.key in side.outcomes:
            return False
        self._followed[slot] = (side, work)
        made = self._made.get(slot)
        if made is not None:
            if made.outcome is not None:
                self._ended(side, work, made.outcome)
        elif not side.dry_run or work.action in self._assume.work:
            self._let_go_on(side, work)
        return True  # else dry-run's own assumption ends it

    def keep(self, node: str, works: Iterable[Work], *, dry_run: bool) -> None:
        """Stop, and take back, the work on a node that is not among these; none is begun."""
        wanted = {work.key: work.suspended for work in works}
        for slot, (_, work) in list(self._followed.items()):
            if work.node == node and slot[0] is dry_run and wanted.get(work.key, True):
                del self._followed[slot]
        for slot, made in list(self._made.items()):
            if made.node == node and slot[0] is dry_run and slot[1] not in wanted:
                del self._made[slot]

    def forget(self) -> None:
        """Follow nothing any more: the controller is another one. What has begun goes on."""
        self._followed.clear()

    def _let_go_on(self, side: Side, work: Work) -> None:
        """Have it end as is assumed."""
        slot = (side.dry_run, work.key)
        ends, by_reboot = self._end_of(side, work)
        made = _Made(work.node) if work.action in GOES_ON else None
        if made is not None:
            self._made[slot] = made
        if ends.seconds is None:
            return

        def end() -> None:
            followed = self._followed.get(slot)
            mine = followed is not None and followed[1] is work
            if not (mine if made is None else self._made.get(slot) is made):
                return  # nobody wants it any more
            if by_reboot:
                self._reboot(work.node)  # which says it all
                return
            well = not ends.fails and not ends.late
            outcome = Outcome(key=work.key, delivered=well, late=ends.late, note=ends.fails)
            if followed is not None:
                self._ended(*followed, outcome)
            elif made is not None:
                made.outcome = outcome

        self._call_after(max(0.0, work.since + ends.seconds - self._now()), end)

    def _end_of(self, side: Side, work: Work) -> tuple[_End, bool]:
        """Return when and how it ends, and whether by a reboot of the node."""
        assumed = self._assume.of(work.action)
        by_reboot = self._assume.reboots and reboots(work.spec)
        by_reboot = by_reboot and not side.dry_run and not assumed.fails
        seconds = self._assume.reboot if by_reboot else assumed.seconds
        if work.action == "job" and (seconds is None or seconds >= work.spec.limit):
            return _End(work.spec.limit, late=True), False
        return _End(seconds, assumed.fails), by_reboot

    def _ended(self, side: Side, work: Work, outcome: Outcome) -> None:
        slot = (side.dry_run, work.key)
        self._followed.pop(slot, None)
        self._made.pop(slot, None)
        side.outcomes[work.key] = outcome
        self._look(work.node)
