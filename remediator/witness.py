"""Sees everything that the engine does, and tells the audit log, Events and metrics of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from remediator.act.writes import Verdict
from remediator.clock import Clock
from remediator.decide.decision import UNSET, Decision, NodePhase, PatchNode, WriteEvent
from remediator.decide.facts import NodeFacts
from remediator.decide.session import PolicyHold, Session
from remediator.record.audit import WriteResult, audit
from remediator.record.chronicle import Chronicle
from remediator.record.events import Events
from remediator.record.metrics import Metrics
from remediator.record.stages import Stage, stages


_RESULTS: Final = {
    Verdict.DONE: WriteResult.DONE,
    Verdict.CHANGED: WriteResult.CONFLICT,
    Verdict.GONE: WriteResult.GONE,
    Verdict.DOUBTFUL: WriteResult.UNKNOWN,
    Verdict.LATER: WriteResult.FAILED,
    Verdict.REFUSED: WriteResult.FAILED,
    Verdict.NOT_LEADING: WriteResult.FAILED,
}


class Witness:
    """The executor's and engine's observer; see :class:`remediator.act.executor.Observer`.

    Args:
        events, metrics, chronicle: told of what concerns them.
        clock: for how long things took.
        news: called when something changed that people may want to see.
    """

    def __init__(
        self,
        *,
        events: Events,
        metrics: Metrics,
        chronicle: Chronicle | None = None,
        clock: Clock,
        news: Callable[[], None],
    ) -> None:
        self._chronicle = chronicle
        self._news = news
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._last: dict[tuple[bool, str], tuple[PolicyHold, ...]] = {}
        """Holds that end with the patch that was decided on; by world and node."""

    def decided(self, before: Decision | None, now: Decision, *, dry_run: bool) -> None:
        """Tell what is new about a node."""
        last = now.left if now.ended is None else now.ended.holds
        if last:
            self._last[dry_run, now.uid] = last
        else:
            self._last.pop((dry_run, now.uid), None)
        both_well = now.phase is NodePhase.WELL and before is not None and before.phase is now.phase
        if both_well and before is not None and now.failed == before.failed:
            return
        self._news()
        self._metrics.decided(before, now, dry_run=dry_run)
        if not dry_run:
            self._events.decided(before, now)
            if self._chronicle is not None:
                self._chronicle.decided(now)

    def written(
        self,
        patch: PatchNode,
        *,
        facts: NodeFacts,
        verdict: Verdict,
        dry_run: bool,
        reason: str = "",
    ) -> None:
        """Tell what became of a write."""
        self._news()
        result = _RESULTS[verdict]
        audit(patch, facts=facts, result=result, dry_run=dry_run, reason=reason)
        self._metrics.written(patch, result=result, dry_run=dry_run)
        if result is not WriteResult.DONE:
            return
        found = self._stages(patch, facts, dry_run=dry_run)
        self._metrics.went_on(found, dry_run=dry_run)
        if dry_run:
            return
        self._events.written(patch)
        self._events.went_on(patch, found)
        if self._chronicle is not None:
            self._chronicle.written_to(patch, facts)
        if patch.action == "cordon" and isinstance(patch.session, Session):
            hold = patch.session.hold(patch.policy)
            if hold is not None:
                self._metrics.cordoned(seconds=self._clock.now() - hold.since)

    def _stages(self, patch: PatchNode, facts: NodeFacts, *, dry_run: bool) -> list[Stage]:
        """Return the steps that began or ended with a write."""
        if patch.session is UNSET:
            return []
        last = self._last.pop((dry_run, patch.uid), ())
        now = patch.session.holds if isinstance(patch.session, Session) else ()
        before = facts.session if isinstance(facts.session, Session) else None
        return list(stages(before, (*now, *last)))

    def defect(self, where: str) -> None:
        """Count a bug that was survived."""
        self._metrics.defect(where)

    def asked(self, effect: WriteEvent) -> None:
        """Write a policy's own Event."""
        self._events.asked(effect)
