"""Breakers in any order of faults, recoveries and restarts: no storm gets through.

What one source names counts over all policies. However the faults are spread over nodes, policies
and time, and however often the controller restarts, no more nodes than are believable that
newly turned bad within one window are taken out of service.
"""

from __future__ import annotations

from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from remediator.decide.core import World
from remediator.decide.session import Session
from tests.property.cases import cases
from tests.unit.decide.build import Bench, ledger, node, policies, policy, xid


NODES = 12
CODES = (79, 48, 119)
WINDOW = 300.0
BELIEVABLE = 3
LIMITS = {"minNodes": BELIEVABLE, "percent": 1, "window": "5m"}
MODES = {World.REAL: "Enforce", World.VIRTUAL: "DryRun"}

turns = st.lists(
    st.one_of(
        st.tuples(
            st.just("bad"),
            st.sets(st.integers(0, NODES - 1), min_size=1, max_size=4),
            st.sampled_from(CODES),
        ),
        st.tuples(st.just("well"), st.sets(st.integers(0, NODES - 1), min_size=1, max_size=4)),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 40.0, 160.0, 301.0, 700.0])),
        st.tuples(st.just("restart")),
    ),
    max_size=30,
)


class Play:
    """A cluster without budgets and rates that would bind, so that only breakers hold."""

    def __init__(self, world: World) -> None:
        self.given = [
            policy(f"xid-{code}", mode=MODES[world], when=[{"xid": {"codes": [code]}}])
            for code in CODES
        ]
        self.made = self.controller(world, 1_000_000.0)
        self.made.see(*(node(f"n{i}", now=self.made.now) for i in range(NODES)))
        self.bad: dict[str, float] = {}
        """Nodes that turned bad, or bad in another way, while a controller looked, with when."""
        self.taken: list[float] = []
        """When those turned bad that were then taken out of service, once each."""
        self.decide()

    def controller(self, world: World, now: float) -> Bench:
        guards = ledger(
            started=now,
            budgets=[{"maxUnavailable": "100%", "per": "cluster"}],
            rates={"cordon": "1000/1s"},
            breaker=LIMITS,
        )
        made = Bench(guards=guards)
        made.world, made.now = world, now
        made.policies = policies(*self.given, loaded_at=now)
        return made

    def turn(self, what: str, *rest: Any) -> None:
        made = self.made
        if what == "wait":
            made.now += rest[0]
        elif what == "restart":
            self.made = self.controller(made.world, made.now)
            self.made.ledger.restore(made.ledger.state())
            self.made.see(*made.nodes.values())
        else:
            for i in sorted(rest[0]):
                self.report(f"n{i}", *rest[1:])
        self.decide()

    def report(self, name: str, *codes: int) -> None:
        facts = self.made.nodes[name]
        if not codes:
            self.bad.pop(name, None)
        elif [one.code for one in facts.faults] != list(codes) and facts.session is None:
            self.bad[name] = self.made.now
        self.made.fault(*(xid(code) for code in codes), name=name)

    def decide(self) -> None:
        before = {name for name, one in self.made.nodes.items() if one.unschedulable}
        self.made.decide()
        for name, one in self.made.nodes.items():
            if one.unschedulable and name not in before and name in self.bad:
                assert isinstance(one.session, Session)
                self.taken.append(self.bad.pop(name))


@settings(max_examples=cases(300))
@given(world=st.sampled_from(World), turns=turns)
def test_no_more_than_is_believable_is_taken_out_of_service_within_a_window(
    world: World, turns: list[tuple[Any, ...]]
) -> None:
    play = Play(world)
    for one in turns:
        play.turn(*one)
        for first in play.taken:
            within = [at for at in play.taken if first <= at < first + WINDOW]
            assert len(within) <= BELIEVABLE, (within, play.made.ledger.breakers)
    event(f"breakers open: {', '.join(sorted(play.made.ledger.breakers)) or 'none'}")
