"""Kubernetes Events on Nodes: what ``kubectl describe node`` shows of us.

All reasons that the controller itself uses are :class:`Reason`; a policy's own
``event`` step may use others. Dry-run decisions write none: an Event about a node is
read as something that happened to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, Literal, NamedTuple, Protocol

from remediator.decide.decision import Decision, Hold, NodePhase, PatchNode, WriteEvent
from remediator.decide.session import Result, Taint
from remediator.record.stages import STARTED, Stage


Kind = Literal["Normal", "Warning"]


class Reason(StrEnum):
    """Reasons of the controller's own Events; each has its row in docs/operations.md."""

    CORDONED = "GPURemediationCordoned"
    UNCORDONED = "GPURemediationUncordoned"
    TAINTED = "GPURemediationTainted"
    UNTAINTED = "GPURemediationUntainted"
    STEP_STARTED = "GPURemediationStepStarted"
    STEP_DONE = "GPURemediationStepDone"
    STEP_FAILED = "GPURemediationStepFailed"
    STEP_CANCELLED = "GPURemediationStepCancelled"
    CANCELLED = "GPURemediationCancelled"
    RELEASED = "GPURemediationReleased"
    HELD = "GPURemediationHeld"
    ESCALATED = "GPURemediationEscalated"
    FROZEN = "GPURemediationFrozen"
    WAIVED = "GPURemediationWaived"
    SIGNAL_REFUSED = "GPURemediationSignalRefused"


MEANINGS: Final = {
    Reason.CORDONED: "A policy marked the node unschedulable; the message says for which fault.",
    Reason.UNCORDONED: "The fault is gone and what we added was undone.",
    Reason.TAINTED: "Taints were added; the message names them, and the fault.",
    Reason.UNTAINTED: "Taints that we had added were taken away.",
    Reason.STEP_STARTED: "A drain, job, create or webhook of a policy began.",
    Reason.STEP_DONE: "A drain, job, create or webhook of a policy is done.",
    Reason.STEP_FAILED: "A step failed, or did not end in time; the message says which and why.",
    Reason.STEP_CANCELLED: "A drain, job, create or webhook that had begun is not wanted any more.",
    Reason.CANCELLED: "A person ended the session (`remediator cancel`, or an uncordon).",
    Reason.RELEASED: "A person took the node over as it is (`remediator release`).",
    Reason.HELD: "A policy matches, and a guard holds its next step; the message names it.",
    Reason.ESCALATED: "Automation has ended on this node; it waits for a person.",
    Reason.FROZEN: "The session annotation cannot be read, so nothing is done to the node.",
    Reason.WAIVED: "People took this fault over; it is left alone until it clears and returns.",
    Reason.SIGNAL_REFUSED: "An alert or query that a policy asks for says something that nothing is"
    " done about; the message says why. About the nodes that it may mean, else about the ConfigMap"
    " `gpu-remediator-status`, in the controller's namespace.",
}

_KIND: Final[dict[Reason, Kind]] = {
    Reason.CORDONED: "Warning",
    Reason.UNCORDONED: "Normal",
    Reason.TAINTED: "Warning",
    Reason.UNTAINTED: "Normal",
    Reason.STEP_STARTED: "Normal",
    Reason.STEP_DONE: "Normal",
    Reason.STEP_FAILED: "Warning",
    Reason.STEP_CANCELLED: "Normal",
    Reason.CANCELLED: "Normal",
    Reason.RELEASED: "Normal",
    Reason.HELD: "Warning",
    Reason.ESCALATED: "Warning",
    Reason.FROZEN: "Warning",
    Reason.WAIVED: "Normal",
    Reason.SIGNAL_REFUSED: "Warning",
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
_FAILURES: Final = frozenset({Result.FAILED, Result.TIMED_OUT})
_OF_RESULT: Final[dict[str, Reason]] = {
    STARTED: Reason.STEP_STARTED,
    Result.DONE: Reason.STEP_DONE,
    Result.FAILED: Reason.STEP_FAILED,
    Result.TIMED_OUT: Reason.STEP_FAILED,
    Result.CANCELLED: Reason.STEP_CANCELLED,
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
        for note in of_patch(patch):
            self._tell(note)

    def went_on(self, patch: PatchNode, found: Iterable[Stage]) -> None:
        """Tell about the steps that began or ended with a patch."""
        for one in found:
            self._tell(of_stage(patch, one))

    def asked(self, effect: WriteEvent) -> None:
        """Write the Event of a decision (a policy's ``event`` step)."""
        self._tell(of_effect(effect))

    def refused(self, nodes: Mapping[str, str], message: str, *, key: str) -> None:
        """Tell about a signal that nothing is done about.

        Args:
            nodes: UIDs by name of those that it may be about; none: it names none.
            message: for people.
            key: refusals with the same one are the same.
        """
        reason = Reason.SIGNAL_REFUSED
        for name, uid in (nodes or {"": ""}).items():
            self._tell(Note(name, uid, _KIND[reason], reason.value, message, key))

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


def of_patch(patch: PatchNode) -> Iterator[Note]:
    """Yield the notes for a written patch; none for one that only records progress."""
    message = f"{patch.why} (policy {patch.policy})" if patch.policy else patch.why
    reason = _OF_ACTION.get(patch.action)
    if reason is not None:
        yield _of_write(patch, reason, message)
    if patch.taint:
        yield _of_write(patch, Reason.TAINTED, f"{_taints(patch.taint)}: {message}")
    if patch.untaint:
        yield _of_write(patch, Reason.UNTAINTED, f"{_taints(patch.untaint)}: {message}")


def of_stage(patch: PatchNode, one: Stage) -> Note | None:
    """Return the note for a step; None for one that people see otherwise, or need not."""
    reason = _OF_RESULT.get(one.result) if one.works or one.result in _FAILURES else None
    if reason is None:
        return None
    said = f": {one.note}" if one.note else ""
    message = f"step {one.step + 1} ({one.action}) of {one.policy} {one.result}{said}"
    return _of_write(patch, reason, message, of=f"{one.policy} {one.step} {one.result}")


def _of_write(patch: PatchNode, reason: Reason, message: str, *, of: str = "") -> Note:
    # The version tells two cordons of one node apart, and a repeated report of one does not.
    key = " ".join(filter(None, (reason, of, patch.resource_version)))
    return Note(patch.name, patch.uid, _KIND[reason], reason.value, message, key)


def _taints(taints: tuple[Taint, ...]) -> str:
    return ", ".join(f"{one.key}:{one.effect}" for one in taints)


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
