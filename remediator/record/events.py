"""Kubernetes Events on Nodes: what ``kubectl describe node`` shows of us.

All reasons that the controller itself uses are :class:`Reason`; a policy's own
``event`` step may use others. Dry-run decisions write none: an Event about a node is
read as something that happened to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, Literal, NamedTuple, Protocol

from remediator.decide.decision import Decision, Hold, NodePhase, PatchNode, WriteEvent


Kind = Literal["Normal", "Warning"]


class Reason(StrEnum):
    """Reasons of the controller's own Events; each has its row in docs/operations.md."""

    CORDONED = "GPURemediationCordoned"
    UNCORDONED = "GPURemediationUncordoned"
    CANCELLED = "GPURemediationCancelled"
    RELEASED = "GPURemediationReleased"
    HELD = "GPURemediationHeld"
    ESCALATED = "GPURemediationEscalated"
    FROZEN = "GPURemediationFrozen"
    WAIVED = "GPURemediationWaived"


MEANINGS: Final = {
    Reason.CORDONED: "A policy marked the node unschedulable; the message says for which fault.",
    Reason.UNCORDONED: "The fault is gone and what we added was undone.",
    Reason.CANCELLED: "A person ended the session (`remediator cancel`, or an uncordon).",
    Reason.RELEASED: "A person took the node over as it is (`remediator release`).",
    Reason.HELD: "A policy matches, and a guard holds its next step; the message names it.",
    Reason.ESCALATED: "Automation has ended on this node; it waits for a person.",
    Reason.FROZEN: "The session annotation cannot be read, so nothing is done to the node.",
    Reason.WAIVED: "People took this fault over; it is left alone until it clears and returns.",
}

_KIND: Final[dict[Reason, Kind]] = {
    Reason.CORDONED: "Warning",
    Reason.UNCORDONED: "Normal",
    Reason.CANCELLED: "Normal",
    Reason.RELEASED: "Normal",
    Reason.HELD: "Warning",
    Reason.ESCALATED: "Warning",
    Reason.FROZEN: "Warning",
    Reason.WAIVED: "Normal",
}
_OF_PHASE: Final = {
    NodePhase.ESCALATED: Reason.ESCALATED,
    NodePhase.FROZEN: Reason.FROZEN,
    NodePhase.WAIVED: Reason.WAIVED,
}
_OF_ACTION: Final = {
    "cordon": Reason.CORDONED,
    "uncordon": Reason.UNCORDONED,
    "cancel": Reason.CANCELLED,
    "release": Reason.RELEASED,
}
_PASSING_GUARDS: Final = frozenset({"settling", "scope", "opt-out", "recovery", "waived"})
"""Holds that end by themselves, are the node's ordinary state, or are told otherwise: no Event."""


class Recorder(Protocol):
    """What is needed of `remediator.kube.events.EventRecorder`; never waits, never fails."""

    def record(
        self, *, node: str, uid: str, kind: Kind, reason: str, message: str, key: str | None
    ) -> None:
        """Tell about a node."""


class Note(NamedTuple):
    """One Event to be."""

    node: str
    uid: str
    kind: Kind
    reason: str
    message: str
    key: str


class Events:
    """Tells about decisions and writes of the real world.

    Args:
        recorder: sends them.
    """

    def __init__(self, *, recorder: Recorder) -> None:
        self._recorder = recorder

    def written(self, patch: PatchNode) -> None:
        """Tell about a patch that was written."""
        self._tell(of_patch(patch))

    def asked(self, effect: WriteEvent) -> None:
        """Write the Event of a decision (a policy's ``event`` step)."""
        self._tell(of_effect(effect))

    def decided(self, before: Decision | None, now: Decision) -> None:
        """Tell what is new in a decision since the one before it."""
        for note in of_decision(before, now):
            self._tell(note)

    def _tell(self, note: Note | None) -> None:
        if note is not None:
            self._recorder.record(**note._asdict())


def of_effect(effect: WriteEvent) -> Note:
    """Return the note for a policy's own Event."""
    kind: Kind = "Warning" if effect.warning else "Normal"
    return Note(effect.node, effect.uid, kind, effect.reason, effect.message, effect.key)


def of_patch(patch: PatchNode) -> Note | None:
    """Return the note for a written patch; None for one that only records progress."""
    reason = _OF_ACTION.get(patch.action)
    if reason is None:
        return None
    message = f"{patch.why} (policy {patch.policy})" if patch.policy else patch.why
    # The version tells two cordons of one node apart, and a repeated report of one does not.
    key = f"{reason} {patch.resource_version}"
    return Note(patch.name, patch.uid, _KIND[reason], reason.value, message, key)


def of_decision(before: Decision | None, now: Decision) -> Iterator[Note]:
    """Yield notes for a phase that people must know of, and for guards that newly hold."""
    phase = _OF_PHASE.get(now.phase)
    if phase is not None and (before is None or before.phase is not now.phase):
        yield _note(now, phase, now.sentence, now.phase.value)
    for hold in new_holds(before, now):
        if hold.guard not in _PASSING_GUARDS:
            message = f"{hold.policy} is held by {hold.guard}: {hold.reason}"
            yield _note(now, Reason.HELD, message, f"{hold.policy} {hold.guard}")


def new_holds(before: Decision | None, now: Decision) -> tuple[Hold, ...]:
    """Return the holds whose policy and guard were not among those before."""
    known = {(hold.policy, hold.guard) for hold in before.holds} if before else set()
    return tuple(hold for hold in now.holds if (hold.policy, hold.guard) not in known)


def reference() -> str:
    """Return the table of reasons of docs/operations.md."""
    rows = ["| reason | type | meaning |", "|---|---|---|"]
    rows += [f"| `{reason}` | {_KIND[reason]} | {MEANINGS[reason]} |" for reason in Reason]
    return "\n".join(rows) + "\n"


def _note(decision: Decision, reason: Reason, message: str, key: str) -> Note:
    return Note(decision.node, decision.uid, _KIND[reason], reason.value, message, key)
