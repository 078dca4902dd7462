"""What comes out: effects (plain data), holds with their reasons, and when to look again.

The shell executes effects and reports back; enforce, dry-run, simulate and policy
tests differ only there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from remediator.decide.requests import Approval
from remediator.decide.session import History, PolicyHold, Session, Taint
from remediator.policy.steps import Step


class Unset(StrEnum):
    """A field that a patch leaves alone."""

    UNSET = "unset"


UNSET = Unset.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchNode:
    """One PATCH of a node, with resourceVersion and UID as preconditions.

    ``unschedulable`` None leaves it. ``taint`` and ``untaint``: taints to add and to remove;
    the list is made from the version that is patched, so that all others stay.
    ``labels``, ``annotations``: key to new value, or to None for a key to remove.
    ``session``, ``history``: None removes the annotation, UNSET leaves it; ``approvals``: what
    is left of the people's approvals, empty removes the annotation.
    ``disruptive`` patches are the ones that guards, pause and a settling controller hold
    back; undoing is never disruptive.
    """

    name: str
    uid: str
    resource_version: str
    unschedulable: bool | None = None
    taint: tuple[Taint, ...] = ()
    untaint: tuple[Taint, ...] = ()
    session: Session | Unset | None = UNSET
    history: History | Unset | None = UNSET
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    approvals: tuple[Approval, ...] | Unset = UNSET
    remove_request: bool = False
    action: str = ""
    """For metrics, audit: ``cordon``, ``taint``, ``uncordon``, ``untaint``, ``record``; a verb."""
    policy: str = ""
    disruptive: bool = False
    allowed_by: tuple[str, ...] = ()
    """The guards that were asked about a disruptive change; every one of them allowed it."""
    why: str = ""
    changes: tuple[tuple[str, int], ...] = ()
    """Policy and place of each step whose change this is."""
    at: float = 0.0
    """When it was decided."""


class Urgency(StrEnum):
    """How a message is to be read."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessage:
    """One message to channels. The same ``key`` is the same message: send it once.

    ``key`` starts with the session id where there is one, so that a channel can keep
    a thread. ``policy`` and ``step`` let the outcome be recorded; step None: nobody waits.
    ``kind``: in a word what it says (``failed``, ``held``, ``end`` ...); messages of one kind may
    be merged. "" for what a ``notify`` step says.
    """

    key: str
    to: tuple[str, ...]
    title: str
    text: str
    node: str = ""
    policy: str = ""
    step: int | None = None
    urgency: Urgency = Urgency.WARNING
    resolves: bool = False
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteEvent:
    """One Kubernetes Event on a Node; ``key``, ``policy`` and ``step`` as of a message."""

    key: str
    node: str
    uid: str
    reason: str
    message: str
    policy: str = ""
    step: int | None = None
    warning: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Something that takes time outside the node object: a drain, a job, a create, a webhook.

    Level-triggered: it is in *every* decision for as long as it is wanted, and its worker is
    stopped when it is in none. It first appears behind the patch that persists ``since``.
    ``key`` is stable over restarts and another one for each attempt. Times are epoch seconds
    of the controller's clock. Behind ``deadline`` a worker begins nothing new: it looks once
    how the work stands, and says so. Who judges the deadline is decide.
    ``suspended``: wanted, but nothing may be written now: the worker stops, and what it has
    begun is left as it is.
    """

    key: str
    node: str
    uid: str
    policy: str
    step: int
    action: str
    spec: Step
    session: str
    attempt: int
    since: float
    deadline: float
    boot_id: str = ""
    """Of the node when the step began."""
    suspended: bool = False


Effect = PatchNode | SendMessage | WriteEvent | Work


class Hold(NamedTuple):
    """Why something is not done now. ``look_again`` None: when facts change."""

    policy: str
    guard: str
    reason: str
    look_again: float | None = None


HELD_BY_NO_GUARD: Final = (
    *("approval", "facts", "mode", "order", "policy", "recovery", "refused", "session", "waived"),
)
"""What holds and is no guard, by the names that :class:`Hold` gives."""

NOT_ASKED: Final = Hold("", "order", "waits for its turn")
"""The answer for a policy that was no candidate when the guards were asked."""


class Due(NamedTuple):
    """When a policy goes on by itself that no guard holds: ``what`` comes then, in words."""

    policy: str
    what: str
    at: float


class NodePhase(StrEnum):
    """Where a node stands, in one word, for ``status`` and metrics."""

    WELL = "well"
    MATCHED = "matched"
    """A policy matches, and a guard holds it."""
    IN_SESSION = "in-session"
    RECOVERING = "recovering"
    HELD = "held"
    ESCALATED = "escalated"
    FROZEN = "frozen"
    WAIVED = "waived"
    """People took this fault over."""
    LEFT_ALONE = "left-alone"
    """Opted out, or being deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """All of it for one node. ``str()`` is one sentence a person can read."""

    node: str
    uid: str
    phase: NodePhase
    matched: tuple[str, ...] = ()
    """Names of the policies that hold for the node now."""
    reasons: tuple[str, ...] = ()
    """Which clauses said so, such as ``Xid 79 on 0000:9b:00.0``."""
    effects: tuple[Effect, ...] = ()
    holds: tuple[Hold, ...] = ()
    next_look: float | None = None
    sentence: str = ""
    steps: tuple[str, ...] = field(default=())
    """Per hold: ``policy: step n/m action state``."""
    failed: tuple[tuple[str, str], ...] = ()
    """Policies whose expression failed on the node, so that nobody knows, each with how."""
    ended: Session | None = None
    """The session that this decision ends, with the results it had then, for the record."""
    dues: tuple[Due, ...] = ()
    """What comes by itself, and when. Holds and work say that of themselves."""
    left: tuple[PolicyHold, ...] = ()
    """Of a session that goes on, the holds that let go, with the results they had then."""

    def __str__(self) -> str:
        """Return the sentence."""
        return f"{self.node}: {self.sentence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a message, event or work: results that the next plan takes in.

    Of work: it ended well (``delivered``), failed, or, once its worker has looked behind the
    deadline, not in time (``late``); or it goes on (``pending``), and ``note`` says how it stands.
    """

    key: str
    delivered: bool
    note: str = ""
    late: bool = False
    pending: bool = False
