"""Cordons and taints that several policies want: who holds them, who gives them back, what is said.

And what was there before us, and is taken away by whoever made it.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from remediator.decide.decision import Hold, Outcome, PatchNode
from remediator.decide.facts import NodeMode
from remediator.decide.session import Added, Before, HoldState, Result, Taint
from remediator.policy.model import RemediationPolicy
from tests.unit.decide.build import START, Bench, ledger, node, patch_of, policy, xid


SOFT = Taint(key="gpu-remediator.io/unhealthy", effect="PreferNoSchedule")
OURS = Taint(key="gpu-remediator.io/unhealthy", effect="NoSchedule")
ALSO = Taint(key="gpu-remediator.io/also", effect="NoSchedule")
CORDON: dict[str, Any] = {"cordon": {}}
TAINT: dict[str, Any] = {"taint": {}}
TAINT_ALSO: dict[str, Any] = {"taint": {"key": ALSO.key}}
WAIT: dict[str, Any] = {"wait": {"for": "1m"}}
TELL: dict[str, Any] = {"notify": {"to": ["log"]}}
LABEL: dict[str, Any] = {"label": {"set": {"example.com/a": "x"}}}
LAST = "the last policy that wanted this {} let go"


def rule(name: str, *steps: dict[str, Any], code: int = 79, when: str = "cleared") -> Any:
    return policy(
        name,
        steps=list(steps),
        when=[{"xid": {"codes": [code]}}],
        recover={"for": "0s", "when": when},
    )


def begun(*rules: RemediationPolicy, **facts: Any) -> Bench:
    """A node with Xids 79 and 48, as it is after the first decision."""
    bench = Bench(*rules)
    bench.see(node(faults=(xid(), xid(48)), **facts))
    bench.one()
    return bench


def left(bench: Bench, *codes: int) -> PatchNode:
    """Have all Xids but these clear, and return what is written then."""
    bench.now += 1.0
    bench.fault(*(xid(code) for code in codes))
    patch = patch_of(bench.one())
    assert patch is not None
    return patch


def notes(bench: Bench, at: int = 0) -> list[str]:
    return [one.note for one in bench.session().holds[at].results]


def said(patch: PatchNode | None) -> tuple[str, str, str]:
    assert patch is not None
    return patch.action, patch.policy, patch.why


# -- while several hold it -----------------------------------------------------------------


def test_what_another_policy_made_or_somebody_before_is_not_made_again_and_that_is_noted() -> None:
    bench = begun(rule("a", CORDON, TAINT, TAINT_ALSO), rule("b", CORDON, TAINT), taints=(ALSO,))
    assert notes(bench) == ["", "", "a taint of this key and effect was there before"]
    assert notes(bench, 1) == ["cordoned by us already", "tainted by us already"]
    assert bench.session().added == Added(cordoned=True, taints=(OURS,))


def test_a_cordon_that_somebody_made_costs_nothing_and_none_is_asked_for_it() -> None:
    bench = Bench(rule("a", CORDON), guards=ledger(budgets=[{"maxUnavailable": 0}]))
    bench.see(node(faults=(xid(),), unschedulable=True, unavailable_since=START))
    assert bench.one().holds == ()
    assert notes(bench) == ["was cordoned before"]
    assert bench.session().added == Added()


def test_a_cordon_that_somebody_made_uses_up_no_rate() -> None:
    wide = [{"maxUnavailable": "100%", "per": "cluster"}]
    bench = Bench(rule("a", CORDON), guards=ledger(budgets=wide, rates={"cordon": "1/10m"}))
    bench.see(node("n1", faults=(xid(),), unschedulable=True), node("n2", faults=(xid(),)))
    bench.decide()
    assert bench.cordoned("n2")


def test_a_cordon_that_somebody_made_meanwhile_is_theirs_until_they_take_it_away() -> None:
    bench = begun(rule("a", WAIT, CORDON))
    bench.change(unschedulable=True)
    bench.one(seconds=60.0)
    assert notes(bench)[-1] == "was cordoned before"
    assert (bench.session().before, bench.session().added) == (Before(cordoned=True), Added())
    bench.change(unschedulable=False)
    bench.one(seconds=5.0)
    bench.one()
    assert bench.cordoned()
    left(bench)
    assert not bench.cordoned()


def test_who_begins_as_another_takes_its_own_back_keeps_it_without_a_gap() -> None:
    bench = begun(
        rule("a", CORDON, TAINT, WAIT, {"uncordon": {}}, {"untaint": {}}),
        rule("c", CORDON, TAINT, code=63),
    )
    bench.now += 60.0
    bench.fault(xid(), xid(63))
    patch = patch_of(bench.one())
    assert patch is not None
    assert (patch.unschedulable, patch.taint, patch.untaint) == (None, (), ())
    assert notes(bench, 1) == ["cordoned by us already", "tainted by us already"]
    assert bench.session().added == Added(cordoned=True, taints=(OURS,))


def test_a_step_that_takes_back_leaves_what_another_policy_holds_and_notes_it() -> None:
    bench = begun(
        rule("a", CORDON, TAINT, WAIT, {"uncordon": {}}, {"untaint": {}}),
        rule("b", CORDON, TAINT, code=48),
    )
    bench.one(seconds=60.0)
    assert notes(bench)[-2:] == [
        "another policy holds the cordon",
        "another policy holds the taint",
    ]
    assert (bench.cordoned(), bench.nodes["n1"].taints) == (True, (OURS,))


def test_a_policy_that_only_tells_or_has_taken_its_own_back_holds_nothing() -> None:
    bench = begun(
        rule("a", CORDON, TAINT, WAIT, {"uncordon": {}}, {"untaint": {}}),
        rule("b", CORDON, TAINT, WAIT, WAIT, {"uncordon": {}}, {"untaint": {}}, code=48),
        rule("c", TELL, code=48),
    )
    bench.one(seconds=60.0)
    assert (bench.cordoned(), bench.nodes["n1"].taints) == (True, (OURS,))
    patch = patch_of(bench.one(seconds=60.0))
    assert not bench.cordoned()
    assert bench.nodes["n1"].taints == ()
    assert said(patch) == ("uncordon", "b", "uncordon by b: Xid 48 on 0000:9b:00.0")


def test_whoever_takes_two_taints_away_at_once_takes_both() -> None:
    bench = begun(
        rule("a", TAINT, TAINT_ALSO, WAIT, {"untaint": {}}, {"untaint": {"key": ALSO.key}})
    )
    patch = patch_of(bench.one(seconds=60.0))
    assert patch is not None
    assert patch.untaint == (OURS, ALSO)
    assert said(patch) == ("untaint", "a", "untaint by a: Xid 79 on 0000:9b:00.0")
    assert bench.session().added == Added()


def test_the_audit_names_all_that_a_change_is_for() -> None:
    both = policy("a", steps=[CORDON, WAIT, {"uncordon": {}}], when=[{"xid": {"codes": [79, 48]}}])
    bench = begun(both)
    _, _, why = said(patch_of(bench.one(seconds=60.0)))
    assert why == "uncordon by a: Xid 79 on 0000:9b:00.0, Xid 48 on 0000:9b:00.0"


@pytest.mark.parametrize(
    ("step", "action"), [(CORDON, "cordon"), (TAINT | {"timeout": "1h"}, "taint")]
)
def test_the_audit_says_what_is_changed_by_whom_and_for_what(
    step: dict[str, Any], action: str
) -> None:
    bench = Bench(policy("a", steps=[step], when=[{"xid": {"codes": [79, 48]}}]))
    bench.see(node(faults=(xid(), xid(48))))
    why = f"{action} by a: Xid 79 on 0000:9b:00.0, Xid 48 on 0000:9b:00.0"
    assert said(patch_of(bench.one())) == (action, "a", why)


def test_a_taint_has_the_value_that_the_step_gives_it() -> None:
    bench = begun(rule("a", {"taint": {"value": "xid"}}))
    assert bench.nodes["n1"].taints == (replace(OURS, value="xid"),)


def test_what_is_made_and_taken_back_in_one_decision_is_not_written() -> None:
    bench = Bench(rule("a", CORDON, TAINT, {"untaint": {}}, {"uncordon": {}}))
    bench.see(node(faults=(xid(),)))
    patch = patch_of(bench.one())
    assert patch is not None
    assert (patch.unschedulable, patch.taint, patch.untaint) == (None, (), ())


# -- the last that wanted it lets go -------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "action", "what"),
    [(LABEL, "record", "label or annotation"), (TAINT, "untaint", "taint")],
)
def test_what_only_one_policy_wanted_goes_with_it_and_the_audit_says_so(
    step: dict[str, Any], action: str, what: str
) -> None:
    bench = begun(rule("a", step), rule("b", CORDON, code=48))
    assert said(left(bench, 48)) == (action, "", LAST.format(what))
    assert bench.cordoned()
    assert bench.session().added == Added(cordoned=True)


def test_a_taint_of_one_that_lets_go_and_of_one_that_takes_its_own_back_go_together() -> None:
    bench = begun(rule("a", TAINT), rule("b", TAINT_ALSO, WAIT, {"untaint": {"key": ALSO.key}},
                                         code=48))  # fmt: skip
    bench.now += 59.0
    assert set(left(bench, 48).untaint) == {OURS, ALSO}


def test_a_step_that_failed_or_was_cancelled_wants_nothing_and_hides_none_that_was_done() -> None:
    """B tainted the node, too, behind a message that failed; its second taint was cancelled."""
    bench = begun(
        rule("a", TAINT, TAINT_ALSO),
        rule("b", TELL | {"onFailure": "hold"}, TAINT, WAIT, TAINT_ALSO, code=48),
    )
    bench.one()
    failed = next(key for key in bench.sent if "/b/0" in key)
    bench.outcomes[failed] = Outcome(key=failed, delivered=True)
    bench.one()
    spoilt = replace(bench.session().holds[1].results[0], result=Result.FAILED)
    hold = bench.session().holds[1]
    known = replace(hold, results=(spoilt, *hold.results[1:]))
    bench.change(session=replace(bench.session(), holds=(bench.session().holds[0], known)))
    bench.change(mode=NodeMode.NOTIFY_ONLY)
    bench.one(seconds=60.0)
    assert [one.result for one in bench.session().holds[1].results][-1] is Result.CANCELLED

    assert left(bench, 48).untaint == (ALSO,)
    assert bench.nodes["n1"].taints == (OURS,)


# -- what never is undone ------------------------------------------------------------------


def test_what_a_policy_never_undoes_stands_as_if_it_had_been_there_before() -> None:
    bench = begun(rule("a", CORDON, TAINT, when="never"), rule("b", CORDON, TAINT, code=48))
    left(bench, 48)
    session = bench.session()
    assert session.before == Before(cordoned=True, taints=(OURS,))
    assert session.added == Added()
    left(bench)
    assert bench.nodes["n1"].session is None
    assert (bench.cordoned(), bench.nodes["n1"].taints) == (True, (OURS,))


def test_a_policy_that_never_undoes_keeps_only_what_it_wanted_itself() -> None:
    bench = begun(rule("a", TAINT, when="never"), rule("b", CORDON, TAINT_ALSO, code=48))
    left(bench, 48)
    session = bench.session()
    assert session.before == Before(taints=(OURS,))
    assert session.added == Added(cordoned=True, taints=(ALSO,))
    left(bench)
    assert (bench.cordoned(), bench.nodes["n1"].taints) == (False, (OURS,))


def test_a_cordon_from_before_is_not_given_twice() -> None:
    bench = begun(rule("a", CORDON, when="never"), rule("b", TAINT, code=48), unschedulable=True)
    left(bench, 48)
    assert bench.session().before == Before(cordoned=True)
    assert bench.session().added == Added(taints=(OURS,))


# -- what was there before, and goes -------------------------------------------------------


def test_whose_cordon_from_before_goes_begins_at_its_cordon_and_says_nothing_twice() -> None:
    bench = begun(
        rule("a", TELL, LABEL, CORDON, TAINT_ALSO),
        rule("b", LABEL, code=48),
        unschedulable=True,
        taints=(ALSO,),
    )
    other = bench.session().holds[1]
    sent = set(bench.sent)
    bench.change(unschedulable=False)
    bench.one(seconds=5.0)
    bench.one(seconds=5.0)
    session = bench.session()
    assert bench.cordoned()
    assert session.before == Before(cordoned=False, taints=(ALSO,))
    assert session.added.cordoned
    assert set(bench.sent) == sent
    assert session.holds[1] == other, "the cordon is no matter of its own"
    assert bench.nodes["n1"].labels["example.com/a"] == "x"


def test_whose_taint_from_before_goes_begins_at_that_taint_and_from_now() -> None:
    bench = begun(
        rule("a", LABEL, TAINT, TAINT_ALSO, {"approve": {"to": ["log"]}}), taints=(OURS, ALSO)
    )
    bench.one()
    bench.change(taints=(OURS,))
    decision = bench.one(seconds=5.0)
    assert decision.holds == (Hold("a", "order", "waits for its turn"),)
    assert decision.next_look == bench.now + 1.0
    assert (bench.session().holds[0].step, bench.session().holds[0].step_since) == (2, bench.now)
    bench.one()
    session = bench.session()
    assert bench.nodes["n1"].taints == (OURS, ALSO)
    assert session.added.taints == (ALSO,)
    (hold,) = session.holds
    assert [(one.step, one.at) for one in hold.results if one.step < 3] == [
        (0, bench.now - 5.0),
        (1, bench.now - 5.0),
        (2, bench.now),
    ]
    assert hold.step_since == bench.now


def test_who_waits_for_people_is_not_begun_again_by_a_cordon_that_goes() -> None:
    bench = begun(rule("a", CORDON), unschedulable=True)
    session = bench.session()
    stuck = replace(session.holds[0], state=HoldState.ESCALATED)
    bench.change(session=replace(session, holds=(stuck,)), unschedulable=False)
    bench.one(seconds=5.0)
    bench.one(seconds=5.0)
    assert bench.session().holds[0].state is HoldState.ESCALATED
    assert not bench.cordoned()
