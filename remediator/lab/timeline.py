"""What happened in the lab, in order: steps, holds, messages, changes of nodes.

Steps are read from the sessions that decisions write, and holds from the decisions, so that
a new kind of step or guard appears here by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from remediator.decide.decision import (
    UNSET,
    Decision,
    PatchNode,
    SendMessage,
    Work,
    WriteEvent,
)
from remediator.decide.facts import NodeFacts
from remediator.decide.session import HoldState, PolicyHold, Result, Session, StepResult
from remediator.policy.plan import parse_plan


class What(StrEnum):
    """Kinds of happenings."""

    BEGUN = "session begun"
    STEP = "step"
    WORK = "work begun"
    RESUMED = "work goes on"
    UNDONE = "undone"
    ENDED = "session ended"
    ESCALATED = "escalated"
    MESSAGE = "message"
    EVENT = "event"
    HELD = "held"
    FREED = "no longer held"
    FACT = "fact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that happened. ``at``: the lab's clock, epoch seconds.

    ``name`` is the action of a step, the guard of a hold, the reason of an Event, the key
    of a message; ``to`` its channels; ``result`` how a step ended; ``text`` is for people.
    """

    at: float
    node: str
    what: What
    name: str = ""
    policy: str = ""
    text: str = ""
    result: str = ""
    to: tuple[str, ...] = ()
    dry_run: bool = False


@dataclass(slots=True)
class HoldSpan:
    """A hold from its first decision to the one without it. ``until`` None: it holds still."""

    node: str
    policy: str
    guard: str
    reason: str
    since: float
    dry_run: bool
    until: float | None = None

    def covers(self, at: float) -> bool:
        """Tell whether it holds at a time; its first instant counts, its last one does not."""
        return self.since <= at and (self.until is None or at < self.until)


@dataclass(slots=True)
class Timeline:
    """All that happened. Written by the lab only."""

    happenings: list[Happening] = field(default_factory=list)
    holds: list[HoldSpan] = field(default_factory=list)
    phases: dict[tuple[str, bool], list[tuple[float, str]]] = field(default_factory=dict)
    """By node and dry-run: since when which phase."""
    lost: list[tuple[float, int]] = field(default_factory=list)
    """When how many nodes were out of service by a session's doing, real ones only."""
    _out: set[str] = field(default_factory=set)
    _open: dict[tuple[str, bool], dict[tuple[str, str], HoldSpan]] = field(default_factory=dict)
    _told: set[tuple[str, bool]] = field(default_factory=set)

    def fact(self, node: str, text: str, at: float) -> None:
        """Note what the outside did."""
        self.happenings.append(Happening(at=at, node=node, what=What.FACT, text=text))

    def decided(self, decision: Decision, at: float, *, dry_run: bool) -> None:
        """Note holds that begin and end, and the phase."""
        key = (decision.node, dry_run)
        phases = self.phases.setdefault(key, [])
        if not phases or phases[-1][1] != decision.phase:
            phases.append((at, decision.phase.value))
        known = self._open.setdefault(key, {})
        now = {(one.policy, one.guard): one for one in decision.holds}
        for gone in [one for one in known if one not in now]:
            span = known.pop(gone)
            span.until = at
            self._add(at, span, What.FREED)
        for slot, hold in now.items():
            if slot in known:
                known[slot].reason = hold.reason
                continue
            span = HoldSpan(decision.node, hold.policy, hold.guard, hold.reason, at, dry_run)
            known[slot] = span
            self.holds.append(span)
            self._add(at, span, What.HELD)

    def written(self, patch: PatchNode, before: NodeFacts, at: float, *, dry_run: bool) -> None:
        """Note what a change of a node, and of its session, means."""
        for what, name, policy, result, text in _changes(patch, before):
            self.happenings.append(
                Happening(
                    at=at,
                    node=patch.name,
                    what=what,
                    name=name,
                    policy=policy,
                    result=result,
                    text=text,
                    dry_run=dry_run,
                )
            )

    def told(self, effect: SendMessage | WriteEvent, at: float, *, dry_run: bool) -> bool:
        """Note a message or an Event, each key once. False: it was told before."""
        slot = (effect.key, dry_run)
        if slot in self._told:
            return False
        self._told.add(slot)
        message = isinstance(effect, SendMessage)
        self.happenings.append(
            Happening(
                at=at,
                node=effect.node,
                what=What.MESSAGE if message else What.EVENT,
                name=effect.key if isinstance(effect, SendMessage) else effect.reason,
                policy=effect.policy,
                to=effect.to if isinstance(effect, SendMessage) else (),
                text=f"{effect.title}\n{effect.text}"
                if isinstance(effect, SendMessage)
                else effect.message,
                dry_run=dry_run,
            )
        )
        return True

    def work(self, work: Work, at: float, *, dry_run: bool) -> None:
        """Note that something that takes time began, or goes on after it was left alone."""
        self.happenings.append(
            Happening(
                at=at,
                node=work.node,
                what=What.RESUMED if work.since < at else What.WORK,
                name=work.action,
                policy=work.policy,
                dry_run=dry_run,
            )
        )

    def capacity(self, node: str, at: float, *, taken: bool) -> None:
        """Note whether a session keeps a node out of service."""
        if taken is (node in self._out):
            return
        if taken:
            self._out.add(node)
        else:
            self._out.discard(node)
        if self.lost and self.lost[-1][0] == at:
            self.lost.pop()
        self.lost.append((at, len(self._out)))

    def phase(self, node: str, at: float, *, dry_run: bool) -> str:
        """Return where a node stood at a time; "well" before anybody looked."""
        known = self.phases.get((node, dry_run), [])
        return next((phase for since, phase in reversed(known) if since <= at), "well")

    def of(self, *kinds: What) -> list[Happening]:
        """Return the happenings of some kinds, in order."""
        return [one for one in self.happenings if one.what in kinds]

    def _add(self, at: float, span: HoldSpan, what: What) -> None:
        self.happenings.append(
            Happening(
                at=at,
                node=span.node,
                what=what,
                name=span.guard,
                policy=span.policy,
                text=span.reason,
                dry_run=span.dry_run,
            )
        )


_Change = tuple[What, str, str, str, str]
_CORDON: Final = "cordon"
UNDO_OF: Final = {"cordon": "uncordon", "taint": "untaint"}


def _changes(patch: PatchNode, before: NodeFacts) -> Iterator[_Change]:
    old = before.session if isinstance(before.session, Session) else None
    new = old if patch.session is UNSET else patch.session
    if isinstance(new, Session) and old is None:
        yield What.BEGUN, "", patch.policy, "", new.id
    by_steps: set[str] = set()
    if isinstance(new, Session):
        yield from _steps(old, new)
        by_steps = {taken for hold, one in _newly(old, new) if (taken := _taken_back(hold, one))}
    if patch.unschedulable is False and _CORDON not in by_steps:
        yield What.UNDONE, "uncordon", patch.policy, "", patch.why
    for taint in patch.untaint:
        said = f"{taint.key}:{taint.effect}"
        if said not in by_steps:
            yield What.UNDONE, "untaint", patch.policy, "", said
    if old is not None and new is None:
        yield What.ENDED, patch.action, patch.policy, "", patch.why


def _steps(old: Session | None, new: Session) -> Iterator[_Change]:
    """Yield the steps that ended between two versions of a session."""
    ended = list(_newly(old, new))
    for hold in new.holds:
        was = old.hold(hold.policy) if old is not None else None
        for one in (one for its, one in ended if its is hold):
            yield What.STEP, one.action, hold.policy, one.result.value, one.note
        if hold.state is HoldState.ESCALATED and (was is None or was.state is not hold.state):
            yield What.ESCALATED, "", hold.policy, "", "automation has ended: people are needed"


def _newly(old: Session | None, new: Session) -> Iterator[tuple[PolicyHold, StepResult]]:
    """Yield what ended between two versions of a session, each with its hold."""
    for hold in new.holds:
        was = old.hold(hold.policy) if old is not None else None
        known = {_ended(one) for one in was.results} if was is not None else ()
        yield from ((hold, one) for one in hold.results if _ended(one) not in known)


def _taken_back(hold: PolicyHold, one: StepResult) -> str:
    """Name what a step took away from the node; "" if it is none such. It is told as that step."""
    if one.result is not Result.DONE or one.note:  # a note says why there was nothing to take
        return ""
    step = parse_plan(hold.plan).steps[one.step]
    if step.untaint is not None:
        return f"{step.untaint.key}:{step.untaint.effect}"
    return _CORDON if step.uncordon is not None else ""


def _ended(one: StepResult) -> StepResult:
    """Leave out whether people know of it: it ended once, whenever they are told."""
    return replace(one, untold="")


DONE: Final = Result.DONE.value
