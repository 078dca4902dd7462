"""What a decision holds back altogether, and says so: every write paused, dry-run of a whole world.

And what the rest of a draft keeps apart: whose change is whose, whose work stands still.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remediator.decide.decision import Hold, SendMessage, Urgency
from remediator.decide.facts import NodeMode
from remediator.decide.ledger import Pause
from remediator.decide.refusals import UNDO
from remediator.policy.model import RemediationPolicy
from tests.unit.decide.build import (
    START,
    Bench,
    alert,
    alive,
    ledger,
    node,
    patch_of,
    policies,
    policy,
    xid,
)


TELL: dict[str, Any] = {"notify": {"to": ["log"]}}
JOB: dict[str, Any] = {"job": {"template": "reset"}, "timeout": "1h"}


def cordoned(*steps: dict[str, Any]) -> Bench:
    bench = Bench(policy(steps=[{"cordon": {}}, *steps], recover={"for": "0s"}))
    bench.see(node(faults=(xid(),)))
    bench.one()
    bench.one()
    return bench


def suspended(bench: Bench) -> dict[str, bool]:
    """Whether each piece of work stands still, by action."""
    return {action: one.suspended for action, one in bench.works.items()}


def paused(bench: Bench) -> None:
    bench.ledger.pause = Pause(by="ann", at="now", reason="move", all=True)


def in_dry_run(bench: Bench) -> None:
    bench.ledger.cluster = ledger(mode="DryRun").cluster


def node_in_dry_run(bench: Bench) -> None:
    bench.change(mode=NodeMode.DRY_RUN)


@pytest.mark.parametrize(
    ("stop", "policy_of", "guard", "reason"),
    [
        (paused, "", "pause", "every write is paused by ann"),
        (in_dry_run, "bus", "mode", "the cluster's mode is DryRun"),
        (node_in_dry_run, "bus", "mode", "the node's mode is dry-run"),
    ],
)
def test_work_stands_still_and_why_is_said(
    stop: Any, policy_of: str, guard: str, reason: str
) -> None:
    bench = cordoned(JOB)
    assert suspended(bench) == {"job": False}
    stop(bench)
    decision = bench.one(seconds=1.0)
    assert patch_of(decision) is None
    assert Hold(policy_of, guard, reason) in decision.holds
    assert suspended(bench) == {"job": True}
    assert bench.cordoned()


def test_the_end_of_a_session_waits_too_and_nobody_is_told_before_it_is_true() -> None:
    bench = cordoned()
    paused(bench)
    bench.now += 1.0
    bench.fault()
    decision = bench.one()
    assert patch_of(decision) is None
    assert decision.holds == (Hold("bus", "pause", "every write is paused by ann"),)
    assert decision.ended is None, "for the record, either"
    assert not bench.sent
    bench.ledger.pause = None
    bench.one(seconds=1.0)
    assert not bench.cordoned()
    (said,) = bench.sent.values()
    assert said == SendMessage(
        key=next(iter(bench.sent)),
        to=bench.ledger.cluster.alerts_to,
        title="n1: session ended",
        text="recovered",
        node="n1",
        policy="bus",
        urgency=Urgency.INFO,
        resolves=True,
        kind="end",
    )


def three(**second: Any) -> tuple[RemediationPolicy, ...]:
    return (
        policy("a", steps=[{"taint": {}}], recover={"for": "0s"}),
        policy("b", when=[{"xid": {"codes": [48]}}], steps=[TELL]),
        policy("c", when=[{"xid": {"codes": [63]}}], **second),
    )


def test_a_policy_that_may_not_let_go_yet_has_not() -> None:
    bench = Bench(*three())
    bench.see(node(faults=(xid(), xid(48))))
    bench.one()
    paused(bench)
    bench.now += 1.0
    bench.fault(xid(48))
    decision = bench.one()
    assert (decision.left, len(bench.session().holds)) == ((), 2)
    bench.ledger.pause = None
    assert [one.policy for one in bench.one(seconds=1.0).left] == ["a"]


def test_a_decision_says_what_matched_how_far_it_is_and_what_comes_by_itself() -> None:
    bench = cordoned({"wait": {"for": "1m"}}, TELL)
    decision = bench.one(seconds=1.0)
    assert (decision.matched, decision.reasons) == (("bus",), ("Xid 79 on 0000:9b:00.0",))
    assert decision.steps == ("bus: 2/3 wait",)
    assert [(one.policy, one.at) for one in decision.dues] == [("bus", START + 60.0)]
    assert decision.next_look == START + 60.0
    assert decision.failed == ()


def test_what_is_undone_and_what_a_step_changes_are_told_apart_in_one_patch() -> None:
    """So that a refusal of the undo is not taken for one of the step."""
    bench = Bench(*three(steps=[{"label": {"set": {"example.com/a": "x"}}}]))
    bench.see(node(faults=(xid(), xid(48))))
    bench.one()
    bench.now += 1.0
    bench.fault(xid(48), xid(63))
    patch = patch_of(bench.one())
    assert patch is not None
    assert patch.untaint
    assert patch.labels == {"example.com/a": "x"}
    assert patch.changes == (UNDO, ("c", 0))


def test_a_silence_of_what_one_policy_rests_on_stops_its_work_and_no_other_s() -> None:
    """No policy names that alert any more: only whoever began for it stands still."""
    drains = policy("a", steps=[{"cordon": {}}, {"drain": {}}])
    named = {"steps": [JOB], "when": [{"alert": {"name": "GpuFell"}}]}
    bench = Bench(drains, policy("b", **named))
    bench.known = alive()
    bench.see(node(faults=(xid(),), alerts=(alert(),)))
    for _ in range(3):
        bench.one(seconds=1.0)
    assert suspended(bench) == {"drain": False, "job": False}
    edited = policy("b", **(named | {"when": [{"alert": {"name": "Other"}}]}))
    bench.policies = policies(drains, edited, loaded_at=START + 3.0)
    bench.change(alerts=(replace(alert(), suppressed=True),))
    decision = bench.one(seconds=1.0)
    assert suspended(bench) == {"drain": False, "job": True}
    assert [(one.policy, one.guard) for one in decision.holds] == [("b", "silence")]
