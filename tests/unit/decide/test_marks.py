"""Labels and annotations, uncordon and untaint as steps: what is ours comes and goes."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.decide.facts import MAX_ANNOTATION
from remediator.decide.session import Added, HoldState, Mark, Taint
from tests.unit.decide.build import GPU, Bench, node, patch_of, policy, xid


KEY = "nvidia.com/gpu.deploy.device-plugin"
PAUSED = {"label": {"set": {KEY: "false"}}}
SCALE = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
KEPT = {"annotate": {"set": {SCALE: "true"}}}
OURS = Taint(key="gpu-remediator.io/unhealthy", effect="NoSchedule")


def bench(*steps: dict[str, Any], more: tuple[Any, ...] = (), **facts: Any) -> Bench:
    made = Bench(policy(steps=list(steps), recover={"for": "0s"}), *more)
    made.see(node(faults=(xid(),), **facts))
    made.one()
    return made


def recover(made: Bench) -> None:
    made.now += 1.0
    made.fault()
    made.one()
    assert made.nodes["n1"].session is None


def label(made: Bench, key: str = KEY) -> str | None:
    return made.nodes["n1"].labels.get(key)


@pytest.mark.parametrize("before", [None, "true"])
def test_a_label_comes_and_the_old_value_returns(before: str | None) -> None:
    labels = GPU if before is None else {**GPU, KEY: before}
    made = bench(PAUSED, labels=labels)
    assert label(made) == "false"
    assert made.session().added.labels == (Mark(key=KEY, value="false", old=before),)
    recover(made)
    assert label(made) == before


def test_an_annotation_comes_and_goes() -> None:
    made = bench(KEPT, annotations={"example.com/other": "1"})
    assert made.nodes["n1"].annotations == {"example.com/other": "1", SCALE: "true"}
    recover(made)
    assert made.nodes["n1"].annotations == {"example.com/other": "1"}


def test_a_value_that_was_so_before_is_not_ours() -> None:
    made = bench(PAUSED, {"cordon": {}}, labels={**GPU, KEY: "false"})
    assert made.session().added.labels == ()
    recover(made)
    assert label(made) == "false"


@pytest.mark.parametrize("theirs", [None, "true", "maybe"])
def test_a_persons_change_wins(theirs: str | None) -> None:
    made = bench(PAUSED)
    made.change(labels=GPU if theirs is None else {**GPU, KEY: theirs})
    made.one(seconds=1.0)
    assert label(made) == theirs
    recover(made)
    assert label(made) == theirs


def test_a_long_annotation_of_others_is_left_alone() -> None:
    long = "x" * (MAX_ANNOTATION + 1)
    made = bench(KEPT, annotations={SCALE: long})
    assert made.nodes["n1"].annotations[SCALE] == long
    (hold,) = made.session().holds
    assert hold.results[0].note == f"left as it is: {SCALE}"
    assert not made.session().added.annotations


def test_a_label_is_held_until_the_last_policy_lets_go() -> None:
    other = policy("other", when=[{"xid": {"codes": [48]}}], steps=[PAUSED], recover={"for": "0s"})
    made = bench(PAUSED, more=(other,))
    made.fault(xid(), xid(48))
    made.one(seconds=1.0)
    assert {hold.policy for hold in made.session().holds} == {"bus", "other"}
    made.now += 1.0
    made.fault(xid(48))
    made.one()
    assert [hold.policy for hold in made.session().holds] == ["other"]
    assert label(made) == "false"
    recover(made)
    assert label(made) is None


def test_a_policy_that_never_undoes_leaves_its_label() -> None:
    made = Bench(policy(steps=[PAUSED], recover={"when": "never", "for": "0s"}))
    made.see(node(faults=(xid(),)))
    made.one()
    recover(made)
    assert label(made) == "false"


def test_uncordon_and_untaint_take_ours_away_before_the_end() -> None:
    made = bench({"cordon": {}}, {"taint": {}}, {"untaint": {}}, {"uncordon": {}})
    made.one(seconds=1.0)
    assert not made.cordoned()
    assert made.nodes["n1"].taints == ()
    (hold,) = made.session().holds
    assert hold.state is HoldState.DONE
    assert made.session().added.taints == ()
    for _ in range(3):
        made.one(seconds=5.0)
    assert made.nodes["n1"].session is not None, "no person took it back"
    assert not made.cordoned()


def test_uncordon_and_untaint_leave_what_is_not_ours() -> None:
    made = bench({"uncordon": {}}, {"untaint": {}}, unschedulable=True, taints=(OURS,))
    made.one(seconds=1.0)
    assert made.cordoned()
    assert made.nodes["n1"].taints == (OURS,)


def test_uncordon_leaves_what_another_policy_holds() -> None:
    other = policy("zother", steps=[{"cordon": {}}, {"taint": {}}])
    made = bench(
        {"cordon": {}},
        {"taint": {}},
        {"wait": {"for": "1m"}},
        {"uncordon": {}},
        {"untaint": {}},
        more=(other,),
    )
    made.one(seconds=61.0)
    assert made.session().holds[0].state is HoldState.DONE
    assert made.cordoned()
    assert made.nodes["n1"].taints == (OURS,)


@pytest.mark.parametrize("theirs", [None, "mine"])
def test_a_later_step_does_not_overwrite_a_person(theirs: str | None) -> None:
    again = {"label": {"set": {KEY: "again"}}}
    made = bench(PAUSED, {"wait": {"for": "1m"}}, again)
    made.change(labels=GPU if theirs is None else {**GPU, KEY: theirs})
    made.one(seconds=60.0)
    assert label(made) == theirs
    assert made.session().holds[0].results[-1].note == f"left as it is: {KEY}"
    recover(made)
    assert label(made) == theirs


def test_a_later_step_changes_ours_and_the_oldest_value_returns() -> None:
    again = {"label": {"set": {KEY: "again"}}}
    made = bench(PAUSED, {"wait": {"for": "1m"}}, again, labels={**GPU, KEY: "true"})
    made.one(seconds=60.0)
    assert label(made) == "again"
    recover(made)
    assert label(made) == "true"


def test_uncordon_and_untaint_undo_what_is_on_the_node_and_say_so() -> None:
    """Not only what was to be written in the same patch."""
    made = bench(
        {"cordon": {}}, {"taint": {}}, {"wait": {"for": "1m"}}, {"uncordon": {}}, {"untaint": {}}
    )
    assert made.cordoned()
    assert OURS in made.nodes["n1"].taints
    decision = made.one(seconds=61.0)
    assert not made.cordoned()
    assert not made.nodes["n1"].taints
    assert made.session().added == Added()
    patch = patch_of(decision)
    assert patch is not None
    assert patch.unschedulable is False
    assert patch.untaint == (OURS,)
    assert patch.policy == "bus"
    assert patch.why.startswith("uncordon by bus: Xid 79")
    assert [one.note for one in made.session().holds[0].results if one.note] == []


def test_a_second_uncordon_says_why_it_does_nothing() -> None:
    made = bench(
        {"cordon": {}}, {"wait": {"for": "1m"}}, {"uncordon": {}}, {"uncordon": {}}, {"untaint": {}}
    )
    made.one(seconds=61.0)
    notes = [one.note for one in made.session().holds[0].results if one.action.startswith("un")]
    assert notes == ["", "the cordon is not ours", "there is no such taint of ours"]
