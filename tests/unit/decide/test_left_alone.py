"""Nodes that are not ours to touch: out of scope, opted out of, silenced.

Each is held with a reason that says whose word it is. It takes no place from another node, and
what was begun on it before is still undone, and told of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from remediator.decide.admit import first_hold
from remediator.decide.candidate import ActivePolicy, Candidate
from remediator.decide.decision import Hold
from remediator.decide.facts import ClusterFacts, NodeFacts, NodeMode, SourceFact
from remediator.decide.ledger import Ledger, Pause
from remediator.decide.match import match
from tests.unit.decide.build import START, Bench, alert, alive, ledger, node, policy, xid


BAD = (xid(),)
TELL = {"notify": {"to": ["log"]}}
SILENCED = replace(alert(), suppressed=True)
NAMES_IT = policy("dry", mode="DryRun", when=[{"alert": {"name": "GpuFell"}}])
NO_GPU = "not a GPU node by RemediatorConfig gpuNodes"
CONTROL_PLANE = "a control-plane node: the policy must say nodes.controlPlane: true"


def asked(
    facts: NodeFacts,
    *,
    guards: Ledger,
    action: str = "cordon",
    silenced: str = "",
    known: ClusterFacts | None = None,
    **spec: Any,
) -> Hold | None:
    """Ask all the guards about one step on one node."""
    guards.observe(facts, START)
    active = ActivePolicy(policy(**spec), 0.0)
    found = match(active.policy, facts, START)
    given = Candidate(facts, active, found, action, START, known or ClusterFacts(), silenced)
    return first_hold(given, guards, START)


# -- what is said --------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["cordon", "drain", "job"])
@pytest.mark.parametrize(
    ("facts", "silenced", "guard", "reason"),
    [
        ({"gpu": False}, "", "scope", NO_GPU),
        ({"control_plane": True}, "", "scope", CONTROL_PLANE),
        (
            {"mode": NodeMode.NOTIFY_ONLY},
            "",
            "opt-out",
            "the node says gpu-remediator.io/mode: notify-only",
        ),
        (
            {"mode": NodeMode.DISABLED},
            "",
            "opt-out",
            "the node says gpu-remediator.io/mode: disabled",
        ),
        ({}, "alert A is silenced", "silence", "alert A is silenced: the node stays as it is"),
    ],
)
def test_a_step_on_a_node_that_is_not_ours_is_held_and_whose_word_it_is_said(
    facts: dict[str, Any], silenced: str, guard: str, reason: str, action: str
) -> None:
    hold = asked(node(faults=BAD, **facts), guards=ledger(), action=action, silenced=silenced)
    assert hold == Hold("bus", guard, reason, look_again=None)


@pytest.mark.parametrize(
    ("facts", "spec"),
    [
        ({}, {}),
        ({"control_plane": True}, {"nodes": {"controlPlane": True}}),
        ({"mode": NodeMode.DRY_RUN}, {}),  # said of what is written, not of what is decided
    ],
)
def test_a_step_on_a_node_that_is_ours_is_let_through(
    facts: dict[str, Any], spec: dict[str, Any]
) -> None:
    assert asked(node(faults=BAD, **facts), guards=ledger(), **spec) is None


def test_of_a_node_that_every_guard_holds_the_first_in_order_is_named() -> None:
    """What people said themselves comes before what passes by itself, and budgets come last."""
    guards = ledger(
        started=START,
        settling="1m",
        budgets=[{"maxUnavailable": 0}],
        rates={"cordon": "1/10m"},
    )
    guards.pause = Pause(by="ann", at="now")
    guards.open_breaker("bus", "a storm", START)
    guards.observe(node("other"), START)
    guards.start("cordon", "", [""], "uid-other", START)
    facts: dict[str, Any] = {"gpu": False, "mode": NodeMode.NOTIFY_ONLY}
    more: dict[str, Any] = {
        "silenced": "alert A is silenced",
        "known": ClusterFacts(sources={"watch": SourceFact(ok=False, since=0.0, why="gone")}),
        "unless": [{"condition": {"type": "GPUXidError"}}],
        "windows": [{"until": "1970-01-01"}],
    }
    mends: dict[str, Callable[[], object]] = {
        "scope": lambda: facts.pop("gpu"),
        "opt-out": lambda: facts.pop("mode"),
        "pause": lambda: setattr(guards, "pause", None),
        "silence": lambda: more.pop("silenced"),
        "settling": lambda: setattr(guards, "started", START - 60),
        "sources": lambda: more.pop("known"),
        "unless": lambda: more.pop("unless"),
        "windows": lambda: more.pop("windows"),
        "breaker": lambda: guards.reset_breaker("bus", keep=True),
        "rate": lambda: guards.refund("uid-other"),
    }
    for guard, mend in mends.items():
        hold = asked(node(faults=BAD, **facts), guards=guards, **more)
        assert hold is not None
        assert hold.guard == guard
        mend()
    hold = asked(node(faults=BAD, **facts), guards=guards, **more)
    assert hold is not None
    assert hold.guard == "budget"


# -- places of others ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts",
    [
        {"gpu": False},
        {"control_plane": True},
        {"mode": NodeMode.NOTIFY_ONLY},
        {"mode": NodeMode.DISABLED},
        {"alerts": (SILENCED,)},
    ],
)
def test_a_node_that_is_left_alone_takes_no_place_and_no_start_from_another(
    facts: dict[str, Any],
) -> None:
    guards = ledger(budgets=[{"maxUnavailable": 1}], rates={"cordon": "1/10m"})
    bench = Bench(policy(steps=[{"cordon": {}}, TELL]), NAMES_IT, guards=guards)
    bench.known = alive()
    bench.see(node("a", faults=BAD, **facts), node("b", faults=BAD))
    bench.decide()
    assert (bench.cordoned("a"), bench.cordoned("b")) == (False, True)


# -- what was begun before -----------------------------------------------------------------


STEPS: list[dict[str, Any]] = [{"cordon": {}}, {"wait": {"for": "1m"}}, {"drain": {}}, TELL]


def begun() -> Bench:
    """A node that is cordoned, and waits for its drain to come."""
    bench = Bench(policy(steps=STEPS))
    bench.see(node(faults=BAD))
    bench.one()
    bench.one()
    assert bench.cordoned()
    return bench


def undone(bench: Bench) -> bool:
    for _ in range(4):
        bench.now += 301
        bench.fault()
        bench.decide()
    return not bench.cordoned()


@pytest.mark.parametrize(
    ("became", "guard", "reason"),
    [
        ({"gpu": False}, "scope", NO_GPU),
        ({"control_plane": True}, "scope", CONTROL_PLANE),
    ],
)
def test_a_node_that_went_out_of_scope_is_not_drained_and_is_given_back(
    became: dict[str, Any], guard: str, reason: str
) -> None:
    bench = begun()
    bench.change(**became)
    bench.now += 60
    bench.fault(*BAD)
    bench.one()
    decision = bench.one()
    assert decision.holds == (Hold("bus", guard, reason),)
    assert bench.works == {}
    assert undone(bench)


def test_a_node_that_opted_out_meanwhile_is_not_drained_and_people_still_hear_of_it() -> None:
    bench = begun()
    bench.change(mode=NodeMode.NOTIFY_ONLY)
    bench.now += 60
    bench.fault(*BAD)
    bench.one()
    bench.one()
    assert bench.works == {}
    assert "n1: Xid 79" in bench.texts()
    assert undone(bench)


def test_a_disabled_node_is_not_even_given_back_until_its_people_say_so() -> None:
    bench = begun()
    bench.change(mode=NodeMode.DISABLED)
    assert not undone(bench)
    assert not bench.sent
    bench.change(mode=NodeMode.FULL)
    assert undone(bench)


def test_the_last_step_of_a_node_in_scope_is_taken_though_its_selector_lost_it() -> None:
    """A selector says where a policy begins; scope says where it may go on."""
    bench = Bench(policy(steps=STEPS, nodes={"selector": {"matchLabels": {"a": "b"}}}))
    labels = node().labels
    bench.see(node(faults=BAD, labels={**labels, "a": "b"}))
    bench.one()
    bench.change(labels=labels)
    bench.one(seconds=60)
    bench.fault(*BAD)
    decision = bench.one()
    assert "drain" in bench.works
    assert decision.holds == ()
