"""What takes time in the lab: drains, Jobs and the like end after an assumed duration.

As in the controller, work that is suspended (``pause --all``, a breaker that stops evictions) is
not followed, and goes on later. The time in which it was does not count: decide moves the
beginning of the work by that long, and its end is counted from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from remediator.act.side import Side
from remediator.decide.decision import Outcome, SendMessage, Work, WriteEvent
from remediator.decide.work import assumed_seconds
from remediator.policy.steps import JobSuccess, Step


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


def reboots(step: Step) -> bool:
    """Tell whether a step is a Job that is done when the node has another boot id."""
    return step.job is not None and step.job.success is JobSuccess.REBOOT


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
        self._running: dict[tuple[bool, str], Work] = {}

    def begin(self, side: Side, work: Work) -> bool:
        """Begin or go on, unless it is under way or has ended. Tells whether it did."""
        slot = (side.dry_run, work.key)
        if work.suspended or slot in self._running or work.key in side.outcomes:
            return False
        self._running[slot] = work
        assumed = self._assume.of(work.action)
        by_reboot = self._assume.reboots and reboots(work.spec)
        by_reboot = by_reboot and not side.dry_run and not assumed.fails
        assumed = Assumed(self._assume.reboot) if by_reboot else assumed
        if assumed.seconds is None or (side.dry_run and work.action not in self._assume.work):
            return True  # dry-run's own assumption ends it

        def end() -> None:
            if self._running.get(slot) is not work:
                return  # nobody wants it any more
            if by_reboot:
                self._reboot(work.node)  # which says it all
                return
            del self._running[slot]
            side.outcomes[work.key] = Outcome(
                key=work.key, delivered=not assumed.fails, note=assumed.fails
            )
            self._look(work.node)

        self._call_after(max(0.0, work.since + assumed.seconds - self._now()), end)
        return True

    def keep(self, node: str, *, dry_run: bool, wanted: set[str]) -> None:
        """Stop the work on a node that no decision wants now."""
        for slot, work in list(self._running.items()):
            if work.node == node and slot[0] is dry_run and slot[1] not in wanted:
                del self._running[slot]

    def forget(self) -> None:
        """Follow nothing any more: the controller is another one. What has begun goes on."""
        self._running.clear()
