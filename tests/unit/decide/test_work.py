"""Steps that take time: begun on the node first, followed, ended, stopped, never two at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from remediator.decide.core import World
from remediator.decide.decision import Outcome, PatchNode, Work
from remediator.decide.facts import NodeMode
from remediator.decide.ledger import Ledger, LedgerState, Pause
from remediator.decide.requests import Request, Verb
from remediator.decide.session import History, HoldState, PolicyHold, Result, Session
from remediator.decide.work import LOOK_FIRST
from tests.unit.decide.build import Bench, ledger, node, policies, policy, xid


MINUTE = 60.0
DRAIN = {"drain": {}, "timeout": "30m"}
JOB = {"job": {"template": "reset"}, "timeout": "10m"}


def bench(*steps: dict[str, Any], more: tuple[Any, ...] = (), **spec: Any) -> Bench:
    """One node with Xid 79, and a policy with these steps."""
    guards = ledger(
        budgets=[{"maxUnavailable": "100%", "per": "cluster"}],
        rates=dict.fromkeys(("cordon", "drain", "job"), "100/1m"),
    )
    made = Bench(policy(steps=list(steps), **spec), *more, guards=guards)
    made.see(node(faults=(xid(),)))
    return made


def until(made: Bench, *actions: str) -> Bench:
    """Decide until exactly this work is wanted."""
    held: object = None
    for _ in range(10):
        held = made.one(seconds=1.0).holds
        if set(made.works) == set(actions):
            return made
    raise AssertionError(f"wanted is {set(made.works)}; {held}")


def hold(made: Bench, name: str = "bus") -> PolicyHold:
    found = made.session().hold(name)
    assert found is not None
    return found


def end(made: Bench, action: str, *, well: bool = True, note: str = "") -> None:
    key = made.works[action].key
    made.outcomes[key] = Outcome(key=key, delivered=well, note=note)
    made.one()


def results(made: Bench, name: str = "bus") -> list[tuple[str, str]]:
    return [(one.action, one.result.value) for one in hold(made, name).results]


def test_work_comes_behind_the_patch_that_says_it_began_and_in_every_decision_after() -> None:
    made = bench({"cordon": {}}, DRAIN)
    made.one()
    decision = made.one(seconds=1.0)
    patch, work = decision.effects[:2]
    assert isinstance(patch, PatchNode)
    assert isinstance(work, Work)
    assert isinstance(patch.session, Session)
    (written,) = patch.session.holds
    assert written.work_since == work.since == made.now
    assert patch.action == "drain"
    assert patch.disruptive
    assert "budget" in patch.allowed_by
    assert work.deadline == work.since + 30 * MINUTE
    for _ in range(3):
        again = made.one(seconds=5.0)
        assert [effect for effect in again.effects if isinstance(effect, Work)] == [work]
        assert not any(isinstance(effect, PatchNode) for effect in again.effects)
        assert again.next_look is not None
        assert again.next_look <= work.deadline


def test_a_refused_patch_wants_no_work() -> None:
    made = bench({"cordon": {}}, DRAIN)
    made.one()
    made.ledger.pause = Pause(by="ann", at="now", all=True)
    made.one(seconds=1.0)
    assert not made.works


def test_done_work_leads_to_the_next_step() -> None:
    made = until(bench({"cordon": {}}, DRAIN, JOB), "drain")
    end(made, "drain", note="3 pods")
    assert results(made) == [("cordon", "done"), ("drain", "done")]
    assert hold(made).results[1].note == "3 pods"
    until(made, "job")
    assert made.works["job"].attempt == 1
    end(made, "job")
    assert hold(made).state is HoldState.DONE
    assert hold(made).work_since is None


@pytest.mark.parametrize(
    ("on_failure", "state", "step"),
    [("hold", "held", 1), ("escalate", "escalated", 1), ("continue", "done", 2)],
)
@pytest.mark.parametrize("late", [True, False])
def test_failed_and_late_work_does_what_on_failure_says(
    on_failure: str, state: str, step: int, *, late: bool
) -> None:
    made = until(bench({"cordon": {}}, {**JOB, "onFailure": on_failure}), "job")
    if late:
        made.one(seconds=10 * MINUTE + 1.0)
    else:
        end(made, "job", well=False, note="exit code 3")
    assert hold(made).state.value == state
    assert hold(made).step == step
    assert results(made)[-1] == ("job", "timed-out" if late else "failed")
    assert not made.works
    assert "exit code 3" in made.texts() or late


def test_a_job_is_tried_as_often_as_it_may_each_time_under_another_key() -> None:
    step = {"job": {"template": "reset", "maxAttempts": 2}}
    made = until(bench({"cordon": {}}, step), "job")
    first = made.works["job"]
    end(made, "job", well=False)
    assert hold(made).state is HoldState.RUNNING
    until(made, "job")
    second = made.works["job"]
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.key != second.key
    end(made, "job", well=False)
    assert hold(made).state is HoldState.HELD

    made.change(request=Request(verb=Verb.RETRY, by="ann", at="now"))
    until(made, "job")
    assert made.works["job"].attempt == 3
    end(made, "job", well=False)
    assert hold(made).state is HoldState.RUNNING


def test_a_reboot_is_proven_by_the_new_boot_id_and_readiness_only() -> None:
    step = {"job": {"template": "reboot", "success": "reboot"}}
    made = until(bench({"cordon": {}}, step), "job")
    end(made, "job", note="complete")
    assert results(made) == [("cordon", "done")]
    made.change(ready=False)
    made.change(boot_id="boot-2")
    made.one()
    assert results(made) == [("cordon", "done")]
    made.change(ready=True)
    made.one()
    assert results(made)[-1] == ("job", "done")


def test_a_boot_id_that_becomes_known_is_no_reboot() -> None:
    step = {"job": {"template": "reboot", "success": "reboot"}}
    made = bench({"cordon": {}}, step)
    made.change(boot_id="")
    made.one(seconds=2.0)
    assert made.cordoned()
    for _ in range(3):
        assert [one.guard for one in made.one(seconds=2.0).holds] == ["facts"]
        assert not made.works
    made.change(boot_id="boot-1")
    until(made, "job")
    assert results(made) == [("cordon", "done")]
    session = made.session()
    begun = msgspec.structs.replace(session.holds[0], work_boot_id="")
    made.change(session=msgspec.structs.replace(session, holds=(begun,)))
    made.one(seconds=2.0)
    assert results(made) == [("cordon", "done")], "begun before that was asked for"


def test_a_job_that_failed_without_a_reboot_failed() -> None:
    step = {"job": {"template": "reboot", "success": "reboot"}}
    made = until(bench({"cordon": {}}, step), "job")
    end(made, "job", well=False)
    assert results(made)[-1] == ("job", "failed")


def test_only_what_was_said_after_the_job_ended_is_a_recovery() -> None:
    made = until(bench({"cordon": {}}, JOB, recover={"for": "0s"}), "job")
    made.now += 5.0
    made.fault()
    made.one()
    assert set(made.works) == {"job"}, "a job is seen through"
    made.now += 1.0
    end(made, "job")
    made.one(seconds=30.0)
    assert made.cordoned(), "the agent has not spoken since"
    made.fault()
    made.one(seconds=1.0)
    assert not made.cordoned()


def test_a_drain_that_is_to_finish_outlives_its_fault_and_nothing_follows_it() -> None:
    drain = {"drain": {"onRecovery": "finish"}}
    made = until(bench({"cordon": {}}, drain, JOB, recover={"for": "1m"}), "drain")
    made.now += 5.0
    made.fault()
    made.one()
    assert set(made.works) == {"drain"}
    end(made, "drain")
    assert not made.works, "no job for a fault that is gone"
    assert results(made)[-1] == ("drain", "done")
    made.fault()
    made.one(seconds=1.0)
    made.fault()
    made.one(seconds=MINUTE + 1.0)
    assert not made.cordoned()


def test_a_recovery_stops_a_drain_and_it_is_cancelled_not_done() -> None:
    made = until(bench({"cordon": {}}, DRAIN, recover={"for": "1m"}), "drain")
    made.now += 5.0
    made.fault()
    made.one()
    assert not made.works
    assert results(made)[-1] == ("drain", "cancelled")
    made.fault(xid())
    until(made, "drain")
    made.fault()
    made.one(seconds=1.0)
    assert results(made).count(("drain", "cancelled")) == 1, "it comes and goes in one place"
    decision = made.one(seconds=MINUTE + 1.0)
    assert not made.cordoned()
    assert decision.ended is not None
    assert decision.ended.holds[0].results[-1].result is Result.CANCELLED


@pytest.mark.parametrize("how", ["uncordon", "cancel", "policy", "deleting"])
@pytest.mark.parametrize("step", [DRAIN, JOB])
def test_whoever_ends_it_ends_the_work(how: str, step: dict[str, Any]) -> None:
    action = next(iter(step))
    made = until(bench({"cordon": {}}, step), action)
    if how == "uncordon":
        made.change(unschedulable=False)
    elif how == "cancel":
        made.change(request=Request(verb=Verb.CANCEL, by="ann", at="now"))
    elif how == "policy":
        made.policies = replace(made.policies, active={})
    else:
        made.change(deleting=True)
    decision = made.one(seconds=1.0)
    assert not made.works
    if how == "policy":
        assert results(made)[-1] == (action, "cancelled")
    elif how != "deleting":
        assert decision.ended is not None
        assert decision.ended.holds[0].results[-1].result is Result.CANCELLED
        assert isinstance(made.nodes["n1"].history, History)


def test_work_is_not_begun_while_a_guard_holds_and_its_deadline_does_not_run() -> None:
    made = bench({"cordon": {}}, DRAIN)
    made.one()
    made.ledger.pause = Pause(by="ann", at="now")
    decision = made.one(seconds=1.0)
    assert [(one.policy, one.guard) for one in decision.holds] == [("bus", "pause")]
    made.one(seconds=100 * MINUTE)
    assert hold(made).work_since is None
    made.ledger.pause = None
    made.fault(xid())
    until(made, "drain")
    assert made.works["drain"].deadline == made.now + 30 * MINUTE


def test_a_pause_of_everything_suspends_work_and_its_deadline() -> None:
    made = until(bench({"cordon": {}}, DRAIN), "drain")
    before = made.works["drain"]
    made.ledger.pause = Pause(by="ann", at="now", all=True)
    made.one(seconds=MINUTE)
    assert made.works["drain"].suspended
    made.one(seconds=100 * MINUTE)
    assert made.works["drain"].suspended
    made.ledger.pause = None
    made.one(seconds=MINUTE)
    after = made.works["drain"]
    assert not after.suspended
    assert after.key == before.key
    assert after.deadline == pytest.approx(before.deadline + 101 * MINUTE)


@pytest.mark.parametrize("world", [World.REAL, World.VIRTUAL])
def test_an_open_breaker_suspends_a_drain_under_way_and_its_deadline(world: World) -> None:
    made = bench({"cordon": {}}, DRAIN)
    made.world = world
    if world is World.VIRTUAL:
        made.policies = policies(policy(steps=[{"cordon": {}}, DRAIN], mode="DryRun"))
    until(made, "drain")
    before = made.works["drain"]
    made.ledger.open_breaker("bus", "a storm", made.now)
    assert "n1" in made.ledger.take_woken(), "it is stopped at once"
    decision = made.one(seconds=1.0)
    assert made.works["drain"].suspended
    assert [one.reason for one in decision.holds if one.guard == "breaker"] == [
        "no further eviction, breaker open: a storm; `remediator breaker reset bus` closes it"
    ]
    made.one(seconds=100 * MINUTE)
    assert made.works["drain"].suspended
    made.ledger.reset_breaker("bus", keep=True)
    assert "n1" in made.ledger.take_woken(), "it goes on at once"
    made.one(seconds=1.0)
    after = made.works["drain"]
    assert (after.suspended, after.key) == (False, before.key)
    assert after.deadline == pytest.approx(before.deadline + 100 * MINUTE + 1.0)


def test_a_drain_that_has_ended_is_recorded_though_the_breaker_opened() -> None:
    made = until(bench({"cordon": {}}, DRAIN), "drain")
    made.ledger.open_breaker("bus", "a storm", made.now)
    end(made, "drain")
    assert results(made)[-1] == ("drain", "done")


def test_the_breaker_of_another_policy_and_another_kind_of_work_stop_nothing() -> None:
    made = until(bench({"cordon": {}}, DRAIN, JOB), "drain")
    made.ledger.open_breaker("other", "a storm", made.now)
    made.one(seconds=1.0)
    assert not made.works["drain"].suspended
    end(made, "drain")
    until(made, "job")
    made.ledger.open_breaker("bus", "a storm", made.now)
    made.one(seconds=1.0)
    assert not made.works["job"].suspended, "half a reset is none"


def test_what_a_reset_dropped_is_drained_no_further_and_recovers() -> None:
    made = until(bench({"cordon": {}}, DRAIN, recover={"for": "1m"}), "drain")
    made.ledger.open_breaker("bus", "a storm", made.now)
    made.ledger.reset_breaker("bus", keep=False)
    made.one(seconds=1.0)
    assert made.works["drain"].suspended
    made.now += 1.0
    made.fault()
    made.one(seconds=1.0)
    made.one(seconds=2 * MINUTE)
    assert not made.cordoned()


def test_an_opted_out_node_keeps_its_work_as_it_is() -> None:
    made = until(bench({"cordon": {}}, JOB), "job")
    made.change(mode=NodeMode.DISABLED)
    made.one(seconds=1.0)
    assert made.works["job"].suspended


def test_a_node_that_only_wants_news_has_its_work_cancelled() -> None:
    made = until(bench({"cordon": {}}, JOB), "job")
    made.change(mode=NodeMode.NOTIFY_ONLY)
    made.one(seconds=1.0)
    assert not made.works
    assert results(made)[-1] == ("job", "cancelled")


def test_stale_facts_permit_a_cordon_but_no_new_drain_or_job() -> None:
    made = bench({"cordon": {}}, DRAIN)
    made.now += 3600.0
    made.one()
    assert made.cordoned()
    decision = made.one(seconds=2.0)
    assert not made.works
    assert ("facts", "bus") in [(one.guard, one.policy) for one in decision.holds]
    made.fault(xid())
    until(made, "drain")
    made.one(seconds=3600.0 / 4)
    assert set(made.works) == {"drain"}, "what has begun goes on"


@pytest.mark.parametrize("step", [DRAIN, JOB])
def test_one_drain_and_one_job_at_a_time_on_a_node(step: dict[str, Any]) -> None:
    action = next(iter(step))
    other = policy("second", steps=[{"cordon": {}}, step])
    made = bench({"cordon": {}}, step, more=(other,))
    until(made, action)
    (work,) = made.works.values()
    first, second = ("bus", "second") if work.policy == "bus" else ("second", "bus")
    held: set[tuple[str, str]] = set()
    for _ in range(3):
        decision = made.one(seconds=1.0)
        assert len(made.works) == 1
        assert made.works[action].policy == first
        held.update((one.policy, one.guard) for one in decision.holds)
    assert (second, "order") in held
    end(made, action)
    until(made, action)
    assert made.works[action].policy == second


def test_a_drain_and_a_job_of_two_policies_go_side_by_side() -> None:
    other = policy("second", steps=[{"cordon": {}}, JOB])
    made = until(bench({"cordon": {}}, DRAIN, more=(other,)), "drain", "job")
    assert {one.policy for one in made.works.values()} == {"bus", "second"}


def test_a_policy_may_begin_with_work_and_begins_not_before_it_may() -> None:
    made = bench(DRAIN)
    made.ledger.pause = Pause(by="ann", at="now")
    made.one()
    assert made.nodes["n1"].session is None
    made.ledger.pause = None
    made.one(seconds=1.0)
    assert set(made.works) == {"drain"}
    assert not made.cordoned()


def test_dry_run_assumes_that_work_ends_well_after_a_while() -> None:
    made = bench({"cordon": {}}, DRAIN, JOB, mode="DryRun")
    made.world = World.VIRTUAL
    made.one()
    for _ in range(20):
        made.one(seconds=60.0)
        made.fault(xid())
    assert results(made) == [("cordon", "done"), ("drain", "done"), ("job", "done")]
    assert hold(made).results[-1].note == "assumed in dry-run"


def test_a_new_leader_wants_the_work_that_the_session_says_began() -> None:
    made = until(bench({"cordon": {}}, JOB), "job")
    work = made.works["job"]
    made.ledger = ledger(started=made.now)
    made.outcomes.clear()
    made.see(*made.nodes.values())
    made.one(seconds=1.0)
    assert made.works["job"] == work


def test_a_new_leader_takes_no_policy_for_gone_before_it_has_settled() -> None:
    """The leader before may have read a file that has not come here yet."""
    made = until(bench({"cordon": {}}, JOB), "job")
    work, known = made.works["job"], made.policies
    made.ledger = ledger(started=made.now, settling="60s")
    made.policies = policies()
    made.one(seconds=59.0)
    assert hold(made).work_since == work.since
    assert "orphaned" not in made.texts()

    made.policies = known
    made.one()
    assert made.works["job"] == work

    made.policies = policies()
    made.one(seconds=1.0)
    assert hold(made).work_since is None
    assert "orphaned" in made.texts()


def taken_over(made: Bench, *, after: float, kept: bool = False) -> None:
    """Have another leader begin to lead, which knows what stands on the nodes only.

    ``kept``: and what the ledger before had saved.
    """
    made.now += after
    before = made.ledger
    made.ledger = Ledger(cluster=before.cluster, started=made.now)
    made.ledger.pause = before.pause
    if kept:
        saved = msgspec.json.encode(before.state())
        made.ledger.restore(msgspec.json.decode(saved, type=LedgerState))
    made.outcomes.clear()
    made.see(*made.nodes.values())


def test_work_that_ended_while_no_controller_ran_is_not_late_before_it_was_looked_at() -> None:
    made = until(bench({"cordon": {}}, JOB), "job")
    taken_over(made, after=60 * MINUTE)
    decision = made.one()
    assert set(made.works) == {"job"}
    assert decision.next_look == pytest.approx(made.now + LOOK_FIRST)
    made.now += LOOK_FIRST / 2
    end(made, "job", note="complete")
    assert results(made)[-1] == ("job", "done")


def test_what_nobody_can_look_at_is_late_after_a_while() -> None:
    made = until(bench({"cordon": {}}, JOB), "job")
    taken_over(made, after=60 * MINUTE)
    made.one()
    made.one(seconds=LOOK_FIRST - 1.0)
    assert set(made.works) == {"job"}
    made.one(seconds=1.0)
    assert results(made)[-1] == ("job", "timed-out")


@pytest.mark.parametrize("early", [True, False])
def test_the_time_of_work_that_was_taken_over_is_not_longer_than_it_was(*, early: bool) -> None:
    made = until(bench({"cordon": {}}, JOB), "job")
    deadline = made.works["job"].deadline
    if early:
        taken_over(made, after=MINUTE)
    made.one()
    made.one(seconds=deadline - made.now - 0.5)
    assert set(made.works) == {"job"}
    made.one(seconds=0.5)
    assert results(made)[-1] == ("job", "timed-out")


def test_a_worker_that_has_looked_behind_the_deadline_says_that_it_is_late() -> None:
    made = until(bench({"cordon": {}}, JOB), "job")
    taken_over(made, after=60 * MINUTE)
    made.one()
    key = made.works["job"].key
    made.outcomes[key] = Outcome(key=key, delivered=False, late=True, note="there is no Job")
    made.one(seconds=1.0)
    (late,) = [one for one in hold(made).results if one.action == "job"]
    assert late.result is Result.TIMED_OUT
    assert late.note == "it did not end within 10m: there is no Job"


def test_how_work_stood_at_its_deadline_is_said() -> None:
    made = until(bench({"cordon": {}}, DRAIN), "drain")
    work, left = made.works["drain"], "1 held by a PodDisruptionBudget: team/db"
    made.outcomes[work.key] = Outcome(key=work.key, delivered=False, pending=True, note=left)
    made.one(seconds=1.0)
    assert set(made.works) == {"drain"}, "what is under way has not failed"
    made.one(seconds=work.deadline - made.now)
    assert results(made)[-1] == ("drain", "timed-out")
    assert hold(made).results[-1].note == f"it did not end within 30m: {left}"


def test_work_that_was_suspended_is_looked_at_before_it_may_be_late() -> None:
    made = until(bench({"cordon": {}}, JOB), "job")
    made.one(seconds=10 * MINUTE - 1.0)
    made.ledger.pause = Pause(by="ann", at="now", all=True)
    made.one(seconds=0.5)
    made.ledger.pause = None
    made.one(seconds=60 * MINUTE)
    made.one(seconds=2.0)
    end(made, "job")
    assert results(made)[-1] == ("job", "done")


def suspended(*, after: float = 2 * MINUTE) -> tuple[Bench, float]:
    """Work with a limit of ten minutes, paused after some; and its deadline."""
    made = until(bench({"cordon": {}}, JOB), "job")
    deadline = made.works["job"].deadline
    made.ledger.pause = Pause(by="ann", at="now", all=True)
    assert made.ledger.take_changed()
    made.one(seconds=after)
    assert made.works["job"].suspended
    assert made.ledger.take_changed(), "it is to be saved"
    return made, deadline


@pytest.mark.parametrize("lifted", [True, False])
def test_a_restart_during_a_pause_knows_how_long_work_was_suspended(*, lifted: bool) -> None:
    made, deadline = suspended()
    made.one(seconds=60 * MINUTE)
    taken_over(made, after=30 * MINUTE, kept=True)
    if not lifted:
        patches = [made.one(), made.one(seconds=10 * MINUTE)]
        assert made.works["job"].suspended
        assert not any(isinstance(one, PatchNode) for each in patches for one in each.effects)
        made.now -= 10 * MINUTE
    made.ledger.pause = None
    made.one()
    assert made.works["job"].deadline == pytest.approx(deadline + 90 * MINUTE)
    made.one(seconds=7 * MINUTE)
    made.one(seconds=0.5)
    assert made.works["job"].deadline == pytest.approx(deadline + 90 * MINUTE), "given back once"
    made.one(seconds=MINUTE)
    assert results(made)[-1] == ("job", "timed-out")


def test_a_restart_that_cannot_know_it_gives_work_its_whole_time() -> None:
    made, _ = suspended()
    taken_over(made, after=60 * MINUTE)
    made.one(seconds=1.0)
    assert made.works["job"].suspended
    made.ledger.pause = None
    made.one(seconds=MINUTE)
    assert made.works["job"].deadline == pytest.approx(made.now + 10 * MINUTE)


def test_time_is_given_back_though_the_first_write_after_the_pause_was_lost() -> None:
    made, deadline = suspended()
    made.one(seconds=60 * MINUTE)
    made.ledger.pause = None
    made.decide(write=False)
    made.one(seconds=MINUTE)
    assert made.works["job"].deadline == pytest.approx(deadline + 61 * MINUTE)
    taken_over(made, after=1.0, kept=True)
    made.one()
    assert made.works["job"].deadline == pytest.approx(deadline + 61 * MINUTE), "not twice"


def test_a_pause_of_no_time_gives_nothing_back() -> None:
    made, deadline = suspended()
    made.ledger.pause = None
    made.one()
    made.one(seconds=MINUTE)
    assert made.works["job"].deadline == deadline


def test_what_is_suspended_is_forgotten_with_its_session_and_its_node() -> None:
    made, _ = suspended()
    assert made.ledger.state().suspended
    made.change(session=None)
    assert not made.ledger.state().suspended
    made, _ = suspended()
    made.ledger.forget("uid-n1")
    assert made.ledger.suspensions.since("bus", "uid-n1", began=made.works["job"].since) is None
