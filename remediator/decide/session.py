"""The session: the only truth about a remediation in flight, one annotation on its Node.

It is written in the same patch as the first change to the node, so that there is
no moment at which we changed something and it does not say so. It is also the
reservation in the budget: after a restart the ledger is rebuilt from sessions.

It keeps the steps it began with (``plan``), so that a policy edited meanwhile
does not change a remediation half-way.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import StrEnum
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace


SESSION_ANNOTATION: Final = "gpu-remediator.io/session"
HISTORY_ANNOTATION: Final = "gpu-remediator.io/history"
MODE_KEY: Final = "gpu-remediator.io/mode"
"""Annotation or label: ``disabled``, ``dry-run`` or ``notify-only``."""

OWN_PREFIX: Final = "gpu-remediator.io/"
SESSION_VERSION: Final = 1
DAY: Final = 86400.0
MAX_SESSION_BYTES: Final = 65536
MAX_ATTEMPTS: Final = 1000
"""Of the last 24 h, remembered: bounds the annotation."""
MAX_REMEDIES_SIZE: Final = 8192
"""Bytes in which the history says what attempts consisted of."""

_T = TypeVar("_T")


def _within(at: float, now: float) -> float:
    return max(0.0, min(at, now))


class Taint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A taint of a node."""

    key: str
    effect: str = ""
    value: str = ""

    @property
    def slot(self) -> tuple[str, str]:
        """Key and effect: the API server lets a node have one taint of each."""
        return self.key, self.effect

    @property
    def keeps_away(self) -> bool:
        """Tell whether it takes the node's capacity away."""
        return self.effect in {"NoSchedule", "NoExecute"}


class HoldState(StrEnum):
    """Where one policy's work on a node stands."""

    RUNNING = "running"
    DONE = "done"
    """All steps done; the node is held until it recovers."""
    HELD = "held"
    """A step failed and its ``onFailure`` is hold: people decide (``retry``)."""
    ESCALATED = "escalated"
    """Automation has ended; the node stays as it is until people act."""


class Result(StrEnum):
    """How a step ended. Cancelled or failed is never recorded as done."""

    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    CANCELLED = "cancelled"


class StepResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One ended step: its place in the plan, what it was, how and when it ended."""

    step: int
    action: str
    result: Result
    at: float
    note: str = ""
    untold: str = ""
    """Key of the message about its failure, until that is known to have arrived."""


class PolicyHold(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One policy's part in a session.

    ``instances`` are the fault instances it is about (see ``match.Match``), ``step``
    the place in ``plan`` of the step it is at, ``step_since`` when that step began.
    ``clear_since`` is not stored: recovery is measured anew after a restart.
    ``work_since``: when the present step's work began, None if it has not; ``work_boot_id``: the
    node's boot id then. Written before the first effect of that work.
    """

    policy: str
    version: str
    plan: str
    reasons: tuple[str, ...]
    instances: tuple[str, ...]
    since: float
    step_since: float
    step: int = 0
    state: HoldState = HoldState.RUNNING
    results: tuple[StepResult, ...] = ()
    undelivered: tuple[int, ...] = ()
    """Steps whose message is not yet known to be delivered: sent again after a restart."""
    work_since: float | None = None
    work_boot_id: str = ""
    nth: int = 0
    """How many holds of this policy have let go in this session before it."""
    tried: int = 0
    """Attempts of the present step that failed, since it began or a person had it retried."""
    spent: dict[int, int] = {}
    """By step: how often it ended whose results are not kept. Done again, it is another work."""
    did: tuple[str, ...] = ()
    """What it began that takes capacity away, or works: ``cordon``, ``job/gpu-reset``."""
    untold: str = ""
    """Key of the message that its attempts are used up, until that is known to have arrived."""
    joined: tuple[str, ...] = ()
    """Faults that joined after people were told, in words, until they are known to have heard."""


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A label or annotation that we set. ``old`` None: there was none before."""

    key: str
    value: str
    old: str | None = None


class Past(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a policy's holds that let go before the session's end: how many did something, and what.

    What counts, see :attr:`PolicyHold.did`.
    """

    times: int = 0
    did: tuple[str, ...] = ()


class Before(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was there before us, and therefore stays."""

    cordoned: bool = False
    taints: tuple[Taint, ...] = ()


class Added(msgspec.Struct, frozen=True, omit_defaults=True):
    """What we added, and therefore undo."""

    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    labels: tuple[Mark, ...] = ()
    annotations: tuple[Mark, ...] = ()


class Session(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A remediation in flight on one node. Times are epoch seconds of the controller."""

    version: int
    id: str
    node_uid: str
    boot_id: str
    started: float
    before: Before
    added: Added
    holds: tuple[PolicyHold, ...]
    attempt: int = 1
    let_go: dict[str, int] = {}
    """By policy: how many of its holds have let go while others held the node."""
    past: dict[str, Past] = {}
    """By policy: what those did."""

    def hold(self, policy: str) -> PolicyHold | None:
        """Return the hold of a policy, if it has one."""
        return next((hold for hold in self.holds if hold.policy == policy), None)

    @property
    def takes_capacity(self) -> bool:
        """Tell whether something that it added keeps pods away from the node."""
        return self.added.cordoned or any(taint.keeps_away for taint in self.added.taints)

    @property
    def escalated(self) -> bool:
        """Tell whether automation has ended for any policy on this node."""
        return any(hold.state is HoldState.ESCALATED for hold in self.holds)

    def not_after(self, now: float) -> Session:
        """Move times out of the future: a clock that ran ahead must not hold up recovery.

        And out of the time before 1970, which no clock of ours showed.
        """
        return replace(
            self,
            started=_within(self.started, now),
            holds=tuple(
                replace(
                    hold,
                    since=_within(hold.since, now),
                    step_since=_within(hold.step_since, now),
                    results=tuple(replace(one, at=_within(one.at, now)) for one in hold.results),
                    work_since=None if hold.work_since is None else _within(hold.work_since, now),
                )
                for hold in self.holds
            ),
        )


class Waiver(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fault instance that people took over: no new session for it until it clears and returns."""

    policy: str
    instance: str
    at: float
    why: str
    reminded: bool = False


class Remedy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one attempt consisted of, by policy; see :attr:`PolicyHold.did`."""

    at: float
    did: dict[str, tuple[str, ...]]


class Owed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message that something is over, not known to have arrived; and since when it is true."""

    key: str
    to: tuple[str, ...]
    title: str
    text: str
    at: float
    policy: str = ""


class History(msgspec.Struct, frozen=True, omit_defaults=True):
    """What outlives a session: attempts of the last 24 h, and what is waived.

    ``attempts``: beginnings of those sessions that took capacity away or worked on the node.
    ``remedies`` says of the newest of them what they did; it is a field of its own, so that
    an earlier version reads the times, and its times are read.
    """

    attempts: tuple[float, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    last: str = ""
    """How the last session ended, in words."""
    owed: tuple[Owed, ...] = ()
    """What people are to hear of that, and may not have heard."""
    uid: str = ""
    """In the annotation: UID of the node that it is about. Read, it is of this node: empty."""

    def without(self, keys: Container[str]) -> History:
        """Return it without these of the messages that are owed."""
        return replace(self, owed=tuple(one for one in self.owed if one.key not in keys))

    def not_after(self, now: float) -> History:
        """Move times out of the future, as of a session."""
        return replace(
            self,
            attempts=tuple(_within(at, now) for at in self.attempts),
            remedies=tuple(replace(one, at=_within(one.at, now)) for one in self.remedies),
            waivers=tuple(replace(one, at=_within(one.at, now)) for one in self.waivers),
            owed=tuple(replace(one, at=_within(one.at, now)) for one in self.owed),
        )

    def lately(self, now: float) -> History:
        """Return it without attempts that are older than a day."""
        return replace(
            self,
            attempts=tuple(at for at in self.attempts if at > now - DAY),
            remedies=tuple(one for one in self.remedies if one.at > now - DAY),
        )

    def with_attempt(self, at: float, did: Mapping[str, tuple[str, ...]]) -> History:
        """Add a session that did something. The oldest are left out, and what they did sooner."""
        kept: list[Remedy] = []
        left = MAX_REMEDIES_SIZE
        for one in (Remedy(at, dict(did)), *reversed(self.remedies)):
            left -= len(msgspec.json.encode(one)) + 1
            if left < 0:
                break
            kept.append(one)
        attempts = (*self.attempts, at)[-MAX_ATTEMPTS:]
        return replace(self, attempts=attempts, remedies=tuple(reversed(kept)))


class AnnotationError(ValueError):
    """An annotation of ours that cannot be read. ``str()`` says which and why."""


def encode(value: msgspec.Struct) -> str:
    """Return an annotation's JSON."""
    return msgspec.json.encode(value).decode()


def encode_text(text: str) -> str:
    """Return a text as it stands within an annotation's JSON."""
    return msgspec.json.encode(text).decode()


def decode_session(text: str, *, node_uid: str) -> Session:
    """Read the session of the node with this UID.

    Raises:
        AnnotationError: malformed, of another version, or of another node's UID.
            The node must then be frozen: what we did to it cannot be known.
    """
    session = decode(text, Session, SESSION_ANNOTATION)
    if session.version != SESSION_VERSION:
        raise AnnotationError(
            f"{SESSION_ANNOTATION} is of version {session.version}, "
            f"this program knows {SESSION_VERSION}",
        )
    if session.node_uid != node_uid:
        raise AnnotationError(
            f"{SESSION_ANNOTATION} belongs to a node with UID {session.node_uid}, not to this one",
        )
    return session


def decode_history(text: str, *, node_uid: str) -> History:
    """Read the history of the node with this UID: an empty one, if it is that of another.

    A Node that was made anew from a copy of its object is another machine: neither the attempts
    nor what people took over are about it.

    Raises:
        AnnotationError: malformed.
    """
    history = decode(text, History, HISTORY_ANNOTATION)
    return replace(history, uid="") if history.uid in {"", node_uid} else History()


def decode(text: str, kind: type[_T], name: str) -> _T:
    """Read the value of the annotation with this name. Raises AnnotationError."""
    if len(text) > MAX_SESSION_BYTES:
        raise AnnotationError(f"{name} is longer than {MAX_SESSION_BYTES} characters")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise AnnotationError(f"{name} is malformed: {error}") from error
