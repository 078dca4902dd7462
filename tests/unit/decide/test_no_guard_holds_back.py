"""No guard holds back undo, recovery or a message: each of them, with a node that was begun on.

Each case makes its guard hold a new step, which a second faulty node proves, and then has the
first node's fault clear. A silence alone freezes the node that it is about, undo and all: that is
how people say "leave it". So it is given of the second node only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from remediator.decide.decision import Decision, SendMessage
from remediator.decide.facts import NodeMode, SourceFact
from remediator.decide.guards import GUARD_NAMES
from remediator.decide.ledger import Pause
from tests.unit.decide.build import Bench, alert, alive, ledger, node, policies, policy, xid


WIDE: Final = [{"maxUnavailable": "100%", "per": "cluster"}]
STEPS: Final[list[dict[str, Any]]] = [{"cordon": {}}, {"notify": {"to": ["oncall"]}}]


def rules(**spec: Any) -> Any:
    return policies(
        policy("bus", steps=STEPS, recover={"for": "0s"}, **spec),
        policy("tells", steps=[{"notify": {"to": ["log"]}}], recover={"for": "0s"}),
        policy("names", mode="DryRun", when=[{"alert": {"name": "GpuFell"}}]),
    )


def limited(bench: Bench, **spec: Any) -> None:
    started = bench.ledger.started
    bench.ledger = ledger(**({"budgets": WIDE} | spec), started=started)
    bench.see(*bench.nodes.values())


def every_node(bench: Bench, **fields: Any) -> None:
    for name in bench.nodes:
        bench.change(name, **fields)


def settle(bench: Bench) -> None:
    bench.ledger.started = bench.now
    limited(bench, settling="1h")


def use_up(bench: Bench) -> None:
    limited(bench, rates={"cordon": "1/1h"})
    bench.ledger.start("cordon", "", [""], "uid-n1", bench.now)


HOLDS: Final[dict[str, Callable[[Bench], object]]] = {
    "scope": lambda bench: every_node(bench, control_plane=True),
    "opt-out": lambda bench: every_node(bench, mode=NodeMode.NOTIFY_ONLY),
    "pause": lambda bench: setattr(bench.ledger, "pause", Pause(by="ann", at="now")),
    "silence": lambda bench: bench.change("n2", alerts=(replace(alert(), suppressed=True),)),
    "settling": settle,
    "sources": lambda bench: setattr(
        bench,
        "known",
        replace(alive(), sources={"watch": SourceFact(ok=False, since=0.0, why="a gap")}),
    ),
    "unless": lambda bench: setattr(
        bench, "policies", rules(unless=[{"condition": {"type": "GPUXidError"}}])
    ),
    "windows": lambda bench: setattr(bench, "policies", rules(windows=[{"until": "1970-01-02"}])),
    "breaker": lambda bench: bench.ledger.open_breaker("bus", "a storm", bench.now),
    "rate": use_up,
    "budget": lambda bench: limited(bench, budgets=[{"maxUnavailable": 0}]),
}
TELLS_NOBODY: Final = {"scope", "silence"}
"""Where not even a message begins: such a node is none of ours, or is to be left as it is."""


def test_every_guard_has_its_case() -> None:
    assert tuple(HOLDS) == GUARD_NAMES


def of(decisions: list[Decision], name: str) -> Decision:
    return next(one for one in decisions if one.node == name)


@pytest.mark.parametrize("guard", HOLDS)
def test_what_was_begun_is_undone_and_told_whatever_holds_a_new_step(guard: str) -> None:
    bench = Bench()
    bench.policies, bench.known = rules(), alive()
    bench.see(node("n1", faults=(xid(),)), node("n2"))
    bench.decide()
    bench.decide()
    assert bench.cordoned("n1")
    bench.now += 1.0

    HOLDS[guard](bench)
    bench.fault(xid(), name="n2")
    second = of(bench.decide(), "n2")
    assert not bench.cordoned("n2")
    if guard != "opt-out":  # there the step is passed over, and that is written down
        assert guard in {one.guard for one in second.holds if one.policy == "bus"}
    told = [
        one.to for one in bench.sent.values() if isinstance(one, SendMessage) and "n2" in one.title
    ]
    assert (("log",) in told) is (guard not in TELLS_NOBODY)

    bench.now += 1.0
    bench.fault(name="n1")
    bench.decide()
    assert not bench.cordoned("n1")
    assert bench.nodes["n1"].session is None
    ends = [
        one
        for one in bench.sent.values()
        if isinstance(one, SendMessage) and one.title == "n1: session ended"
    ]
    assert {(one.policy, one.to) for one in ends} == {("bus", ("oncall",)), ("tells", ("log",))}
