"""The ledger: what the guards remember of the fleet. No I/O, no clock of its own.

Counts are kept as nodes are observed, so that a guard's question costs the same
with ten nodes as with ten thousand. Everything in flight can be rebuilt: budgets
from the nodes (a session is the reservation), rates and breakers from
:class:`LedgerState`, which the shell keeps in a ConfigMap.

An admission *reserves* at once. The reservation is taken over by the node's own
state when the patch is seen, or given back by :meth:`Ledger.refund` when it failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from remediator.decide.facts import NodeFacts
from remediator.decide.look import takes_capacity
from remediator.decide.refusals import Refusals
from remediator.decide.session import HoldState, PolicyHold, Session
from remediator.decide.starts import Starts
from remediator.decide.storms import OpenBreaker, Recent, Storms, Watch, is_source
from remediator.decide.suspensions import Suspension, Suspensions
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import BudgetPer
from remediator.policy.quantities import Rate
from remediator.policy.steps import WORKS


CORDON: Final = "cordon"
"""Class of all steps that take a node out of service; the others are ``drain`` and ``job``."""
FREE_AFTER: Final = 300.0
"""A node unavailable for this many seconds costs nothing more to cordon."""


class Scope(NamedTuple):
    """A group of nodes that a budget counts: ``("pool", "h100")``."""

    per: str
    name: str

    def __str__(self) -> str:
        """Return it in words."""
        if self.per == BudgetPer.CLUSTER:
            return "the cluster"
        return f"{self.per} {self.name}" if self.name else f"the nodes without a {self.per}"


class LedgerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What must survive a restart: starts within their windows, open breakers, dropped nodes.

    ``lost``: when the memory of starts was. By policy and node, ``recent`` are new matches: a
    controller that is restarted in a storm must not count from nothing. By ``policy uid``,
    ``suspended`` is the work that is.
    """

    version: int = 1
    lost: float | None = None
    starts: dict[str, tuple[float, ...]] = {}
    """Times of starts by ``action pool policy`` (policy empty: the cluster's rate)."""
    breakers: dict[str, OpenBreaker] = {}
    dropped: dict[str, tuple[str, ...]] = {}
    recent: dict[str, dict[str, Recent]] = {}
    suspended: dict[str, Suspension] = {}

    @property
    def of_breakers(self) -> LedgerState:
        """What breakers remember alone."""
        return msgspec.structs.replace(self, lost=None, starts={}, suspended={})


class Pause(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person stopped new disruptive steps (``all``: every write)."""

    by: str
    at: str
    reason: str = ""
    all: bool = False


@dataclass(slots=True)
class Entry:
    """What the ledger knows of one node."""

    uid: str
    name: str
    scopes: tuple[Scope, ...]
    unavailable: bool = False
    unavailable_since: float | None = None
    reserved: bool = False
    escalated: bool = False
    in_session: bool = False
    ours: bool = False
    """Out of service, and by a session: it was admitted."""

    @property
    def counted(self) -> bool:
        """Tell whether it takes a place in the budgets."""
        return self.unavailable or self.reserved


class Ledger:
    """The guards' memory of one world (real, or virtual for dry-run).

    ``started``: when this controller took over; older faults are a backlog, not a storm.
    """

    def __init__(self, *, cluster: ClusterSpec, started: float) -> None:
        self.cluster = cluster
        self.started = started
        self.pause: Pause | None = None
        self.nodes: dict[str, Entry] = {}
        self._counted: dict[str, Entry] = {}
        self.total: Counter[Scope] = Counter()
        self.unavailable: Counter[Scope] = Counter()
        self.suspensions = Suspensions()
        self.look_until: dict[tuple[str, str], float] = {}
        """Until when work that was not followed all along is looked at before it may be late."""
        self.storms = Storms()
        self.clear_since: dict[tuple[str, str], float] = {}
        self.unproven_since: dict[tuple[str, str], float] = {}
        self.held_since: dict[str, dict[str, float]] = {}
        """By node and policy: each look at a node asks for its own, of perhaps very many."""
        self.refusals = Refusals()
        self._starts = Starts()
        self._admitted_at: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._woken: set[str] = set()

    # --- the fleet -----------------------------------------------------------------

    def observe(self, facts: NodeFacts, now: float) -> None:
        """Take in the present state of a node. Cheap; call it on every significant change."""
        if not facts.gpu:
            if facts.uid in self.nodes:
                self.forget(facts.uid)
            return
        entry = self._entry(facts)
        session = facts.session if isinstance(facts.session, Session) else None
        was = entry.counted
        entry.in_session = session is not None
        entry.escalated = session is not None and session.escalated
        out, working = facts.out_of_service, is_worked_on(session)
        entry.ours = out and session is not None and session.takes_capacity
        entry.unavailable = is_unavailable(facts)
        entry.unavailable_since = facts.unavailable_since
        if working or (out and entry.reserved):
            entry.reserved = False
            self._admitted_at.pop(facts.uid, None)
        self._recount(entry, was=was)
        if entry.unavailable and entry.unavailable_since is None:
            entry.unavailable_since = now

    def _entry(self, facts: NodeFacts) -> Entry:
        """Return what is known of a node, counted in the groups that it belongs to now."""
        scopes = scopes_of(facts)
        entry = self.nodes.get(facts.uid)
        if entry is None:
            entry = self.nodes[facts.uid] = Entry(facts.uid, facts.name, scopes)
        elif entry.scopes == scopes:
            return entry
        else:
            self.total.subtract(entry.scopes)
            if entry.counted:
                self.unavailable.subtract(entry.scopes)
                self.unavailable.update(scopes)
            entry.scopes = scopes
        self.total.update(scopes)
        self._wake()  # a percentage of more nodes may be more
        return entry

    def forget(self, uid: str) -> None:
        """Drop a node that is gone, with everything remembered of it."""
        entry = self.nodes.pop(uid, None)
        self._counted.pop(uid, None)
        self._admitted_at.pop(uid, None)
        self.refusals.forget(uid)
        self.suspensions.forget(uid)
        if entry is not None:
            self.total.subtract(entry.scopes)
            if entry.counted:
                self.unavailable.subtract(entry.scopes)
                self._wake()
        self.storms.forget(uid)
        self.held_since.pop(uid, None)
        since = (self.clear_since, self.unproven_since, self.look_until)
        for memory in since:
            for key in [key for key in memory if key[1] == uid]:
                del memory[key]

    def reserve(self, uid: str) -> None:
        """Take a place in the budgets of a node's scopes."""
        entry = self.nodes[uid]
        was = entry.counted
        entry.reserved = True
        self._recount(entry, was=was)

    def settle(self, uid: str) -> None:
        """Give back a place that is still only reserved; call it before a node is decided about.

        Nothing is being written to it then, and what was written has been seen. So nothing came
        of that admission, or it is undone already. Its start counts for rates all the same.
        """
        entry = self.nodes.get(uid)
        if entry is not None and entry.reserved:
            self._admitted_at.pop(uid, None)
            entry.reserved = False
            self._recount(entry, was=True)

    def refund(self, uid: str) -> None:
        """Give back what the last admission of a node took: its patch was not written."""
        admitted_at = self._admitted_at.pop(uid, None)
        entry = self.nodes.get(uid)
        if admitted_at is None or entry is None:
            return
        was = entry.counted
        entry.reserved = False
        self._recount(entry, was=was)
        self._starts.undo(uid, admitted_at)

    def used_by(self, scope: Scope) -> list[Entry]:
        """Return the nodes that take a place in a scope."""
        return [one for one in self._counted.values() if scope in one.scopes]

    def _recount(self, entry: Entry, *, was: bool) -> None:
        if entry.counted and not was:
            self._counted[entry.uid] = entry
            self.unavailable.update(entry.scopes)
        elif was and not entry.counted:
            self._counted.pop(entry.uid, None)
            self.unavailable.subtract(entry.scopes)
            self._wake()

    # --- waiting for capacity ---------------------------------------------------------

    def wait(self, name: str) -> None:
        """Remember that a node waits for a place."""
        self._waiting.add(name)

    def take_woken(self) -> set[str]:
        """Return the names of nodes to look at again because a place became free."""
        woken, self._woken = self._woken, set()
        return woken

    def wake(self, uids: Iterable[str]) -> None:
        """Have nodes looked at again: what held them is over."""
        self._woken |= {self.nodes[uid].name for uid in uids if uid in self.nodes}

    def _wake(self) -> None:
        self._woken |= self._waiting
        self._waiting.clear()

    def _wake_worked_on(self) -> None:
        """Have drains stopped, or gone on with, that are under way."""
        self._woken |= {one.name for one in self.nodes.values() if one.in_session}

    # --- rates --------------------------------------------------------------------

    def room(self, action: str, pool: str, policy: str, rate: Rate, now: float) -> float | None:
        """Return None if one more start is within the rate, else when it will be."""
        return self._starts.room(action, pool, policy, rate, now)

    def start(self, action: str, pool: str, owners: Iterable[str], uid: str, now: float) -> None:
        """Count one start for the rates of these owners: policies, and "" for the cluster."""
        self._starts.count(action, pool, owners, uid, now)
        self._admitted_at[uid] = now

    # --- breakers -----------------------------------------------------------------

    @property
    def breakers(self) -> dict[str, OpenBreaker]:
        """Those that are open, by name: a policy's, or a source's."""
        return self.storms.opened

    @property
    def dropped(self) -> dict[str, set[str]]:
        """By policy, the nodes that a reset left alone."""
        return self.storms.dropped

    @property
    def watches(self) -> dict[str, Watch]:
        """What breakers remember of each policy."""
        return self.storms.watches

    def scope_of(self, name: str) -> int:
        """Return how many nodes a breaker is about: those of its policy, or all."""
        if is_source(name):
            return len(self.nodes)
        watch = self.watches.get(name)
        return len(watch.scope) if watch is not None else 0

    def open_breaker(self, name: str, why: str, now: float) -> None:
        """Stop new disruptive steps of a policy, or on a source, until people reset it."""
        self.storms.open(name, why, now)
        self._wake_worked_on()

    def reset_breaker(self, name: str, *, keep: bool) -> None:
        """Close a breaker. Unless ``keep``, what matches now is left alone until it clears."""
        if self.storms.reset(name, keep=keep):
            self._wake()
            self._wake_worked_on()

    # --- surviving a restart ------------------------------------------------------------

    def take_changed(self) -> bool:
        """Tell whether :meth:`state` changed since the last call."""
        memories = (self._starts, self.suspensions, self.storms)
        changed = [one.take_changed() for one in memories]  # each is asked, and says it once
        return any(changed)

    @property
    def starts(self) -> dict[str, tuple[float, ...]]:
        """Times of starts by ``action pool policy``, as in :class:`LedgerState`."""
        return self._starts.state()

    def state(self) -> LedgerState:
        """Return what must survive a restart."""
        return LedgerState(
            lost=self._starts.lost,
            starts=self.starts,
            breakers=dict(self.breakers),
            dropped={source: tuple(sorted(uids)) for source, uids in self.dropped.items() if uids},
            recent=self.storms.recent(),
            suspended=self.suspensions.state(
                {uid for uid, entry in self.nodes.items() if entry.in_session}
            ),
        )

    def restore(self, state: LedgerState) -> None:
        """Take over what an earlier controller remembered."""
        self._starts.lost = state.lost
        self._starts.restore(state.starts)
        self.breakers.update(state.breakers)
        self.dropped.update({source: set(uids) for source, uids in state.dropped.items()})
        self.storms.restore(state.recent)
        self.suspensions.restore(state.suspended)


def scopes_of(facts: NodeFacts) -> tuple[Scope, ...]:
    """Return the groups that a node belongs to."""
    return (
        Scope(BudgetPer.POOL, facts.pool),
        Scope(BudgetPer.ZONE, facts.zone),
        Scope(BudgetPer.CLUSTER, ""),
    )


def is_worked_on(session: Session | None) -> bool:
    """Tell whether a step that takes time is under way by a session."""
    return session is not None and any(hold.work_since is not None for hold in session.holds)


def is_unavailable(facts: NodeFacts) -> bool:
    """Tell whether a node takes a place in the budgets, whoever made it so."""
    session = facts.session if isinstance(facts.session, Session) else None
    return facts.out_of_service or not facts.ready or keeps_place(session)


def keeps_place(session: Session | None) -> bool:
    """Tell whether a session takes a place in the budgets also where nothing keeps pods away.

    It does from the beginning of its first work to the end of its steps, between two attempts
    and after a failure, too; and where automation has ended before it could take capacity away.
    """
    return session is not None and any(map(_is_at_work, session.holds))


def _is_at_work(hold: PolicyHold) -> bool:
    if hold.work_since is not None:
        return True
    if hold.state is HoldState.ESCALATED:
        return takes_capacity(hold.plan)
    worked = any(one.partition("/")[0] in WORKS for one in hold.did)
    return worked and hold.state is not HoldState.DONE


def escalated(entries: Iterable[Entry]) -> list[str]:
    """Return the names of those on which automation has ended."""
    return sorted(entry.name for entry in entries if entry.escalated)
