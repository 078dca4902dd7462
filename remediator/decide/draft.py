"""The draft of one decision: what planning writes into, and how it becomes effects.

At most one PATCH comes out of it, however many policies wrote into it: the change
of the node, the session and the history are one write, or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from msgspec import structs

from remediator.decide.decision import (
    NOT_ASKED,
    UNSET,
    Decision,
    Due,
    Effect,
    Hold,
    NodePhase,
    PatchNode,
    SendMessage,
    Urgency,
    Work,
)
from remediator.decide.facts import NOTHING_KNOWN, ClusterFacts, NodeFacts, NodeMode
from remediator.decide.guards import GUARD_NAMES
from remediator.decide.ledger import Ledger
from remediator.decide.refusals import UNDO
from remediator.decide.requests import Approval
from remediator.decide.room import fitted, fitted_history, too_long
from remediator.decide.session import History, Owed, PolicyHold, Session, Taint
from remediator.decide.suspensions import Suspension
from remediator.policy.model import Mode, RemediationPolicy
from remediator.policy.plan import Plan


SOONEST: Final = 0.1
"""Seconds until the next look at the earliest: what is due by rounding alone comes then."""


UNTOUCHED: Final[tuple[object, ...]] = (None, (), (), {}, {})
"""What :attr:`Draft.changed` says before anything is changed."""


class World(StrEnum):
    """Where effects go: to the cluster, or to the overlay that dry-run keeps."""

    REAL = "real"
    VIRTUAL = "virtual"


@dataclass(slots=True, kw_only=True)
class Draft:
    """One node's decision in the making. Lives for one call of ``plan``."""

    facts: NodeFacts
    world: World
    ledger: Ledger
    now: float
    session: Session | None
    history: History
    cluster_facts: ClusterFacts = NOTHING_KNOWN
    unschedulable: bool | None = None
    taint: list[Taint] = field(default_factory=list)
    untaint: list[Taint] = field(default_factory=list)
    labels: dict[str, str | None] = field(default_factory=dict)
    annotations: dict[str, str | None] = field(default_factory=dict)
    approvals: tuple[Approval, ...] | None = None
    """What is left of the people's approvals; None: they stay as they are."""
    working: dict[str, str] = field(default_factory=dict)
    """Class of work to the policy that has one under way on this node."""
    works: list[Work] = field(default_factory=list)
    """All work that is wanted."""
    under_way: tuple[Work, ...] = ()
    """The work that the node's session says has begun."""
    policies: Mapping[str, RemediationPolicy] = field(default_factory=dict)
    """Those that look after the node, as they stand now, where work is under way."""
    ended: Session | None = None
    left: list[PolicyHold] = field(default_factory=list)
    """Holds that let go, while others hold the node."""
    settled: frozenset[str] = frozenset()
    """Keys of the messages that the node's history owes no more."""
    answered: bool = False
    """A person's request was answered in this decision."""
    drop_session: bool = False
    """An unreadable session is to be removed, as a person asked."""
    changes: list[tuple[str, int]] = field(default_factory=list)
    """Policy and place of each step that changes the node now."""
    by_steps: tuple[object, ...] = UNTOUCHED
    """What was changed when the last of them had changed it."""
    action: str = ""
    policy: str = ""
    disruptive: bool = False
    why: str = ""
    phase: NodePhase = NodePhase.WELL
    sentence: str = ""
    effects: list[Effect] = field(default_factory=list)
    """True only once the patch is written: dropped with it."""
    notices: list[Effect] = field(default_factory=list)
    """True whether or not anything is written."""
    holds: list[Hold] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    dues: list[Due] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    @property
    def changed(self) -> tuple[object, ...]:
        """What is changed of the node so far, but for session and history: to be compared."""
        return (
            *(self.unschedulable, tuple(self.taint), tuple(self.untaint)),
            *(dict(self.labels), dict(self.annotations)),
        )

    def changed_by(self, policy: str, step: int, *, before: tuple[object, ...]) -> None:
        """Note that a step changed the node; ``before``: what was changed until then."""
        self.changes += [*((UNDO,) if before != self.by_steps else ()), (policy, step)]
        self.by_steps = self.changed

    def look_at(self, when: float | None) -> None:
        """Ask to be looked at again at a time."""
        if when is not None:
            self.looks.append(when)

    def due(self, policy: str, what: str, when: float) -> None:
        """State what a policy does by itself at a time, and ask to be looked at then."""
        self.dues.append(Due(policy, what, when))
        self.look_at(when)

    def hold(self, hold: Hold) -> None:
        """State why something is not done now."""
        self.holds.append(hold)
        self.look_at(hold.look_again)

    def held_by(self, policy: str, verdict: Hold | None) -> bool:
        """Tell whether the guards hold a policy's step, and state it."""
        if verdict is None:
            return False
        self.hold(verdict._replace(policy=policy) if verdict is NOT_ASKED else verdict)
        if verdict is NOT_ASKED:
            self.look_at(self.now + 1.0)
        return True

    def act(self, action: str, policy: str, why: str, *, disruptive: bool = False) -> None:
        """Name what the patch does. The first, or the disruptive, name wins."""
        if not self.action or (disruptive and not self.disruptive):
            self.action, self.policy, self.why = action, policy, why
        self.disruptive = self.disruptive or disruptive

    def tell(
        self,
        key: str,
        title: str,
        text: str,
        *,
        kind: str = "",
        to: tuple[str, ...] = (),
        policy: str = "",
        step: int | None = None,
        urgency: Urgency = Urgency.WARNING,
        resolves: bool = False,
        notice: bool = False,
        owed: bool = False,
    ) -> None:
        """Send a message nobody waits for; to the cluster's ``alertsTo`` if no channel is given.

        ``kind``: what it says, in a word: what is alike may be merged.
        ``step``: that the session remembers it by, so that its outcome is looked at.
        ``notice``: it is true, and sent, whether or not this decision's patch may be written.
        ``owed``: nobody would send it again, so that the patch remembers it in the history.
        """
        to = to or self.ledger.cluster.alerts_to
        if owed and self.world is World.REAL:
            one = Owed(key=key, to=to, title=title, text=text, at=self.now, policy=policy)
            self.history = structs.replace(self.history, owed=(*self.history.owed, one))
        (self.notices if notice else self.effects).append(
            SendMessage(
                key=key,
                to=to,
                title=title,
                text=text,
                node=self.facts.name,
                policy=policy,
                step=step,
                urgency=urgency,
                resolves=resolves,
                kind=kind,
            ),
        )

    def suspend(self, policy: str | None = None) -> None:
        """Want work that is under way, but not now: it stays as it is, no deadline runs.

        ``policy``: only that policy's; None: all.
        """
        ours = [one for one in self.under_way if policy in {None, one.policy}]
        for work in ours:
            key = (work.policy, self.facts.uid)
            followed = self.ledger.look_until.pop(key, None) is not None
            since = self.now if followed else work.since  # by an earlier leader: who knows?
            self.ledger.suspensions.add(*key, Suspension(began=work.since, since=since))
        others = [one for one in self.works if policy not in {None, one.policy}]
        self.works = [*others, *(replace(work, suspended=True) for work in ours)]

    def channels(self, plan: Plan) -> tuple[str, ...]:
        """Return where a policy's people are told: its notify steps, or ``alertsTo``."""
        return plan.channels or self.ledger.cluster.alerts_to

    def finish(
        self,
        matched: tuple[str, ...],
        reasons: tuple[str, ...],
        failed: tuple[tuple[str, str], ...] = (),
    ) -> Decision:
        """Return the decision: the patch before all that is true only once it is written."""
        patch = self._patch()
        told = (*self.effects, *self.works)
        effects = (*self.notices, *((patch,) if patch is not None else ()), *told)
        return Decision(
            node=self.facts.name,
            uid=self.facts.uid,
            phase=self.phase,
            matched=matched,
            reasons=reasons,
            effects=effects,
            holds=tuple(self.holds),
            next_look=max(min(self.looks), self.now + SOONEST) if self.looks else None,
            sentence=self._sentence(patch),
            steps=tuple(self.steps),
            dues=tuple(self.dues),
            failed=failed,
            ended=self.ended if patch is not None else None,
            left=tuple(self.left) if patch is not None else (),
        )

    def _patch(self) -> PatchNode | None:
        """Return the one write, if anything changed and the world may be written to."""
        before = self.facts.session if isinstance(self.facts.session, Session) else None
        if self.session is not None and self.session != before:
            self.session = fitted(self.session)
        if self.history != self.facts.history:
            self.history = fitted_history(self.history)
        changed_session = self.session != before or self.drop_session
        changed_history = self.history != self.facts.history
        changed = bool(
            changed_session
            or changed_history
            or self.answered
            or self.unschedulable is not None
            or self.taint
            or self.untaint
            or self.labels
            or self.annotations
            or self.approvals is not None
        )
        if changed and self.settled:
            self.history = self.history.without(self.settled)
            changed_history = self.history != self.facts.history
        refusal = self.refusal() if changed or self.under_way else None
        if refusal is None and self._too_long(changed=changed_session):
            refusal = Hold(self.policy, "session", "it would be longer than what we read again")
        if refusal is not None:
            self.hold(refusal)
            self.effects.clear()
            self.suspend()
            self.ledger.refund(self.facts.uid)
        if refusal is not None or not changed:
            return None
        return PatchNode(
            name=self.facts.name,
            uid=self.facts.uid,
            resource_version=self.facts.resource_version,
            unschedulable=self.unschedulable,
            taint=tuple(self.taint),
            untaint=tuple(self.untaint),
            session=(None if self.drop_session else self.session) if changed_session else UNSET,
            history=self.history if changed_history else UNSET,
            labels=self.labels,
            annotations=self.annotations,
            approvals=UNSET if self.approvals is None else self.approvals,
            remove_request=self.answered,
            action=self.action or "record",
            policy=self.policy,
            disruptive=self.disruptive,
            allowed_by=GUARD_NAMES if self.disruptive else (),
            why=self.why,
            changes=(*self.changes, UNDO)
            if self.changes and self.changed != self.by_steps
            else tuple(self.changes),
            at=self.now,
        )

    def _too_long(self, *, changed: bool) -> bool:
        return changed and self.session is not None and too_long(self.session)

    def refusal(self) -> Hold | None:
        """Say why the cluster may not be written to at all, if so.

        Dry-run writes nothing, not even the end of an older session; only a person's
        explicit request is answered. ``pause --all`` stops that too.
        """
        if self.world is World.VIRTUAL:
            return None
        pause = self.ledger.pause
        if pause is not None and pause.all:
            return Hold(self.policy, "pause", f"every write is paused by {pause.by}")
        if self.answered:
            return None
        if self.ledger.cluster.mode is not Mode.ENFORCE:
            return Hold(self.policy, "mode", f"the cluster's mode is {self.ledger.cluster.mode}")
        if self.facts.mode is NodeMode.DRY_RUN:
            return Hold(self.policy, "mode", "the node's mode is dry-run")
        return None

    def _sentence(self, patch: PatchNode | None) -> str:
        if patch is not None and patch.why:
            return patch.why
        if self.sentence:
            return self.sentence
        if self.holds:
            first = self.holds[0]
            return f"held by {first.guard}: {first.reason}"
        return self.phase.value
