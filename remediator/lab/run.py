"""The lab: the controller's loop with a virtual API server, in virtual time.

    facts (put, call_at) --> fleet --> decide (real, dry-run) --> patches --> fleet ...
                                            |
                                            +--> next look, work that ends: the next time

It is the loop of :mod:`remediator.engine` without concurrency: writes succeed at once,
messages arrive at once, and what takes time (a drain, a Job) ends after an assumed duration.
Time jumps to the next instant at which anything can change. A property test holds both
loops to the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

import msgspec

from remediator.act.overlay import Overlay
from remediator.act.patch import node_patch, patched
from remediator.act.side import Side
from remediator.decide.core import ActivePolicy, Policies, World, decide
from remediator.decide.decision import (
    Decision,
    Outcome,
    PatchNode,
    SendMessage,
    Work,
    WriteEvent,
)
from remediator.decide.facts import (
    NOTHING_KNOWN,
    AlertFact,
    ClusterFacts,
    NodeFacts,
    NodeMode,
    QueryFact,
)
from remediator.decide.ledger import Ledger, Pause
from remediator.decide.look import unusable_session
from remediator.decide.session import Session
from remediator.kube.objects import Node
from remediator.lab.agenda import Agenda
from remediator.lab.agents import Agents
from remediator.lab.assumed import Boots
from remediator.lab.timeline import Timeline
from remediator.lab.works import Assumptions, Works
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from remediator.signals.fleet import Fleet


SOONEST_LOOK: Final = 0.01


class Lab:
    """A cluster and its controller, both virtual.

    Args:
        policies: in force from the start; see :meth:`use`.
        cluster: RemediatorConfig's settings; its mode caps the policies' modes as always.
        start: the clock at the beginning, epoch seconds; the controller takes over then.
        assume: how work and messages end.
    """

    def __init__(
        self,
        *,
        policies: Iterable[RemediationPolicy] = (),
        cluster: ClusterSpec,
        start: float,
        assume: Assumptions | None = None,
    ) -> None:
        self.cluster = cluster
        self.assume = assume or Assumptions()
        self.timeline = Timeline()
        self.on_version: Callable[[Node | None, Node | None], None] = lambda _old, _new: None
        """Called with each version of a node, and the one before."""
        self.on_decision: Callable[[Decision], None] = lambda _decision: None
        """Called with what was decided about a node, in the real world."""
        self.adjust: Callable[[NodeFacts], NodeFacts] = lambda facts: facts
        """Changes what is known of a node before it is decided about; see ``simulate``."""
        self.policies = Policies()
        self._agenda = Agenda(start)
        self._serial = count(1)
        self.works = Works(
            assume=self.assume,
            call_after=lambda seconds, act: self.call_at(self.now + seconds, act),
            reboot=self.reboot,
            look=self._agenda.look_now,
            now=self._agenda.now,
        )
        self._signals: dict[str, tuple[tuple[AlertFact, ...], Mapping[str, QueryFact]]] = {}
        self._around = NOTHING_KNOWN
        self._boots = Boots()
        self.fleet = Fleet(cluster=cluster, clock=self._agenda)
        self.agents = Agents(
            sanity=cluster.sanity,
            nodes=lambda: map(self.adjust, self.fleet.all()),
            agenda=self._agenda,
            changed=self._look_at_all,
        )
        self._dry_run: frozenset[str] = frozenset()
        self._take_over()
        self.use(policies)

    # -- what the outside does ----------------------------------------------------------------

    @property
    def now(self) -> float:
        """The lab's clock."""
        return self._agenda.now()

    def node(self, name: str) -> Node:
        """Return a node as it is now. Raises KeyError."""
        node = self.fleet.node(name)
        if node is None:
            raise KeyError(name)
        return node

    def facts(self, name: str) -> NodeFacts | None:
        """Return what is known of a node now, with what alerts and queries say of it."""
        facts = self.fleet.get(name)
        return None if facts is None else self._with_signals(facts)

    def seen(self, name: str, *, dry_run: bool) -> NodeFacts | None:
        """Return a node's facts; ``dry_run``: as they would be, had dry-run acted."""
        facts = self.facts(name)
        return self.overlay.view(facts) if dry_run and facts is not None else facts

    def put(self, node: Node) -> None:
        """Take in a version of a node, as the watch would bring it now."""
        before = self.fleet.node(node.name)
        new = msgspec.structs.replace(node, resource_version=str(next(self._serial) + 1))
        self.fleet.on_event(None, new)
        self.agents.heard(node.name, self.fleet.get(node.name))
        self.on_version(before, new)
        self._count(node.name)

    def blind(self, seconds: float) -> None:
        """Have nothing of the nodes been seen for so long."""
        self.fleet.blind(seconds)
        self.agents.soon()

    @property
    def around(self) -> ClusterFacts:
        """What is known beside the nodes, and whether agents as a whole can be believed."""
        return replace(self._around, sources=self.agents.among(self._around))

    def set_signals(
        self,
        name: str,
        *,
        alerts: tuple[AlertFact, ...],
        queries: Mapping[str, QueryFact],
        matters: bool = True,
    ) -> None:
        """Take in what alerts and queries say of a node; ``matters``: and look at it."""
        self._signals[name] = (alerts, queries)
        if matters and (facts := self.facts(name)) is not None:
            self._changed(facts)

    def set_around(self, around: ClusterFacts, *, matters: bool = True) -> None:
        """Take in what is known beside the nodes; ``matters``: and look at all of them."""
        self._around = around
        if matters:
            self._look_at_all()

    def reboot(self, name: str) -> None:
        """Let a node come back with another boot id, and say what it said before."""
        facts = self.fleet.get(name)
        if facts is not None:
            self.timeline.fact(name, "assumed: the node is back, with a new boot id", self.now)
            self._boots.again(facts)
            self._changed(facts)

    def remove(self, name: str) -> None:
        """Delete a node."""
        before = self.fleet.node(name)
        self.fleet.on_event(before, None)
        self.agents.heard(name, None)
        self.on_version(before, None)
        self._count(name)

    def use(self, policies: Iterable[RemediationPolicy]) -> None:
        """Put these policies in force now; those that did not change keep their age."""
        known = self.policies.active
        active = {}
        for one in policies:
            before = known.get(one.name)
            same = before is not None and before.policy.version == one.version
            active[one.name] = before if before and same else ActivePolicy(one, self.now)
        self.policies = Policies(active)
        self._dry_run = self.policies.in_dry_run(cap=self.cluster.mode)
        self._look_at_all()

    def pause(self, pause: Pause | None) -> None:
        """Pause the controller, or end a pause."""
        for side in self.sides:
            side.ledger.pause = pause
        self._look_at_all()

    def reset_breaker(self, source: str, *, keep: bool) -> None:
        """Close a breaker, as people do."""
        for side in self.sides:
            side.ledger.reset_breaker(source, keep=keep)
        self._look_at_all()

    def restart(self) -> None:
        """Let another controller take over: it knows what stands on the nodes and was saved."""
        state, dry_run = (side.ledger.state() for side in self.sides)
        pause = self.real.ledger.pause
        nodes = [self.node(facts.name) for facts in self.fleet.all()]
        self.fleet = Fleet(cluster=self.cluster, clock=self._agenda)
        self._take_over()
        self.real.ledger.restore(state)
        self.virtual.ledger.restore(dry_run.of_breakers)
        for side in self.sides:
            side.ledger.pause = pause
        self.works.forget()
        now, known = self.now, self.policies.active
        loaded = {name: ActivePolicy(one.policy, now) for name, one in known.items()}
        self.policies = Policies(loaded)
        for node in nodes:
            self.fleet.on_event(None, node)

    def call_at(self, when: float, act: Callable[[], None]) -> None:
        """Have something happen at a time; of one time, in the order of the calls."""
        self._agenda.call_at(when, act)

    # -- time ---------------------------------------------------------------------------------

    def run(self, until: float) -> None:
        """Go on until a time, with all that is due then.

        Raises:
            LabError: decisions go on for ever without time passing.
        """
        self._agenda.run(until, self._look_at)

    # -- the controller -------------------------------------------------------------------------

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both worlds."""
        return self.real, self.virtual

    def _take_over(self) -> None:
        ledgers = (Ledger(cluster=self.cluster, started=self.now) for _ in range(2))
        self.real = Side(world=World.REAL, ledger=next(ledgers))
        self.virtual = Side(world=World.VIRTUAL, ledger=next(ledgers))
        self.overlay = Overlay()
        self.fleet.on_change, self.fleet.on_gone = self._changed, self._gone
        self.fleet.follows = self.overlay.in_session
        self._agenda.drop_looks()
        self.agents.take_over()

    def _with_signals(self, facts: NodeFacts) -> NodeFacts:
        facts = self._boots.view(self.adjust(facts))
        alerts, queries = self._signals.get(facts.name, ((), {}))
        return replace(facts, alerts=alerts, queries=queries) if alerts or queries else facts

    def _changed(self, facts: NodeFacts) -> None:
        facts = self._with_signals(facts)
        self.real.ledger.observe(facts, self.now)
        self.virtual.ledger.observe(self.overlay.view(facts), self.now)
        self._enqueue(facts)
        self._wake()

    def _gone(self, facts: NodeFacts) -> None:
        for side in self.sides:
            side.ledger.forget(facts.uid)
            side.decisions.pop(facts.uid, None)
            self.works.keep(facts.name, (), dry_run=side.dry_run)
        self.overlay.forget(facts.uid)
        self._signals.pop(facts.name, None)  # the next node of its name begins without any
        self._agenda.drop(facts.name)
        self._wake()

    def _enqueue(self, facts: NodeFacts) -> None:
        if facts.gpu or facts.session is not None or facts.uid in self.real.decisions:
            self._agenda.look_now(facts.name)

    def _look_at_all(self) -> None:
        for facts in self.fleet.all():
            self._enqueue(facts)

    def _wake(self) -> None:
        for name in self.real.ledger.take_woken() | self.virtual.ledger.take_woken():
            if self.fleet.get(name) is not None:
                self._agenda.look_now(name)

    def _look_at(self, names: Sequence[str]) -> None:
        nodes = [facts for name in names if (facts := self.facts(name)) is not None]
        real = self._ask(self.real, nodes)
        virtual = self._ask(self.virtual, self._seen_by_dry_run(nodes))
        for facts in nodes:
            self._carry_out(self.virtual, facts, virtual.get(facts.uid))
        for facts in nodes:
            self._carry_out(self.real, facts, real.get(facts.uid))
        self._wake()

    def _seen_by_dry_run(self, nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
        seen = []
        for facts in nodes:
            names = self.policies.active if facts.mode is NodeMode.DRY_RUN else self._dry_run
            if self.overlay.expire(facts.uid, names):
                self.virtual.ledger.observe(self.overlay.view(facts), self.now)
            if names and not unusable_session(facts):
                seen.append(self.overlay.view(facts))
        return seen

    def _ask(self, side: Side, nodes: Sequence[NodeFacts]) -> Mapping[str, Decision]:
        if not nodes:
            return {}
        decisions = decide(
            nodes,
            policies=self.policies,
            ledger=side.ledger,
            outcomes=side.outcomes,
            world=side.world,
            now=self.now,
            cluster_facts=self.around,
        )
        return {one.uid: one for one in decisions}

    # -- effects --------------------------------------------------------------------------------

    def _carry_out(self, side: Side, facts: NodeFacts, decision: Decision | None) -> None:
        if decision is None:
            side.decisions.pop(facts.uid, None)
            self.works.keep(facts.name, (), dry_run=side.dry_run)
            return
        self.timeline.decided(decision, self.now, dry_run=side.dry_run)
        side.decisions[facts.uid] = decision
        if not side.dry_run:
            self.on_decision(decision)
        if decision.next_look is not None:
            at = max(decision.next_look, self.now + SOONEST_LOOK)
            self._agenda.look_at(facts.name, at)
        works = [one for one in decision.effects if isinstance(one, Work)]
        self.works.keep(facts.name, works, dry_run=side.dry_run)
        for effect in decision.effects:
            if isinstance(effect, PatchNode):
                if not self._patch(side, effect):
                    break
            elif isinstance(effect, SendMessage | WriteEvent):
                self._tell(side, effect, facts.name)
            elif self.works.begin(side, effect):
                self.timeline.work(effect, self.now, dry_run=side.dry_run)

    def _patch(self, side: Side, effect: PatchNode) -> bool:
        """Write to the node, or to the world of dry-run. False: nothing is written now."""
        facts = self.facts(effect.name)
        if facts is None or facts.uid != effect.uid:
            return False
        if side.dry_run:
            before = self.overlay.view(facts)
            if self.overlay.apply(effect, facts, now=self.now):
                self.timeline.written(effect, before, self.now, dry_run=True)
                side.ledger.observe(self.overlay.view(facts), self.now)
                self._agenda.look_now(effect.name)
            return True
        pause = side.ledger.pause
        if pause is not None and (pause.all or effect.disruptive):
            side.ledger.refund(effect.uid)
            return False
        self.timeline.written(effect, facts, self.now, dry_run=False)
        base = self.node(effect.name)
        current = replace(effect, resource_version=base.resource_version)
        new = patched(base, node_patch(current, base), str(next(self._serial) + 1))
        self.fleet.wrote(new)
        self.on_version(base, new)
        self._count(effect.name)
        return True

    def _count(self, name: str) -> None:
        """Note whether a session keeps a node out of service now."""
        facts = self.fleet.get(name)
        session = None if facts is None else facts.session
        taken = isinstance(session, Session) and session.takes_capacity
        out = facts is not None and facts.out_of_service
        self.timeline.capacity(name, self.now, taken=taken and out)

    def _tell(self, side: Side, effect: SendMessage | WriteEvent, name: str) -> None:
        if effect.key in side.outcomes:
            return
        if isinstance(effect, WriteEvent) and side.dry_run:
            outcome = Outcome(key=effect.key, delivered=True)  # an Event reads as a fact
        else:
            self.timeline.told(effect, self.now, dry_run=side.dry_run)
            why = self.assume.undelivered(effect)
            outcome = Outcome(key=effect.key, delivered=not why, note=why)
        side.outcomes[effect.key] = outcome
        if effect.step is not None and self.fleet.get(name) is not None:
            self._agenda.look_now(name)
