"""The taint step: guarded as a cordon, undone by the last that wanted it, never another's."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from remediator.decide.decision import NodePhase
from remediator.decide.facts import NodeMode
from remediator.decide.ledger import Pause
from remediator.decide.requests import Request, Verb
from remediator.decide.session import Taint
from remediator.policy.model import RemediationPolicy
from tests.unit.decide.build import Bench, ledger, node, patch_of, policy, xid


KEY = "gpu-remediator.io/unhealthy"
OURS = Taint(key=KEY, effect="NoSchedule")
DEDICATED = Taint(key="nvidia.com/gpu", effect="NoSchedule", value="present")
STEP: dict[str, Any] = {"taint": {}}
BAD = (xid(),)


def tainting(name: str = "bus", *, code: int = 79, **spec: Any) -> RemediationPolicy:
    return policy(name, **{"steps": [STEP], "when": [{"xid": {"codes": [code]}}]} | spec)


def sick(*rules: RemediationPolicy, **more: Any) -> Bench:
    bench = Bench(*(rules or (tainting(),)))
    bench.see(node(**{"faults": BAD} | more))
    return bench


def taints(bench: Bench) -> tuple[Taint, ...]:
    return bench.nodes["n1"].taints


def clear(bench: Bench, *left: Any) -> None:
    """Have all faults but these clear, and wait for ten minutes."""
    bench.now += 1
    bench.fault(*left)
    bench.one()
    bench.one(seconds=600)


def test_it_is_added_with_its_session_and_goes_with_the_fault() -> None:
    bench = sick(taints=(DEDICATED,))
    patch = patch_of(bench.one())
    assert patch is not None
    assert (patch.taint, patch.action, patch.disruptive) == ((OURS,), "taint", True)
    assert bench.session().added.taints == (OURS,)
    assert not bench.cordoned()

    clear(bench)
    assert taints(bench) == (DEDICATED,)
    assert bench.nodes["n1"].session is None


def test_cordon_and_several_taints_are_one_patch() -> None:
    away = {"taint": {"effect": "NoExecute", "acknowledge": "evicts-daemons", "value": "x"}}
    bench = sick(tainting(steps=[{"cordon": {}}, STEP, away]))
    patch = patch_of(bench.one())
    assert patch is not None
    assert patch.unschedulable
    assert [one.effect for one in patch.taint] == ["NoSchedule", "NoExecute"]
    clear(bench)
    assert taints(bench) == ()
    assert not bench.cordoned()


@pytest.mark.parametrize("value", ["", "theirs"])
def test_a_taint_of_that_key_and_effect_from_before_stays(value: str) -> None:
    theirs = Taint(key=KEY, effect="NoSchedule", value=value)
    bench = sick(taints=(theirs,))
    bench.one()
    assert bench.session().added.taints == ()
    clear(bench)
    assert bench.nodes["n1"].session is None
    assert taints(bench) == (theirs,)


def test_a_taint_from_before_that_is_taken_away_is_added_anew() -> None:
    bench = sick(taints=(OURS,))
    bench.one()
    bench.change(taints=())
    bench.one()
    bench.one(seconds=1)
    assert taints(bench) == bench.session().added.taints == (OURS,)


def test_the_last_policy_that_wanted_it_removes_it() -> None:
    bench = sick(tainting(), tainting("ecc", code=48), faults=(xid(), xid(48)))
    bench.one()
    assert taints(bench) == (OURS,)
    clear(bench, xid(48))
    assert [hold.policy for hold in bench.session().holds] == ["ecc"]
    assert taints(bench) == (OURS,)
    clear(bench)
    assert taints(bench) == ()


def test_it_goes_with_its_policy_while_another_goes_on() -> None:
    bench = sick(tainting(), policy("ecc", when=[{"xid": {"codes": [48]}}]),
                 faults=(xid(), xid(48)))  # fmt: skip
    bench.one()
    assert taints(bench) == (OURS,)
    clear(bench, xid(48))
    assert taints(bench) == ()
    assert bench.session().added.taints == ()
    assert bench.cordoned()


def test_what_never_is_undone_is_left_to_people() -> None:
    never = tainting(recover={"when": "never"})
    bench = sick(never, tainting("ecc", code=48), faults=(xid(), xid(48)))
    bench.one()
    clear(bench, xid(48))
    clear(bench)
    assert bench.nodes["n1"].session is None
    assert taints(bench) == (OURS,)


def test_a_policy_that_begins_as_another_lets_go_keeps_the_taint() -> None:
    rules = (
        tainting(recover={"for": "0s"}),
        tainting("ecc", code=48),
        policy("row", when=[{"xid": {"codes": [63]}}]),
    )
    bench = sick(*rules, faults=(xid(), xid(63)))
    bench.one()
    bench.now += 1
    bench.fault(xid(48), xid(63))
    patch = patch_of(bench.one())
    assert patch is not None
    assert (patch.taint, patch.untaint) == ((), ())
    assert taints(bench) == bench.session().added.taints == (OURS,)


# -- people ----------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [(), (Taint(key=KEY, effect="NoSchedule", value="mine"),)])
def test_a_taint_removed_by_hand_ends_the_session_and_leaves_the_rest(
    after: tuple[Taint, ...],
) -> None:
    bench = sick(tainting(steps=[{"cordon": {}}, STEP]))
    bench.one()
    bench.change(taints=after)
    assert bench.one().phase is NodePhase.WAIVED
    assert bench.nodes["n1"].session is None
    assert bench.cordoned()
    assert taints(bench) == after
    bench.one(seconds=60)
    assert taints(bench) == after


def test_a_taint_that_was_removed_and_added_by_hand_is_theirs() -> None:
    bench = sick()
    bench.one()
    bench.change(untainted=True)
    bench.one()
    assert bench.nodes["n1"].session is None
    assert taints(bench) == (OURS,)


def test_an_uncordon_by_hand_takes_our_taint_along() -> None:
    bench = sick(tainting(steps=[{"cordon": {}}, STEP]))
    bench.one()
    bench.change(unschedulable=False)
    bench.one()
    assert taints(bench) == ()
    assert bench.nodes["n1"].session is None


@pytest.mark.parametrize(("verb", "left"), [(Verb.CANCEL, ()), (Verb.RELEASE, (OURS,))])
def test_cancel_removes_it_and_release_keeps_it(verb: Verb, left: tuple[Taint, ...]) -> None:
    bench = sick()
    bench.one()
    bench.change(request=Request(verb=verb, by="ann", at="now"))
    bench.one()
    assert taints(bench) == left
    bench.one(seconds=60)
    assert taints(bench) == left


def test_notify_only_permits_no_taint_however_mild() -> None:
    mild = tainting(steps=[{"taint": {"effect": "PreferNoSchedule"}}])
    bench = sick(mild, mode=NodeMode.NOTIFY_ONLY)
    bench.one()
    assert taints(bench) == ()


# -- guards ----------------------------------------------------------------------------------


def test_a_tainted_node_takes_a_place_in_the_budget() -> None:
    bench = Bench(tainting(), guards=ledger(budgets=[{"maxUnavailable": 1, "per": "cluster"}]))
    bench.see(node("n1", faults=BAD), node("n2", faults=BAD))
    bench.decide()
    assert [bool(one.taints) for one in bench.nodes.values()] == [True, False]
    held = bench.decide()[1].holds
    assert [one.guard for one in held] == ["budget"]
    bench.now += 1
    bench.fault()
    bench.decide()
    bench.now += 600
    bench.decide()
    bench.decide()
    assert [bool(one.taints) for one in bench.nodes.values()] == [False, True]


def test_a_taint_counts_as_a_cordon_in_rates() -> None:
    bench = Bench(
        tainting(),
        policy("ecc", when=[{"xid": {"codes": [48]}}]),
        guards=ledger(
            budgets=[{"maxUnavailable": "100%", "per": "cluster"}], rates={"cordon": "1/10m"}
        ),
    )
    bench.see(node("n1", faults=BAD))
    bench.decide()
    bench.see(node("n2", faults=(xid(48),)))
    assert [one.guard for one in bench.decide()[1].holds] == ["rate"]


def test_a_further_step_on_a_node_of_ours_costs_nothing_more_and_is_asked_for() -> None:
    later = tainting("ecc", code=48)
    guards = ledger(budgets=[{"maxUnavailable": 1, "per": "cluster"}], rates={"cordon": "1/10m"})
    bench = Bench(policy(), later, guards=guards)
    bench.see(node(faults=BAD))
    bench.one()
    bench.ledger.pause = Pause(by="ann", at="now")
    bench.fault(xid(), xid(48))
    assert [one.guard for one in bench.one().holds] == ["pause"]
    bench.ledger.pause = None
    bench.one()
    assert taints(bench) == (OURS,)


def test_prefer_no_schedule_takes_no_capacity_and_passes_the_guards() -> None:
    mild = tainting(steps=[{"taint": {"effect": "PreferNoSchedule"}}])
    bench = Bench(mild, guards=ledger(budgets=[{"maxUnavailable": 0, "per": "cluster"}]))
    bench.see(node(faults=BAD))
    patch = patch_of(bench.one())
    assert patch is not None
    assert not patch.disruptive
    assert not bench.nodes["n1"].out_of_service
    clear(bench)
    assert taints(bench) == ()


def test_taints_of_others_take_no_place_in_the_budget() -> None:
    assert not node(taints=(DEDICATED,)).out_of_service
    assert node(taints=(OURS,)).out_of_service


# -- the file --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"effect": "NoExecute"}, "acknowledge: evicts-daemons"),
        ({"key": "node.kubernetes.io/unschedulable"}, "pattern"),
        ({"effect": "Never"}, "NoSchedule"),
        ({"value": "a b"}, "pattern"),
    ],
)
def test_taints_that_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        tainting(steps=[{"taint": given}])


def test_a_held_taint_is_not_begun() -> None:
    bench = sick()
    bench.ledger.pause = Pause(by="ann", at="now")
    assert bench.one().phase is NodePhase.MATCHED
    assert bench.nodes["n1"].session is None
    bench.ledger.pause = None
    bench.one()
    assert taints(bench) == (OURS,)
