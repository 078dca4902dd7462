"""A small cluster under decide(), with everything going wrong in any order.

The machine plays nodes, agents, people, the API server and both worlds; the
invariants are what an operator relies on, whatever the order of events was.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from remediator.decide.core import Policies, World, decide
from remediator.decide.decision import PatchNode
from remediator.decide.facts import ConditionFact, NodeFacts, NodeMode
from remediator.decide.ledger import Ledger, Pause, is_unavailable, scopes_of
from remediator.decide.requests import Request, Verb
from remediator.decide.session import Session, Taint
from remediator.policy.model import Mode
from tests.property.cases import cases
from tests.property.fleet import FELL, FOREIGN, MAIN, NAMES, SHAPES, WHENS, Fleet, made, names
from tests.unit.decide.build import node, xid


pytestmark = pytest.mark.timeout(3600)


class Sleeper(NamedTuple):
    """A leader that was stopped: the nodes, the policies and the ledgers that it knows."""

    nodes: dict[str, NodeFacts]
    policies: Policies
    ledgers: dict[World, Ledger]


class Cluster(Fleet):
    """Everything that happens to nodes, people, agents, the API server and controllers."""

    sleeper: Sleeper | None = None

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
            self.loaded[name] = made(name, known.spec.mode.value, shape)
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
        self.loaded[name] = made(name, mode.value, shape, when)
        self.reload()

    @rule(name=st.sampled_from(list(WHENS)))
    def remove(self, name: str) -> None:
        self.loaded.pop(name, None)
        self.reload()

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
        self.succeed()

    def succeed(self) -> None:
        """Another controller takes over, from what is written."""
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

    @rule(
        late=st.sets(names, min_size=1),
        ill=st.sets(names, max_size=2),
        others=st.sets(names, max_size=2),
        seconds=st.sampled_from([0.0, 0.5, 20.0]),
    )
    def hand_over(self, late: set[str], ill: set[str], others: set[str], seconds: float) -> None:
        """The leader is cut off with writes on their way, which arrive when another one leads.

        They are as old as its last request may be, and the next leader settles for longer: so it
        has taken no place that they were given, and none is taken twice.
        """
        if ill:
            self.fire(ill, suppressed=False)
        decisions, before = self.decided(World.REAL)
        flying = []
        for one in decisions:
            if one.node in late and not self.refuse:
                flying += [effect for effect in one.effects if isinstance(effect, PatchNode)]
            else:
                self.carry_out(World.REAL, one, before[one.uid])
        self.succeed()
        if ill and others:
            self.resolve(ill)
            self.fire(others, suppressed=False)
        self.pass_time(seconds)
        used = self.used(World.REAL)
        landed = [(before[patch.uid], patch) for patch in flying if self.arrive(patch)]
        self.check_budget(World.REAL, used, landed)
        self.decide_both()

    @rule()
    def stop_the_leader(self) -> None:
        """It stands still, with what it knows, and does not know that another one leads."""
        self.sleeper = Sleeper(
            {facts.uid: facts for facts in self.nodes.values()}, self.policies, self.ledgers
        )
        self.succeed()

    @precondition(lambda self: self.sleeper is not None)
    @rule()
    def the_old_leader_goes_on(self) -> None:
        """It decides by old facts, and nothing stops its writes but their resourceVersion."""
        assert self.sleeper is not None
        decisions = decide(
            list(self.sleeper.nodes.values()),
            policies=self.sleeper.policies,
            ledger=self.sleeper.ledgers[World.REAL],
            outcomes={},
            world=World.REAL,
            now=self.now,
            cluster_facts=self.known,
        )
        for one in decisions:
            for effect in one.effects:
                if isinstance(effect, PatchNode):
                    self.arrive(effect)
        self.decide_both()

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


def replace_boot(fault: Any, boot_id: str) -> Any:
    from msgspec.structs import replace as changed  # noqa: PLC0415

    return changed(fault, boot_id=boot_id)


class Brief(Cluster):
    """The same in many short runs: each begins with other policies, other taints, another order."""


TestCluster, TestBrief = Cluster.TestCase, Brief.TestCase
TestCluster.settings = settings(max_examples=cases(300), stateful_step_count=50)
TestBrief.settings = settings(max_examples=cases(9700), stateful_step_count=12)
