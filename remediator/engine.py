"""From changed facts to decisions, and on to who carries them out: the loop of the leader.

    queue --batch--> decide (real, then dry-run) --> executor --> writes, messages
      ^                                                               |
      +---- changed facts, answers to messages, next look, back-off --+

All nodes that are ready are decided about together, so that the most urgent of them is
admitted first, and against one ledger, so that two cannot take the last place. A
node that is being written to is not decided about until that is through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from remediator.act.executor import Executor, Observer
from remediator.act.side import Side
from remediator.clock import Clock
from remediator.decide.core import Policies, decide
from remediator.decide.decision import Decision, Effect, SendMessage, Urgency
from remediator.decide.facts import NodeFacts, NodeMode
from remediator.decide.look import unusable_session
from remediator.decide.session import Session
from remediator.kube.workqueue import ShutDown, WorkQueue
from remediator.policy.plan import parse_plan
from remediator.signals.fleet import Fleet


_log = structlog.get_logger(__name__)

BATCH: Final = 256
"""Nodes decided together: enough to put them in order, few enough that no decision grows old."""
SOONEST_LOOK: Final = 0.01
"""Seconds; a next look that is due at once must not keep the loop from everything else."""

Decide = Callable[..., list[Decision]]


class Engine:
    """Decides, while this process leads.

    Args:
        fleet: facts of all nodes; the engine listens to it.
        queue: names of nodes to look at.
        real, virtual: the two worlds. Without an Enforce policy nothing is written.
        executor: carries decisions out.
        alerts_to: channels for what nobody else is told.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        queue: WorkQueue,
        real: Side,
        virtual: Side,
        executor: Executor,
        observer: Observer,
        clock: Clock,
        alerts_to: tuple[str, ...] = ("log",),
        decide: Decide = decide,
    ) -> None:
        self.real = real
        self.virtual = virtual
        self.policies = Policies()
        self._fleet = fleet
        self._queue = queue
        self._executor = executor
        self._overlay = executor.overlay
        self._observer = observer
        self._clock = clock
        self._alerts_to = alerts_to
        self._decide = decide
        self._dry_run: frozenset[str] = frozenset()
        """Names of the policies that are in dry-run on every node."""
        self._stopping = False

    # -- what sets it off -------------------------------------------------------------------

    def start(self) -> None:
        """Take over the fleet as it is: every node counts, every node is looked at once."""
        self._fleet.on_change, self._fleet.on_gone = self._changed, self._gone
        self._fleet.on_surroundings = self.look_at_all
        self._fleet.follows = self._overlay.in_session
        for facts in self._fleet.all():
            self._changed(facts)

    def set_policies(self, policies: Policies) -> None:
        """Use these from now on, and look at every node with them."""
        self.policies = policies
        self._dry_run = policies.in_dry_run(cap=self.real.ledger.cluster.mode)
        self.look_at_all()

    def look_at_all(self) -> None:
        """Decide about every node anew: something changed that concerns them all."""
        for facts in self._fleet.all():
            self._enqueue(facts)

    def stop(self) -> None:
        """Begin nothing new; what is being written is finished, then `run` returns."""
        self._stopping = True
        self._executor.stop()
        self._queue.shut_down()

    async def run(self) -> None:
        """Work until `stop`. When cancelled, writes under way are abandoned."""
        async with asyncio.TaskGroup() as tasks:
            self._executor.start(tasks)
            while not self._stopping:
                try:
                    names = await self._queue.get_batch(BATCH)
                except ShutDown:
                    break
                await self._look_at(names)
            await self._executor.finish()

    def _changed(self, facts: NodeFacts) -> None:
        now = self._clock.now()
        self.real.ledger.observe(facts, now)
        self.virtual.ledger.observe(self._overlay.view(facts), now)
        self._executor.outdated.add(facts.name)
        self._enqueue(facts)
        # Whoever waits for the place that this node may have freed is decided about together with
        # it: a new fault of its own comes behind those that have waited.
        self._queue.add_all(self._woken())

    def _enqueue(self, facts: NodeFacts) -> None:
        """Have a node looked at, unless it is none of ours and never was."""
        if facts.gpu or facts.session is not None or facts.uid in self.real.decisions:
            self._queue.add(facts.name)

    def _gone(self, facts: NodeFacts) -> None:
        """A node was deleted: forget it, close its session, tell people."""
        for side in (self.real, self.virtual):
            side.ledger.forget(facts.uid)
            side.decisions.pop(facts.uid, None)
        self._executor.forget(facts)
        self._queue.drop(facts.name)
        if isinstance(facts.session, Session):
            _log.warning("session_closed", node=facts.name, session=facts.session.id)
            self._executor.send(_node_gone(facts, facts.session, self._alerts_to))
        self._queue.add_all(self._woken())

    # -- deciding ---------------------------------------------------------------------------

    async def _look_at(self, names: Sequence[str]) -> None:
        now = self._clock.now()
        nodes = []
        for name in names:
            facts = self._fleet.get(name)
            if facts is None:
                self._executor.release(name)
            elif name in self._executor.doubtful:
                await self._executor.find_out(facts)
            else:
                self._executor.outdated.discard(name)
                nodes.append(facts)
        real = self._ask(self.real, nodes, now)
        virtual = self._ask(self.virtual, self._seen_by_dry_run(nodes, now), now)
        for facts in nodes:
            pretended = self._show(self.virtual, facts.uid, virtual.get(facts.uid), now)
            self._executor.pretend(facts, pretended, now)
        for facts in nodes:
            effects = self._show(self.real, facts.uid, real.get(facts.uid), now)
            if facts.uid in real:
                await self._executor.carry_out(facts, effects)
            else:
                self._queue.done(facts.name)
        self._queue.add_all(self._woken())

    def _seen_by_dry_run(self, nodes: Sequence[NodeFacts], now: float) -> list[NodeFacts]:
        """Return, as dry-run sees them, the nodes on which a policy is in dry-run.

        A frozen node is left out: it is frozen there too, and said already.
        """
        seen = []
        for facts in nodes:
            names = self.policies.active if facts.mode is NodeMode.DRY_RUN else self._dry_run
            if self._overlay.expire(facts.uid, names):
                self.virtual.ledger.observe(self._overlay.view(facts), now)
            if names and not unusable_session(facts):
                seen.append(self._overlay.view(facts))
        return seen

    def _ask(self, side: Side, nodes: Sequence[NodeFacts], now: float) -> Mapping[str, Decision]:
        """Decide about all together; if that fails, find out about whom."""
        if not nodes:
            return {}
        try:
            decisions = self._decide(
                nodes,
                policies=self.policies,
                ledger=side.ledger,
                outcomes=side.outcomes,
                world=side.world,
                now=now,
                cluster_facts=self._fleet.cluster_facts,
            )
        except Exception as error:  # noqa: BLE001 - a bug with one node must not stop the others
            if len(nodes) > 1:
                one_by_one = (self._ask(side, [facts], now) for facts in nodes)
                return {uid: one for found in one_by_one for uid, one in found.items()}
            self._observer.defect("decision")
            wait = self._queue.retry(nodes[0].name, at_least=1.0)
            _log.error("decision_failed", node=nodes[0].name, again_in=wait, exc_info=error)
            return {}
        return {one.uid: one for one in decisions}

    def _show(
        self, side: Side, uid: str, decision: Decision | None, now: float
    ) -> tuple[Effect, ...]:
        """Keep a decision for people to see, set its alarm, and return what it wants done."""
        if decision is None:
            side.decisions.pop(uid, None)
            return ()
        self._observer.decided(side.decisions.get(uid), decision, dry_run=side.dry_run)
        side.decisions[uid] = decision
        if decision.next_look is not None:
            self._queue.add_after(decision.node, max(SOONEST_LOOK, decision.next_look - now))
        return decision.effects

    def _woken(self) -> set[str]:
        return self.real.ledger.take_woken() | self.virtual.ledger.take_woken()


def _node_gone(facts: NodeFacts, session: Session, to: tuple[str, ...]) -> SendMessage:
    policies = ", ".join(hold.policy for hold in session.holds)
    plans = () if unusable_session(facts) else (parse_plan(one.plan) for one in session.holds)
    told = (name for plan in plans for name in (*plan.recover.notify, *plan.channels))
    return SendMessage(
        key=f"{session.id}/node-gone",
        to=tuple(dict.fromkeys((*to, *told))),
        title=f"{facts.name} was deleted during its remediation",
        text=f"The node object is gone, so its session ({policies}) is closed. "
        "A new node of that name starts without one.",
        node=facts.name,
        urgency=Urgency.INFO,
        resolves=True,
        kind="node-gone",
    )
