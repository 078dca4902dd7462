"""Two policies on one node in one decision: neither takes away what the other has just wanted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.decide.build import Bench, ledger, node, patch_of, policy, xid


DRAINS = {"steps": [{"wait": {"for": "60s"}}, {"cordon": {}}, {"drain": {}}]}
FREES = {"steps": [{"cordon": {}}, {"wait": {"for": "60s"}}, {"uncordon": {}}]}


def both(first: str, **specs: dict[str, Any]) -> Bench:
    """Two policies that begin together, the first named one first."""
    when = [{"xid": {"codes": [79]}}]
    made = Bench(
        *(policy(name, when=when, **specs[name]) for name in sorted(specs)),
        guards=ledger(
            budgets=[{"maxUnavailable": "100%", "per": "cluster"}],
            rates=dict.fromkeys(("cordon", "drain", "job"), "100/1m"),
        ),
    )
    made.see(node(faults=(xid(),)))
    made.one()
    assert [one.policy for one in made.session().holds] == sorted(specs)
    assert min(specs) == first
    return made


@pytest.mark.parametrize(
    ("first", "specs"),
    [
        ("a-drains", {"a-drains": DRAINS, "b-frees": FREES}),
        ("a-frees", {"a-frees": FREES, "b-drains": DRAINS}),
    ],
)
def test_an_uncordon_leaves_the_cordon_that_another_policy_wants_in_the_same_decision(
    first: str, specs: dict[str, Any]
) -> None:
    made = both(first, **specs)
    assert made.cordoned()
    for _ in range(4):
        made.one(seconds=61.0)
        assert made.cordoned()
        assert made.session().added.cordoned
        assert not made.session().before.cordoned
    assert "drain" in made.works


def test_a_patch_is_named_after_the_work_that_it_begins_and_not_after_another_policy() -> None:
    marks = {"annotate": {"set": {"example.com/a": "b"}}}
    made = both(
        "aaa",
        aaa={"steps": [{"wait": {"for": "61s"}}, marks]},
        bus={"steps": [{"cordon": {}}, {"wait": {"for": "60s"}}, {"drain": {}}]},
    )
    made.one(seconds=60.0)
    patch = patch_of(made.one(seconds=1.0))
    assert patch is not None
    assert patch.annotations
    assert (patch.action, patch.policy, patch.disruptive) == ("drain", "bus", True)
    assert "drain" in made.works
