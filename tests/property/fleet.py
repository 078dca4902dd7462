"""Six nodes under decide(): the shell around it, an API server, and what each write must keep.

Nothing happens here by itself: what may, and in which order, is said by the tests that play it.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
)

from remediator.act.overlay import Overlay
from remediator.decide.core import Policies, World, decide
from remediator.decide.decision import Decision, Outcome, PatchNode, Work
from remediator.decide.draft import SOONEST
from remediator.decide.facts import (
    ClusterFacts,
    NodeFacts,
    NodeMode,
    SourceFact,
    uncordoned_since,
    untainted_since,
)
from remediator.decide.guards.budget import budgets_of, is_free
from remediator.decide.ledger import Ledger, scopes_of
from remediator.decide.session import Session, Taint, decode_session, encode
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import Mode, RemediationPolicy
from tests.unit.decide.build import alert, cluster, node, policies, policy, written


NAMES = [f"n{i}" for i in range(6)]
WHENS: dict[str, list[dict[str, Any]]] = {
    "bus": [{"xid": {"codes": [79]}}],
    "ecc": [{"all": [{"xid": {"codes": [48]}}]}],
    "fell": [{"alert": {"name": "GpuFell"}}],
}
HELD_BY: dict[str, dict[str, Any]] = {
    "fell": {
        "unless": [{"alert": {"name": "Maintenance"}}],
        "windows": [{"start": "00:00", "end": "18:00"}],
    }
}
FELL, MAINTENANCE = alert(), alert("Maintenance")
MAIN = "alertmanager/main"
LOG = {"notify": {"to": ["log"]}}
SHAPES: list[list[dict[str, Any]]] = [
    [{"cordon": {}}],
    [{"cordon": {}}, LOG],
    [LOG, {"cordon": {}}, {"event": {}}],
    [{**LOG, "onFailure": "hold", "timeout": "1m"}, {"cordon": {}}],
    [{**LOG, "onFailure": "escalate", "timeout": "1m"}, {"cordon": {}}],
    [LOG],
    [{"taint": {}}],
    [{"cordon": {}}, LOG, {"taint": {}}],
    [{"taint": {"effect": "PreferNoSchedule"}}, {"cordon": {}}],
    [{"cordon": {}}, {"drain": {}, "timeout": "5m"}, LOG],
    [{"drain": {}, "onFailure": "continue"}, {"cordon": {}}],
    [
        {"taint": {"value": "v"}},
        {"taint": {"effect": "NoExecute", "acknowledge": "evicts-daemons"}},
    ],
]
EFFECTS = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
FOREIGN = [
    *(Taint(key="gpu-remediator.io/unhealthy", effect=effect) for effect in EFFECTS),
    Taint(key="nvidia.com/gpu", effect="NoSchedule", value="present"),
]
"""What people and other programs add: also the very taints that our policies add."""
names = st.sampled_from(NAMES)


def made(
    name: str, mode: str, steps: list[dict[str, Any]], when: str = "cleared"
) -> RemediationPolicy:
    """Return a policy, the same object for the same words: to validate one takes a while."""
    return _made(name, mode, json.dumps(steps), when)


@cache
def _made(name: str, mode: str, steps: str, when: str) -> RemediationPolicy:
    return policy(
        name,
        mode=mode,
        when=WHENS[name],
        steps=json.loads(steps),
        recover={"when": when},
        **HELD_BY.get(name, {}),
    )


@cache
def spec(mode: str) -> ClusterSpec:
    return cluster(
        mode=mode,
        budgets=[{"maxUnavailable": 1, "per": "pool"}, {"maxUnavailable": "50%", "per": "cluster"}],
        rates={"cordon": "5/10m", "drain": "3/10m"},
        breaker={"minNodes": 4, "percent": 50, "window": "5m"},
        settling="30s",
    )


class Used(NamedTuple):
    """Places of the budgets that are taken, by which nodes, and nodes that cost nothing more."""

    places: Counter[Any]
    by: set[str]
    free: set[str]


class Fleet(RuleBasedStateMachine):
    """Six nodes in two pools, three policies, two worlds, one clock; nothing happens by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.mode = "Enforce"
        self.nodes: dict[str, NodeFacts] = {}
        self.ours: set[str] = set()
        """Nodes whose present cordon is ours."""
        self.tainted: dict[str, set[Taint]] = {name: set() for name in NAMES}
        """The taints on each node that are ours."""
        self.loaded = {
            name: made(name, mode, SHAPES[0])
            for name, mode in (("bus", "Enforce"), ("ecc", "DryRun"), ("fell", "Enforce"))
        }
        self.known = ClusterFacts()
        self.learn(alive=True, maintenance=False)
        self.policies: Policies = policies(*self.loaded.values(), loaded_at=self.now)
        self.outcomes: dict[World, dict[str, Outcome]] = {world: {} for world in World}
        self.overlay = Overlay()
        self.ledgers: dict[World, Ledger] = {}
        self.refuse = False
        self.versions = itertools.count(1000)
        """Each change of a node has a resourceVersion of its own, as in etcd."""
        self.born = 0
        self.start_controller()
        for at, name in enumerate(NAMES):
            self.nodes[name] = node(name, now=self.now, pool="ab"[at % 2])
        self.observe_all()

    def learn(self, *, failing: str | None = None, alive: bool, maintenance: bool) -> None:
        names_ = ("agents", "watch", MAIN)
        self.known = ClusterFacts(
            alerts=(MAINTENANCE,) if maintenance else (),
            sources={
                name: SourceFact(ok=name != failing, since=self.now, alive=alive, why="test")
                for name in names_
            },
        )

    def reload(self) -> None:
        self.policies = policies(*self.loaded.values(), loaded_at=self.now)
        shown = {n for n, one in self.loaded.items() if one.spec.mode is Mode.DRY_RUN}
        for facts in self.nodes.values():
            self.overlay.expire(facts.uid, shown)

    def start_controller(self) -> None:
        before = self.ledgers
        self.overlay = Overlay()
        self.ledgers = {w: Ledger(cluster=spec(self.mode), started=self.now) for w in World}
        for world, old in before.items():
            self.ledgers[world].pause = old.pause
            self.ledgers[world].restore(old.state())

    def observe_all(self) -> None:
        for name in self.nodes:
            self.see(name)

    def see(self, name: str, **fields: Any) -> None:
        facts = replace(self.nodes[name], **fields)
        gone = facts.out_of_service or not facts.ready
        since = (facts.unavailable_since or self.now) if gone else None
        left = uncordoned_since(facts, facts.session, unschedulable=facts.unschedulable)
        robbed = untainted_since(facts, facts.session, facts.taints)
        version = facts.resource_version
        if fields.keys() - {"alerts"}:  # those are no part of the Node
            version = str(next(self.versions))
        facts = self.nodes[name] = replace(
            facts,
            resource_version=version,
            unavailable_since=since,
            uncordoned=left,
            untainted=robbed,
        )
        self.tainted[name] &= set(facts.taints)
        if not facts.unschedulable:
            self.ours.discard(name)
        self.ledgers[World.REAL].observe(facts, self.now)
        self.ledgers[World.VIRTUAL].observe(self.overlay.view(facts), self.now)

    def view(self, world: World) -> list[NodeFacts]:
        if world is World.REAL:
            return list(self.nodes.values())
        shown = [self.overlay.view(facts) for facts in self.nodes.values()]
        for facts in shown:
            self.ledgers[world].observe(facts, self.now)
        return shown

    def turn(self, world: World) -> list[Decision]:
        decisions, before = self.decided(world)
        for one in decisions:
            self.carry_out(world, one, before[one.uid])
        return decisions

    def decided(self, world: World) -> tuple[list[Decision], dict[str, NodeFacts]]:
        """Return what is decided of which nodes: no more of it than the budgets permit."""
        ledger = self.ledgers[world]
        before = {facts.uid: facts for facts in self.view(world)}
        used = self.used(world)
        decisions = decide(
            list(before.values()),
            policies=self.policies,
            ledger=ledger,
            outcomes=self.outcomes[world],
            world=world,
            now=self.now,
            cluster_facts=self.known,
        )
        patches = [
            (before[one.uid], patch)
            for one in decisions
            for patch in one.effects
            if isinstance(patch, PatchNode)
        ]
        self.check_budget(world, used, patches)
        for one in decisions:
            assert one.next_look is None or one.next_look >= self.now + SOONEST / 2
        return decisions, before

    def used(self, world: World) -> Used:
        entries = self.ledgers[world].nodes.items()
        return Used(
            places=Counter(s for _, one in entries if one.counted for s in one.scopes),
            by={uid for uid, one in entries if one.counted},
            free={uid for uid, one in entries if is_free(one, self.now)},
        )

    def check_budget(
        self, world: World, used: Used, patches: list[tuple[NodeFacts, PatchNode]]
    ) -> None:
        """Check that what takes capacity away now has its place in every budget."""
        ledger = self.ledgers[world]
        taking = [(facts, patch) for facts, patch in patches if patch.disruptive]
        before = {facts.uid: facts for facts, _ in taking}
        begun = {facts.uid for facts, patch in taking if begins(patch, facts)}
        new = {facts.uid for facts, _ in taking if not facts.out_of_service} | begun
        after = used.places.copy()
        for uid in new - used.by:
            after.update(scopes_of(before[uid]))
        for uid in new - (used.free - begun):
            for rule_ in self.loaded.values():
                for budget in budgets_of(rule_, ledger):
                    for scope in scopes_of(before[uid]):
                        if scope.per == budget.per:
                            limit = budget.max_unavailable.of(ledger.total[scope])
                            assert after[scope] <= limit, (scope, after[scope], limit)

    def carry_out(self, world: World, decision: Decision, facts: NodeFacts) -> None:
        ledger, name = self.ledgers[world], decision.node
        for effect in decision.effects:
            if not isinstance(effect, PatchNode):
                if self.born % 2 and not (isinstance(effect, Work) and effect.suspended):
                    self.outcomes[world].setdefault(
                        effect.key, Outcome(key=effect.key, delivered=True)
                    )
                continue
            if world is World.VIRTUAL:
                if self.overlay.apply(effect, self.nodes[name], now=self.now):
                    ledger.observe(self.overlay.view(self.nodes[name]), self.now)
                continue
            self.check_write(effect, facts)
            if self.refuse:
                ledger.refund(effect.uid)
                return
            self.write(effect, facts)

    def write(self, patch: PatchNode, facts: NodeFacts) -> None:
        """Do what the API server does, and the watch."""
        name = facts.name
        if patch.unschedulable:
            self.ours.add(name)
        self.tainted[name] |= set(patch.taint)
        after = written(facts, patch, self.now)
        self.nodes[name] = replace(after, resource_version=str(next(self.versions)))
        session = self.nodes[name].session
        added = session.added.taints if isinstance(session, Session) else ()
        self.tainted[name] &= set(added)  # what a session leaves behind is people's
        self.see(name)

    def arrive(self, patch: PatchNode) -> bool:
        """Have a write of an earlier leader arrive; tell whether the API server takes it."""
        facts = next((one for one in self.nodes.values() if one.uid == patch.uid), None)
        if facts is None or facts.resource_version != patch.resource_version:
            return False
        self.check_ownership(patch, facts)
        self.write(patch, facts)
        return True

    def check_write(self, patch: PatchNode, facts: NodeFacts) -> None:
        pause = self.ledgers[World.REAL].pause
        assert patch.resource_version == facts.resource_version
        assert pause is None or not (pause.all or patch.disruptive)
        assert not facts.deleting
        away = any(taint.keeps_away for taint in patch.taint)
        takes = patch.unschedulable is True or away or begins(patch, facts)
        assert patch.disruptive is takes
        if patch.disruptive:
            self.check_guards(patch, facts)
        if self.mode != "Enforce" or facts.mode in {NodeMode.DRY_RUN, NodeMode.DISABLED}:
            assert patch.remove_request
        if patch.unschedulable is False or patch.untaint or patch.taint:
            assert not self.frozen(facts) or patch.remove_request or not self.whole(facts)
        self.check_ownership(patch, facts)

    def check_ownership(self, patch: PatchNode, facts: NodeFacts) -> None:
        """Whoever writes, and however late: only what is ours is taken away, nothing done twice."""
        if patch.unschedulable is False:
            assert facts.unschedulable
            assert facts.name in self.ours, "a cordon that is not ours was removed"
        assert self.tainted[facts.name].issuperset(patch.untaint), "a foreign taint was removed"
        slots = [
            taint.slot for taint in (*facts.taints, *patch.taint) if taint not in patch.untaint
        ]
        assert len(slots) == len(set(slots)), "the API server would refuse it"
        if patch.taint:
            assert facts.mode is NodeMode.FULL
            assert isinstance(patch.session, Session)
            assert set(patch.session.added.taints).issuperset(patch.taint)
        if patch.unschedulable:
            assert not facts.unschedulable
            assert facts.mode is NodeMode.FULL
            assert isinstance(patch.session, Session)
            assert patch.session.added.cordoned
        if isinstance(patch.session, Session):
            assert decode_session(encode(patch.session), node_uid=patch.uid) == patch.session

    def check_guards(self, patch: PatchNode, facts: NodeFacts) -> None:
        """No disruptive step begins that a guard of its policy has to hold."""
        sources = self.known.sources
        assert sources["watch"].ok
        assert not self.frozen(facts)
        if patch.policy != "fell":
            assert sources["agents"].ok
            return
        assert sources[MAIN].ok
        assert not self.known.alerts
        assert self.now % 86400 < 18 * 3600

    def frozen(self, facts: NodeFacts) -> bool:
        """Tell whether people silenced an alert about a node that a policy names."""
        naming = self.loaded.get("fell")
        named = naming is not None and naming.spec.mode is not Mode.DISABLED
        return named and any(one.suppressed for one in facts.alerts)

    def whole(self, facts: NodeFacts) -> bool:
        """Tell whether people left alone what a session had added."""
        return not (facts.uncordoned or facts.untainted)


def begins(patch: PatchNode, facts: NodeFacts) -> bool:
    """Tell whether a patch says that a step which takes time has begun."""
    if not isinstance(patch.session, Session):
        return False
    before = facts.session if isinstance(facts.session, Session) else None
    for hold in patch.session.holds:
        was = before.hold(hold.policy) if before is not None else None
        running = was is not None and was.work_since is not None and was.step == hold.step
        if hold.work_since is not None and not running:
            return True
    return False
