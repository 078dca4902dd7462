"""A place in the budget is given back once it is known that nothing came of the admission."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remediator.decide.decision import PatchNode
from remediator.decide.session import Session
from tests.unit.decide.build import Bench, ledger, node, patch_of, policy, written, xid


def one_place() -> Bench:
    made = Bench(policy(), guards=ledger(budgets=[{"maxUnavailable": 1, "per": "cluster"}]))
    made.see(node("n1", faults=(xid(),)), node("n2"))
    return made


@pytest.mark.parametrize("seen", ["uncordoned", "untouched"])
def test_a_place_whose_cordon_was_never_seen_is_free_at_the_next_decision(seen: str) -> None:
    """The watch began anew, or the write was never answered: its cordon came and went unseen."""
    made = one_place()
    first, _ = made.decide(write=False)
    patch = patch_of(first)
    assert isinstance(patch, PatchNode)
    assert isinstance(patch.session, Session)
    after = written(made.nodes["n1"], patch, made.now)
    if seen == "uncordoned":
        made.see(replace(after, unschedulable=False, uncordoned=True, unavailable_since=None))
    else:
        made.see(replace(made.nodes["n1"], faults=()))
        made.fault(name="n1")
    for _ in range(3):
        made.now += 1.0
        made.decide()
    assert not made.cordoned("n1")
    made.fault(xid(), name="n2")
    made.decide()
    assert made.cordoned("n2"), "one place, and nobody has it"
