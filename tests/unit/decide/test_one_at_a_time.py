"""Of several policies that want a node's one drain or job, whoever may and comes first gets it.

One that a guard holds, or that could not begin, keeps no other from it, whatever their names.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from remediator.policy.model import RemediationPolicy
from tests.unit.decide.build import Bench, alert, node, policy, xid


DRAIN: Final[dict[str, Any]] = {"drain": {}}
JOB: Final[dict[str, Any]] = {"job": {"template": "reset"}}
SHUT: Final[dict[str, dict[str, Any]]] = {
    "windows": {"windows": [{"until": "1970-01-02"}]},
    "unless": {"unless": [{"condition": {"type": "GPUXidError"}}]},
    "rate": {"limits": {"rate": {"drain": "1/1h", "job": "1/1h"}}},
    "budget": {"limits": {"budget": {"maxUnavailable": 0, "per": "cluster"}}},
    "breaker": {},
}
"""Why one of two policies may not begin."""


def bench(*given: RemediationPolicy) -> Bench:
    """A faulty node, and the policies as they are in force: by name."""
    made = Bench(*sorted(given, key=lambda one: one.name))
    made.see(node(faults=(xid(),)))
    return made


def owner(made: Bench, action: str) -> str:
    """Decide until such work is under way; return whose it is, "" if there is none."""
    for _ in range(4):
        made.one(seconds=2.0)
        if action in made.works:
            return made.works[action].policy
    return ""


@pytest.mark.parametrize("shut", SHUT)
@pytest.mark.parametrize("step", [DRAIN, JOB], ids=["drain", "job"])
@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")], ids=["held-first", "held-last"])
def test_a_policy_that_a_guard_holds_keeps_no_other_from_its_work(
    names: tuple[str, str], step: dict[str, Any], shut: str
) -> None:
    held, free = names
    steps = [{"cordon": {}}, step]
    made = bench(policy(held, steps=[step], **SHUT[shut]), policy(free, steps=steps))
    (action,) = step
    if shut == "rate":
        made.ledger.start(action, "", [held], "uid-of-another", made.now)
    if shut == "breaker":
        made.ledger.open_breaker(held, "a storm", made.now)
    assert owner(made, action) == free
    assert not made.ledger.held_since or set(made.ledger.held_since["uid-n1"]) == {held}


@pytest.mark.parametrize("step", [DRAIN, JOB], ids=["drain", "job"])
def test_an_emergency_comes_before_the_others_whatever_its_name(step: dict[str, Any]) -> None:
    made = bench(policy("a", steps=[step]), policy("b", steps=[step], emergency=True))
    assert owner(made, next(iter(step))) == "b"


@pytest.mark.parametrize("step", [DRAIN, JOB], ids=["drain", "job"])
def test_stale_facts_of_one_policy_keep_no_other_from_its_work(step: dict[str, Any]) -> None:
    made = bench(
        policy("agent", steps=[{"cordon": {}}, step]),
        policy("alert", steps=[{"cordon": {}}, step], when=[{"alert": {"name": "GpuFell"}}]),
    )
    made.now += 3600.0
    made.change(alerts=(alert(since=made.now),))
    assert owner(made, next(iter(step))) == "alert"


def test_in_whatever_order_policies_are_given_the_decisions_are_the_same() -> None:
    given = [
        policy("a", steps=[{"taint": {"key": "gpu-remediator.io/a"}}, DRAIN]),
        policy("b", steps=[{"cordon": {}}, JOB, DRAIN]),
        policy("c", steps=[{"cordon": {}}, {"label": {"set": {"example.com/c": "x"}}}, JOB]),
    ]

    def decided(order: list[RemediationPolicy]) -> list[object]:
        made = Bench(*order)
        made.see(node(faults=(xid(),)))
        return [made.one(seconds=2.0) for _ in range(4)]

    assert decided(given) == decided(given[::-1])
