"""A small cluster under decide(), with everything going wrong in any order.

The machine plays nodes, agents, people, the API server and both worlds; the
invariants are what an operator relies on, whatever the order of events was.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from remediator.act.overlay import Overlay
from remediator.decide.core import Policies, World, decide
from remediator.decide.decision import Decision, Outcome, PatchNode, Work
from remediator.decide.draft import SOONEST
from remediator.decide.facts import (
    ClusterFacts,
    ConditionFact,
    NodeFacts,
    NodeMode,
    SourceFact,
    uncordoned_since,
    untainted_since,
)
from remediator.decide.guards.budget import budgets_of, is_free
from remediator.decide.ledger import Ledger, Pause, is_unavailable, scopes_of
from remediator.decide.requests import Request, Verb
from remediator.decide.session import Session, Taint, decode_session, encode
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import Mode
from tests.property.cases import cases
from tests.unit.decide.build import alert, cluster, node, policies, policy, written, xid


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


def spec(mode: str) -> ClusterSpec:
    return cluster(
        mode=mode,
        budgets=[{"maxUnavailable": 1, "per": "pool"}, {"maxUnavailable": "50%", "per": "cluster"}],
        rates={"cordon": "5/10m", "drain": "3/10m"},
        breaker={"minNodes": 4, "percent": 50, "window": "5m"},
        settling="30s",
    )


class Cluster(RuleBasedStateMachine):
    """Six nodes in two pools, three policies, two worlds, one clock."""

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
            name: policy(name, mode=mode, when=WHENS[name], **HELD_BY.get(name, {}))
            for name, mode in (("bus", "Enforce"), ("ecc", "DryRun"), ("fell", "Enforce"))
        }
        self.known = ClusterFacts()
        self.learn(alive=True, maintenance=False)
        self.policies: Policies = policies(*self.loaded.values(), loaded_at=self.now)
        self.outcomes: dict[World, dict[str, Outcome]] = {world: {} for world in World}
        self.overlay = Overlay()
        self.ledgers: dict[World, Ledger] = {}
        self.refuse = False
        self.born = 0
        self.start_controller()
        for at, name in enumerate(NAMES):
            self.nodes[name] = node(name, now=self.now, pool="ab"[at % 2])
        self.observe_all()

    # -- the shell ---------------------------------------------------------------------------

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
        facts = self.nodes[name] = replace(
            facts, unavailable_since=since, uncordoned=left, untainted=robbed
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
        ledger = self.ledgers[world]
        before = {facts.uid: facts for facts in self.view(world)}
        counted = Counter(s for e in ledger.nodes.values() if e.counted for s in e.scopes)
        was_free = {uid for uid, entry in ledger.nodes.items() if is_free(entry, self.now)}
        was_counted = {uid for uid, entry in ledger.nodes.items() if entry.counted}
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
            if isinstance(patch, PatchNode) and patch.disruptive
        ]
        begun = {facts.uid for facts, patch in patches if begins(patch, facts)}
        new = {facts.uid for facts, _ in patches if not facts.out_of_service}
        self.check_budget(world, counted, new | begun, was_free - begun, was_counted, before)
        for one in decisions:
            assert one.next_look is None or one.next_look >= self.now + SOONEST / 2
            self.carry_out(world, one, before[one.uid])
        return decisions

    def check_budget(  # noqa: PLR0917
        self,
        world: World,
        counted: Counter[Any],
        new: set[str],
        free: set[str],
        was_counted: set[str],
        before: dict[str, NodeFacts],
    ) -> None:
        ledger = self.ledgers[world]
        after = counted.copy()
        for uid in new - was_counted:
            after.update(scopes_of(before[uid]))
        for uid in new - free:
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
            if effect.unschedulable:
                self.ours.add(name)
            self.tainted[name] |= set(effect.taint)
            self.nodes[name] = written(facts, effect, self.now)
            session = self.nodes[name].session
            added = session.added.taints if isinstance(session, Session) else ()
            self.tainted[name] &= set(added)  # what a session leaves behind is people's
            self.see(name)

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

    @initialize(
        shapes=st.tuples(*[st.sampled_from(SHAPES)] * 3),
        taint=st.sampled_from([None, *FOREIGN]),
        value=st.sampled_from(["", "else"]),
    )
    def furnish(
        self, shapes: tuple[list[dict[str, Any]], ...], taint: Taint | None, value: str
    ) -> None:
        """Begin with policies of any shape, on nodes half of which somebody tainted before."""
        for (name, known), shape in zip(list(self.loaded.items()), shapes, strict=True):
            self.loaded[name] = policy(
                name,
                mode=known.spec.mode.value,
                when=WHENS[name],
                steps=shape,
                **HELD_BY.get(name, {}),
            )
        self.reload()
        if taint is not None:
            theirs = Taint(key=taint.key, effect=taint.effect, value=value or taint.value)
            for name in NAMES[::2]:
                self.see(name, taints=(theirs,))

    # -- what happens ------------------------------------------------------------------------

    @rule()
    def decide_both(self) -> None:
        for world in World:
            self.turn(world)

    @rule(seconds=st.sampled_from([0.5, 20.0, 61.0, 301.0, 601.0, 901.0, 3601.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.decide_both()

    @rule(
        who=st.sets(names, min_size=1, max_size=3),
        codes=st.sets(st.sampled_from([79, 48]), min_size=1),
        seconds=st.sampled_from([0.5, 61.0, 301.0]),
    )
    def sicken(self, who: set[str], codes: set[int], seconds: float) -> None:
        for name in who:
            self.report(name, codes)
        self.pass_time(seconds)

    @rule(who=st.sets(names, min_size=1), seconds=st.sampled_from([0.5, 301.0]))
    def heal(self, who: set[str], seconds: float) -> None:
        for _ in range(4):
            for name in who:
                self.report(name, set())
            self.pass_time(seconds)

    @rule(seconds=st.sampled_from([20.0, 301.0, 601.0]))
    def live(self, seconds: float) -> None:
        self.heartbeats()
        self.pass_time(seconds)

    @rule(name=names, codes=st.sets(st.sampled_from([79, 48])))
    def report(self, name: str, codes: set[int]) -> None:
        """The agent speaks: these faults, or none."""
        facts = self.nodes[name]
        known, status = facts.conditions["GPUXidError"], "True" if codes else "False"
        fact = ConditionFact(
            "GPUXidError", status, "", "",
            since=known.since if known.status == status else self.now, seen=self.now,
        )  # fmt: skip
        faults = tuple(replace_boot(xid(code), facts.boot_id) for code in sorted(codes))
        self.see(
            name, faults=faults, faults_boot_id=facts.boot_id, conditions={"GPUXidError": fact}
        )

    @rule(who=st.sets(names, min_size=1), suppressed=st.sampled_from([False, False, True]))
    def fire(self, who: set[str], *, suppressed: bool) -> None:
        """An alert fires about these nodes; people may have silenced it."""
        for name in who:
            self.see(name, alerts=(replace(FELL, since=self.now, suppressed=suppressed),))

    @rule(who=st.sets(names, min_size=1))
    def resolve(self, who: set[str]) -> None:
        for name in who:
            self.see(name, alerts=())

    @rule(failing=st.sampled_from([None, None, "agents", "watch", MAIN]), alive=st.booleans())
    def sources(self, failing: str | None, *, alive: bool) -> None:
        self.learn(failing=failing, alive=alive, maintenance=bool(self.known.alerts))

    @rule(maintenance=st.booleans())
    def maintenance(self, *, maintenance: bool) -> None:
        fine = all(fact.ok for fact in self.known.sources.values())
        self.learn(failing=None if fine else MAIN, alive=True, maintenance=maintenance)

    def learn(self, *, failing: str | None = None, alive: bool, maintenance: bool) -> None:
        names_ = ("agents", "watch", MAIN)
        self.known = ClusterFacts(
            alerts=(MAINTENANCE,) if maintenance else (),
            sources={
                name: SourceFact(ok=name != failing, since=self.now, alive=alive, why="test")
                for name in names_
            },
        )

    @rule()
    def heartbeats(self) -> None:
        for name, facts in self.nodes.items():
            fact = replace(facts.conditions["GPUXidError"], seen=self.now)
            self.see(name, conditions={"GPUXidError": fact})

    @rule(name=names, ready=st.booleans())
    def kubelet(self, name: str, *, ready: bool) -> None:
        self.see(name, ready=ready)

    @rule(name=names)
    def reboot(self, name: str) -> None:
        self.born += 1
        self.see(name, boot_id=f"boot-{self.born}")

    @rule(name=names, cordon=st.booleans())
    def person(self, name: str, *, cordon: bool) -> None:
        self.see(name, unschedulable=cordon)

    @rule(who=st.sets(names, min_size=1))
    def cordon_anew(self, who: set[str]) -> None:
        """A person takes away a cordon and adds their own before we could look."""
        for name in who:
            self.person(name, cordon=False)
            self.person(name, cordon=True)

    @rule(name=names, taint=st.sampled_from(FOREIGN), add=st.booleans(), other=st.booleans())
    def taint(self, name: str, *, taint: Taint, add: bool, other: bool) -> None:
        """A person or a program adds a taint, changes its value, or takes it away."""
        left = tuple(one for one in self.nodes[name].taints if one.slot != taint.slot)
        self.see(name, taints=left)
        if add:
            new = Taint(key=taint.key, effect=taint.effect, value="else") if other else taint
            self.see(name, taints=(*left, new))

    @rule(who=st.sets(names, min_size=1), verb=st.sampled_from([None, *Verb]))
    def taint_anew(self, who: set[str], verb: Verb | None) -> None:
        """A person takes our taints away and adds the same ones before we could look."""
        for name in who:
            theirs = self.nodes[name].taints
            self.see(name, taints=())
            self.see(name, taints=theirs)
            if verb is not None:
                self.ask(name, verb)

    @rule(name=names, verb=st.sampled_from(Verb))
    def ask(self, name: str, verb: Verb) -> None:
        self.see(name, request=Request(verb=verb, by="ann", at="now"))

    @rule(name=names, mode=st.sampled_from([*NodeMode, NodeMode.FULL, NodeMode.FULL]))
    def opt(self, name: str, mode: NodeMode) -> None:
        self.see(name, mode=mode)

    @rule(name=names, pool=st.sampled_from("ab"))
    def move(self, name: str, pool: str) -> None:
        self.see(name, pool=pool)

    @rule(name=names)
    def replaced(self, name: str) -> None:
        """Deleted, and there again under the same name."""
        self.born += 1
        gone = self.nodes[name]
        for ledger in self.ledgers.values():
            ledger.forget(gone.uid)
        self.overlay.forget(gone.uid)
        self.ours.discard(name)
        self.tainted[name].clear()
        self.nodes[name] = node(name, now=self.now, pool=gone.pool, uid=f"{name}-{self.born}")
        self.see(name)

    @rule(
        name=st.sampled_from(list(WHENS)),
        mode=st.sampled_from([*Mode, Mode.ENFORCE, Mode.DRY_RUN]),
        shape=st.sampled_from(SHAPES),
        when=st.sampled_from(["cleared", "manual", "never"]),
    )
    def edit(self, name: str, mode: Mode, shape: list[dict[str, Any]], when: str) -> None:
        self.loaded[name] = policy(
            name,
            mode=mode.value,
            when=WHENS[name],
            steps=shape,
            recover={"when": when},
            **HELD_BY.get(name, {}),
        )
        self.reload()

    @rule(name=st.sampled_from(list(WHENS)))
    def remove(self, name: str) -> None:
        self.loaded.pop(name, None)
        self.reload()

    def reload(self) -> None:
        self.policies = policies(*self.loaded.values(), loaded_at=self.now)
        shown = {n for n, one in self.loaded.items() if one.spec.mode is Mode.DRY_RUN}
        for facts in self.nodes.values():
            self.overlay.expire(facts.uid, shown)

    @rule(kind=st.sampled_from([None, None, "new", "all"]))
    def pause(self, kind: str | None) -> None:
        for ledger in self.ledgers.values():
            ledger.pause = None if kind is None else Pause(by="ann", at="now", all=kind == "all")

    @rule(keep=st.booleans())
    def reset_breakers(self, *, keep: bool) -> None:
        for ledger in self.ledgers.values():
            for source in list(ledger.breakers):
                ledger.reset_breaker(source, keep=keep)

    @rule(mode=st.sampled_from(["Enforce", "Enforce", "Enforce", "DryRun"]))
    def restart(self, mode: str) -> None:
        self.mode = mode
        self.start_controller()
        self.outcomes = {world: {} for world in World}
        for name, facts in self.nodes.items():
            if facts.uncordoned and facts.unschedulable:
                self.ours.add(name)  # cordoned anew before the restart: that was not recorded
            if facts.untainted and isinstance(facts.session, Session):
                again = set(facts.taints) & set(facts.session.added.taints)
                self.tainted[name] |= again  # likewise
            self.nodes[name] = replace(facts, uncordoned=False, untainted=False)
        self.observe_all()

    @rule(refuse=st.sampled_from([True, False, False]))
    def api_server(self, *, refuse: bool) -> None:
        """Every write fails, or is done, from now on."""
        self.refuse = refuse

    # -- what must hold ------------------------------------------------------------------------

    @invariant()
    def counters_equal_a_recount(self) -> None:
        for world, ledger in self.ledgers.items():
            shown = {facts.uid: facts for facts in self.view(world)}
            assert set(ledger.nodes) == set(shown)
            total = Counter(s for facts in shown.values() for s in scopes_of(facts))
            assert +ledger.total == total
            down = Counter(s for f in shown.values() if is_unavailable(f) for s in scopes_of(f))
            reserved = [entry.name for entry in ledger.nodes.values() if entry.reserved]
            assert reserved == [], "a reservation leaked"
            assert +ledger.unavailable == down

    @precondition(lambda self: self.mode == "Enforce" and not self.refuse)
    @rule()
    def guards_never_block_recovery(self) -> None:
        """Everything clears, agents live, guards are shut: due sessions end all the same."""
        for ledger in self.ledgers.values():
            ledger.pause = Pause(by="ann", at="now")
            for source in self.loaded:
                ledger.open_breaker(source, "test", self.now)
        for guard in ("agents", "watch"):
            self.learn(failing=guard, alive=True, maintenance=True)
        due = {
            name: facts.session.added
            for name, facts in self.nodes.items()
            if isinstance(facts.session, Session)
            and self.all_there(name, facts.session)
            and facts.mode in {NodeMode.FULL, NodeMode.NOTIFY_ONLY}
            and all(self.ends_by_itself(hold) for hold in facts.session.holds)
        }
        for name in self.nodes:
            self.see(name, ready=True, request=None, alerts=())
        for _ in range(4):
            self.now += 301
            for name in self.nodes:
                self.report(name, set())
            self.turn(World.REAL)
        for name, added in due.items():
            facts = self.nodes[name]
            assert facts.session is None, name
            assert not (added.cordoned and facts.unschedulable)
            assert not set(added.taints) & set(facts.taints)
        for ledger in self.ledgers.values():
            ledger.pause = None

    def all_there(self, name: str, session: Session) -> bool:
        """Tell whether nobody took away what the session added."""
        added, facts = session.added, self.nodes[name]
        whole = self.tainted[name].issuperset(added.taints) and not facts.untainted
        return whole and (not added.cordoned or (name in self.ours and not facts.uncordoned))

    def ends_by_itself(self, hold: Any) -> bool:
        known = self.loaded.get(hold.policy)
        return (
            known is not None
            and known.spec.mode is Mode.ENFORCE
            and hold.state != "escalated"
            and '"when":"manual"' not in hold.plan
            and '"when":"never"' not in hold.plan
        )


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


def replace_boot(fault: Any, boot_id: str) -> Any:
    from msgspec.structs import replace as changed  # noqa: PLC0415

    return changed(fault, boot_id=boot_id)


# 15,000 turns of events in CI, each followed by all that must hold.
Cluster.TestCase.settings = settings(max_examples=cases(300), stateful_step_count=50)
TestCluster = Cluster.TestCase
