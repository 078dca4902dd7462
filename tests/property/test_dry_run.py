"""Dry-run plans what enforce does, turn for turn, and asks for no write.

The same node twice: one cluster enforces, the other is in dry-run, whose decisions go to the
overlay. Both see the same faults, kubelet, boots and pauses; work takes as long as dry-run
assumes; nobody touches what only one of them has added.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace as changed

from remediator.act.overlay import Overlay
from remediator.decide.core import World, decide
from remediator.decide.decision import (
    UNSET,
    Decision,
    Outcome,
    PatchNode,
    SendMessage,
    Work,
    WriteEvent,
)
from remediator.decide.facts import NodeFacts
from remediator.decide.ledger import Ledger, Pause
from remediator.decide.session import Session, Taint
from remediator.decide.work import ASSUMED
from tests.property.cases import cases
from tests.property.test_steps import ANNOTATIONS, LABELS, STEPS
from tests.unit.decide.build import (
    GPU,
    cluster,
    condition,
    node,
    patch_of,
    policies,
    policy,
    written,
    xid,
)


pytestmark = pytest.mark.timeout(3600)
SPEC: dict[str, Any] = {
    "budgets": [{"maxUnavailable": "100%", "per": "cluster"}],
    "rates": {"cordon": "3/10m", "drain": "2/10m", "job": "2/10m"},
    "breaker": {"minNodes": 100},
}
SPECS = {mode: cluster(mode=mode, **SPEC) for mode in ("Enforce", "DryRun")}
GIVEN = [
    {"approve": {}, "timeout": "10m"},
    {"wait": {"condition": {"type": "Reset"}}, "timeout": "5m"},
    {"job": {"template": "reboot", "success": "reboot"}, "timeout": "5m"},
]
"""What dry-run assumes, and in earnest only people, an agent or a boot bring about."""
some_steps = st.lists(
    st.sampled_from([one for one in STEPS if one not in GIVEN]),
    min_size=1,
    max_size=5,
)
waits = st.sampled_from(["cleared", "cleared", "manual", "never"])


class Side:
    """One of the two: a controller, its node, and what it asked for."""

    def __init__(self, mode: str, now: float) -> None:
        self.world = World.REAL if mode == "Enforce" else World.VIRTUAL
        self.spec = SPECS[mode]
        self.ledger = Ledger(cluster=self.spec, started=now)
        self.overlay = Overlay()
        self.facts = node(now=now)
        self.works: dict[str, Work] = {}

    @property
    def seen(self) -> NodeFacts:
        return self.facts if self.world is World.REAL else self.overlay.view(self.facts)

    def take(self, patch: PatchNode, now: float) -> None:
        if self.world is World.REAL:
            self.facts = written(self.facts, patch, now)
        else:
            self.overlay.apply(patch, self.facts, now=now)


class Twins(RuleBasedStateMachine):
    """Two sides, one clock, the same outcomes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.sides = [Side(mode, self.now) for mode in SPECS]
        self.loaded = policies()
        self.told: dict[str, Outcome] = {}
        self.done: dict[str, Outcome] = {}
        """What became of work in earnest. Dry-run is not shown it: it assumes."""
        self.untouched = self.sides[1].facts
        self.boots = 1

    def see(self, **fields: Any) -> None:
        for side in self.sides:
            facts = replace(side.facts, **fields)
            gone = facts.out_of_service or not facts.ready
            since = (facts.unavailable_since or self.now) if gone else None
            side.facts = replace(facts, unavailable_since=since)
        self.untouched = self.sides[1].facts

    def decided(self, side: Side, world: World, ledger: Ledger, facts: NodeFacts) -> Decision:
        ledger.observe(facts, self.now)
        (decision,) = decide(
            [facts],
            policies=self.loaded,
            ledger=ledger,
            outcomes=self.told if world is World.VIRTUAL else self.told | self.done,
            world=world,
            now=self.now,
        )
        for effect in decision.effects:
            if isinstance(effect, PatchNode) and world is side.world:
                side.take(effect, self.now)
        return decision

    def turn(self) -> None:
        for one in self.sides[0].works.values():
            if self.now >= one.since + ASSUMED[one.action] and not one.suspended:
                self.done[one.key] = Outcome(key=one.key, delivered=True)
        plans = []
        for side in self.sides:
            decision = self.decided(side, side.world, side.ledger, side.seen)
            seen = side.seen
            side.ledger.observe(seen, self.now)
            side.works = {one.key: one for one in decision.effects if isinstance(one, Work)}
            plans.append(self.plan_of(decision, side, seen))
        real, dry = plans
        assert dry == real
        for key in real["told"]:
            self.told.setdefault(key, Outcome(key=key, delivered=True))

    @staticmethod
    def plan_of(decision: Decision, side: Side, seen: NodeFacts) -> dict[str, Any]:
        """Return all that a decision would have done, but for which version of the node."""
        patch, kinds = patch_of(decision), (SendMessage, WriteEvent)
        session = seen.session
        assert session is None or isinstance(session, Session)
        return {
            "patch": patch and bare(patch),
            "works": side.works,
            "told": {one.key for one in decision.effects if isinstance(one, kinds)},
            "holds": decision.holds,
            "phase": decision.phase,
            "session": session and plain(session),
            "history": changed(seen.history, owed=()),
            "cordoned": seen.unschedulable,
            "taints": set(seen.taints),
            "marks": (seen.labels, seen.annotations),
        }

    # -- what happens ------------------------------------------------------------------------

    @initialize(
        first=some_steps,
        second=some_steps,
        when=waits,
        theirs=st.booleans(),
        cordoned=st.booleans(),
        tainted=st.booleans(),
    )
    def furnish(
        self,
        first: list[dict[str, Any]],
        second: list[dict[str, Any]],
        when: str,
        *,
        theirs: bool,
        cordoned: bool,
        tainted: bool,
    ) -> None:
        recover = {"when": when, "for": "1m"}
        self.loaded = policies(
            policy("a", steps=first, recover=recover), policy("b", steps=second, recover=recover)
        )
        self.see(
            labels={**GPU, LABELS[0]: "theirs"} if theirs else GPU,
            annotations={ANNOTATIONS[0]: "theirs"} if theirs else {},
            unschedulable=cordoned,
            taints=(Taint("nvidia.com/gpu", "NoSchedule", "present"),) if tainted else (),
        )
        self.report(faulty=True)

    @rule(faulty=st.booleans())
    def report(self, *, faulty: bool) -> None:
        facts = self.sides[0].facts
        status = "True" if faulty else "False"
        known = facts.conditions["GPUXidError"]
        fresh = condition("GPUXidError", status, now=self.now)
        since = known.since if known.status == status else self.now
        fault = replace_boot(xid(), facts.boot_id)
        self.see(
            conditions={"GPUXidError": replace(fresh, since=since)},
            faults=(fault,) if faulty else (),
            faults_boot_id=facts.boot_id,
        )
        self.turn()

    @rule(seconds=st.sampled_from([0.5, 1.5, 61.0, 125.0, 301.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.turn()

    @rule()
    def reboot(self) -> None:
        self.boots += 1
        self.see(boot_id=f"boot-{self.boots}")
        self.turn()

    @rule(ready=st.booleans())
    def readiness(self, *, ready: bool) -> None:
        self.see(ready=ready)
        self.turn()

    @rule(pause=st.sampled_from([None, Pause(by="a", at="")]))
    def pause(self, pause: Pause | None) -> None:
        for side in self.sides:
            side.ledger.pause = pause
        self.turn()

    # -- what must hold ----------------------------------------------------------------------

    @invariant()
    def dry_run_asks_for_no_write(self) -> None:
        """Neither did its decisions change the node, nor is there anything to do in earnest."""
        dry = self.sides[1]
        assert dry.facts is self.untouched
        guards = Ledger(cluster=dry.spec, started=self.now - 1e6)
        decision = self.decided(dry, World.REAL, guards, dry.facts)
        assert decision.effects == ()


def bare(patch: PatchNode) -> PatchNode | None:
    """Return it without what only enforcement needs: a version, and messages to say again."""
    session = patch.session
    if patch.why == "what was owed to people is told":
        return None
    return replace(
        patch,
        resource_version="",
        history=UNSET,
        session=plain(session) if isinstance(session, Session) else session,
    )


def plain(session: Session) -> Session:
    """Return it without the notes on results, which say of dry-run that it assumes them."""
    holds = tuple(
        changed(hold, results=tuple(changed(one, note="") for one in hold.results))
        for hold in session.holds
    )
    return changed(session, holds=holds)


def replace_boot(fault: Any, boot_id: str) -> Any:
    """Return the fault as of this boot."""
    kept = {name: getattr(fault, name) for name in fault.__struct_fields__}
    return type(fault)(**{**kept, "boot_id": boot_id})


class Brief(Twins):
    """The same in many short runs: each begins with other steps on another node."""


TestTwins, TestBrief = Twins.TestCase, Brief.TestCase
TestTwins.settings = settings(max_examples=cases(2000), stateful_step_count=12)
TestBrief.settings = settings(max_examples=cases(8000), stateful_step_count=6)
