"""A session's life: begun with the first change, carried on by results, ended on evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from node_agent.contract import STALE_AFTER_SECONDS
from remediator.decide.core import World
from remediator.decide.decision import NodePhase, Outcome, SendMessage, WriteEvent
from remediator.decide.draft import SOONEST
from remediator.decide.facts import Malformed, NodeMode
from remediator.decide.ledger import Pause
from remediator.decide.requests import Request, Verb
from remediator.decide.session import AnnotationError, HoldState, Result, decode_session, encode
from remediator.policy.model import RemediationPolicy
from tests.unit.decide.build import Bench, ledger, node, patch_of, policies, policy, xid


BAD = (xid(),)
LOG: dict[str, Any] = {"notify": {"to": ["log"]}}
FULL = policy(steps=[{"cordon": {}}, LOG, {"event": {}}])


def sick(*rules: RemediationPolicy, **more: Any) -> Bench:
    bench = Bench(*(rules or (policy(),)))
    bench.see(node(faults=BAD, **more))
    return bench


def in_session(*rules: RemediationPolicy, **more: Any) -> Bench:
    bench = sick(*rules, **more)
    bench.one()
    bench.now += 1
    return bench


def recover(bench: Bench, *, times: int = 1) -> None:
    """Have the fault clear, and wait for ten minutes, or several times as long."""
    bench.now += 1
    for _ in range(times):
        bench.fault()
        bench.one()
        bench.one(seconds=600)


def ask(bench: Bench, verb: Verb) -> None:
    bench.change(request=Request(verb=verb, by="ann", at="2026-01-01T00:00:00Z", reason="mine"))


# -- the beginning ---------------------------------------------------------------------------


def test_the_first_change_and_its_session_are_one_patch_before_all_messages() -> None:
    bench = sick(FULL)
    decision = bench.one()
    patch, *told = decision.effects
    assert patch == patch_of(decision)
    assert patch.unschedulable
    assert bench.session().added.cordoned
    assert [type(one) for one in told] == [SendMessage, WriteEvent]
    assert "(cordoned)" in bench.texts()


def test_a_session_round_trips_through_its_annotation() -> None:
    session = in_session(FULL).session()
    assert decode_session(encode(session), node_uid="uid-n1") == session
    with pytest.raises(AnnotationError, match="belongs to a node with UID"):
        decode_session(encode(session), node_uid="another")


def test_nothing_is_decided_twice() -> None:
    bench = in_session()
    assert bench.one().effects == ()


def test_what_was_cordoned_before_us_stays() -> None:
    bench = in_session(unschedulable=True)
    assert bench.session().before.cordoned
    recover(bench)
    assert bench.nodes["n1"].session is None
    assert bench.cordoned()
    assert "stays cordoned" in bench.texts()


def test_when_the_cordon_before_us_goes_we_cordon_ourselves() -> None:
    bench = in_session(unschedulable=True)
    bench.change(unschedulable=False)
    bench.one()
    bench.one(seconds=1)
    assert bench.session().added.cordoned
    recover(bench)
    assert not bench.cordoned()


# -- messages and their outcomes ---------------------------------------------------------------


def test_a_message_is_said_again_until_its_outcome_is_recorded() -> None:
    bench = in_session(policy(steps=[{"cordon": {}}, LOG]))
    (said,) = bench.one().effects
    assert isinstance(said, SendMessage)
    bench.outcomes[said.key] = Outcome(key=said.key, delivered=False, note="refused")
    bench.one()
    (hold,) = bench.session().holds
    assert hold.undelivered == ()
    assert hold.results[-1].result is Result.FAILED
    assert hold.state is HoldState.DONE
    assert bench.one().effects == ()


def waiting(on_failure: str, *before: dict[str, Any]) -> Bench:
    step = {**LOG, "onFailure": on_failure, "timeout": "1m"}
    return in_session(policy(steps=[*before, step, {"cordon": {}}]))


@pytest.mark.parametrize("on_failure", ["hold", "escalate"])
def test_a_message_that_matters_is_waited_for(on_failure: str) -> None:
    bench = waiting(on_failure)
    (key,) = bench.sent
    assert not bench.cordoned()
    bench.outcomes[key] = Outcome(key=key, delivered=True)
    bench.one()
    bench.one(seconds=1)
    assert bench.cordoned()


@pytest.mark.parametrize(
    ("on_failure", "phase"), [("hold", NodePhase.HELD), ("escalate", NodePhase.ESCALATED)]
)
@pytest.mark.parametrize("outcome", [True, False], ids=["failed", "timed-out"])
def test_a_failed_step_stops_and_people_can_retry_it(
    on_failure: str, phase: NodePhase, *, outcome: bool
) -> None:
    bench = waiting(on_failure)
    (key,) = bench.sent
    if outcome:
        bench.outcomes[key] = Outcome(key=key, delivered=False, note="refused")
    else:
        bench.now += 60
    assert bench.one().phase is phase
    assert bench.session().holds[0].results[0].result in {Result.FAILED, Result.TIMED_OUT}
    assert "The remediation stops here" in bench.texts()
    assert not bench.cordoned()
    ask(bench, Verb.RETRY)
    bench.one()
    bench.one()
    (again,) = [k for k in bench.sent if k.startswith(f"{key}/") and "failed" not in k]
    bench.outcomes[again] = Outcome(key=again, delivered=True)
    bench.one()
    bench.one(seconds=1)
    assert bench.cordoned()
    assert bench.nodes["n1"].request is None


def test_a_failure_that_does_not_matter_does_not_stop() -> None:
    bench = in_session(policy(steps=[LOG, {"cordon": {}}]))
    assert bench.cordoned()


# -- recovery ----------------------------------------------------------------------------------


def test_recovery_undoes_and_tells_after_its_time() -> None:
    bench = in_session(policy(steps=[{"cordon": {}}, LOG]))
    bench.fault()
    decision = bench.one()
    assert decision.phase is NodePhase.RECOVERING
    assert decision.next_look == bench.now + 600
    bench.one(seconds=599)
    assert bench.cordoned()
    bench.one(seconds=1)
    assert not bench.cordoned()
    assert bench.nodes["n1"].session is None
    assert "session ended" in bench.texts()
    assert len(bench.nodes["n1"].history.attempts) == 1


def test_a_recovery_that_was_not_written_is_due_at_once() -> None:
    bench = in_session()
    bench.fault()
    bench.one()
    bench.now += 600
    bench.decide(write=False)
    bench.one(seconds=1)
    assert bench.nodes["n1"].session is None


def test_a_flap_begins_the_wait_anew() -> None:
    bench = in_session()
    bench.fault()
    bench.one()
    bench.now += 500
    bench.fault(*BAD)
    bench.one()
    bench.now += 50
    bench.fault()
    bench.one()
    bench.one(seconds=599)
    assert bench.cordoned()
    bench.one(seconds=1)
    assert not bench.cordoned()


def restart_ages(bench: Bench) -> None:
    known = bench.nodes["n1"].conditions
    bench.change(
        conditions={k: replace(v, since=bench.now, seen=bench.now) for k, v in known.items()}
    )


def test_a_gap_in_our_watch_begins_the_wait_anew() -> None:
    bench = in_session()
    bench.fault()
    bench.one()
    bench.now += 500
    restart_ages(bench)
    bench.one(seconds=599)
    assert bench.cordoned()
    bench.one(seconds=1)
    assert not bench.cordoned()


def test_silence_is_no_evidence() -> None:
    bench = in_session(policy(recover={"for": "1h"}))
    bench.fault()
    assert bench.one().next_look == bench.now + STALE_AFTER_SECONDS
    bench.one(seconds=STALE_AFTER_SECONDS)
    assert "its agent is silent" in bench.texts()
    bench.now += 1
    bench.fault()
    bench.one()
    for _ in range(5):
        bench.now += 600
        bench.fault()
        bench.one()
    assert bench.cordoned()
    bench.one(seconds=600)
    assert not bench.cordoned()


@pytest.mark.parametrize(
    "unwell",
    [{"ready": False}, {"boot_id": "boot-2"}],
    ids=["not-ready", "of-an-earlier-boot"],
)
def test_a_node_is_not_recovered_while_it_is(unwell: dict[str, Any]) -> None:
    bench = in_session()
    bench.fault()
    bench.change(**unwell)
    held = [hold.reason for hold in bench.one().holds]
    assert held == (["clear, and waits for the node to be Ready"] if "ready" in unwell else [])
    bench.one(seconds=700)
    assert bench.nodes["n1"].session is not None


def test_evidence_from_before_the_last_step_is_none() -> None:
    bench = sick()
    bench.one()
    old = {k: replace(v, status="False") for k, v in bench.nodes["n1"].conditions.items()}
    bench.change(faults=(), conditions=old)
    (held,) = bench.one(seconds=1).holds
    assert held.guard == "recovery"
    assert held.reason.startswith("clear, and waits for what is said of the node next")
    bench.one(seconds=700)
    assert bench.nodes["n1"].session is not None


def test_manual_asks_people_once() -> None:
    bench = in_session(policy(recover={"when": "manual"}))
    recover(bench)
    assert bench.cordoned()
    assert len(bench.sent) == 1
    assert "ends by hand" in bench.texts()


def test_never_leaves_the_cordon_whoever_else_lets_go_later() -> None:
    other = policy("other", when=[{"condition": {"type": "GPULost"}}])
    bench = in_session(policy(recover={"when": "never"}))
    bench.policies = policies(policy(recover={"when": "never"}), other)
    lost = replace(bench.nodes["n1"].conditions["GPUXidError"], type="GPULost")
    bench.change(conditions={**bench.nodes["n1"].conditions, "GPULost": lost})
    bench.one()
    assert [hold.policy for hold in bench.session().holds] == ["bus", "other"]
    bench.now += 1
    well = replace(lost, type="GPUXidError", status="False", since=bench.now, seen=bench.now)
    bench.change(faults=(), conditions={"GPUXidError": well, "GPULost": lost})
    bench.one()
    bench.one(seconds=600)
    assert [hold.policy for hold in bench.session().holds] == ["other"]
    assert "the session goes on for other" in bench.texts()
    now = bench.now = bench.now + 1
    bench.change(
        conditions={
            kind: replace(one, status="False", since=now, seen=now)
            for kind, one in bench.nodes["n1"].conditions.items()
        }
    )
    bench.one()
    bench.one(seconds=600)
    assert bench.nodes["n1"].session is None
    assert bench.cordoned()


def test_the_last_of_two_policies_uncordons() -> None:
    other = policy("other", when=[{"xid": {"codes": [48]}}])
    bench = Bench(policy(), other)
    bench.see(node(faults=(xid(), xid(48))))
    bench.one()
    assert [hold.policy for hold in bench.session().holds] == ["bus", "other"]
    bench.now += 1
    bench.fault(xid(48))
    bench.one()
    bench.one(seconds=600)
    assert [hold.policy for hold in bench.session().holds] == ["other"]
    assert bench.cordoned()
    recover(bench)
    assert not bench.cordoned()


def test_a_session_ends_as_it_began_whatever_becomes_of_its_policy() -> None:
    bench = in_session()
    bench.policies = policies(policy(recover={"when": "never"}))
    recover(bench)
    assert not bench.cordoned()


@pytest.mark.parametrize("gone", [policies(), policies(policy(mode="DryRun"))])
def test_a_policy_that_is_gone_stops_and_undoes_nothing_and_people_are_told(gone: Any) -> None:
    bench = in_session()
    bench.policies = gone
    recover(bench)
    bench.one()
    assert bench.cordoned()
    assert sum("orphaned" in key for key in bench.sent) == 1
    bench.policies = policies(policy())
    bench.fault()
    bench.one()
    bench.one(seconds=599)
    assert bench.cordoned()
    bench.one(seconds=1)
    assert not bench.cordoned()


def test_attempts_are_capped_and_then_people_are_told() -> None:
    bench = sick(policy(limits={"maxAttempts": 2}, steps=[{"cordon": {}}, LOG]))
    for attempt in (1, 2):
        bench.one()
        recover(bench, times=attempt)
        bench.now += 1
        bench.fault(*BAD)
    decision = bench.one()
    assert decision.phase is NodePhase.ESCALATED
    assert bench.cordoned()
    assert "attempt 3 within 24 h" in bench.texts()
    recover(bench)
    assert bench.cordoned()
    ask(bench, Verb.RETRY)
    bench.one()
    recover(bench)
    assert not bench.cordoned()


def test_attempts_of_yesterday_do_not_count() -> None:
    bench = sick(policy(limits={"maxAttempts": 1}))
    bench.one()
    recover(bench)
    bench.now += 86400
    bench.fault(*BAD)
    assert bench.one().phase is NodePhase.IN_SESSION


# -- people ------------------------------------------------------------------------------------


def uncordoned(bench: Bench) -> None:
    bench.change(unschedulable=False, unavailable_since=None)
    bench.one()


def test_an_uncordon_by_hand_wins() -> None:
    other = policy("other", when=[{"xid": {"codes": [48]}}])
    bench = in_session(policy(), other)
    bench.fault(xid(), xid(48))
    uncordoned(bench)
    assert bench.nodes["n1"].session is None
    waivers = bench.nodes["n1"].history.waivers
    assert {one.policy for one in waivers} == {"bus", "other"}
    assert bench.one(seconds=1).phase is NodePhase.WAIVED
    assert not bench.cordoned()


@pytest.mark.parametrize("verb", [None, Verb.CANCEL])
def test_a_cordon_that_followed_an_uncordon_by_hand_stays(verb: Verb | None) -> None:
    bench = in_session()
    pause = bench.ledger.pause = Pause(by="ann", at="now", all=True)
    uncordoned(bench)
    assert bench.ledger.pause is pause
    assert bench.session().added.cordoned
    bench.change(unschedulable=True, uncordoned=True)
    if verb is not None:
        ask(bench, verb)
    bench.ledger.pause = None
    bench.one()
    assert bench.nodes["n1"].session is None
    recover(bench)
    assert bench.cordoned()


def test_a_waived_fault_is_recalled_once() -> None:
    bench = in_session()
    uncordoned(bench)
    before = len(bench.sent)
    for _ in range(4):
        bench.now += 1800
        bench.fault(*BAD)
        bench.one()
    assert len(bench.sent) == before + 1
    assert "only reminder" in bench.texts()


def test_a_new_fault_elsewhere_and_one_that_returns_count_again() -> None:
    bench = in_session()
    uncordoned(bench)
    bench.fault(*BAD, xid(pci="0000:01:00.0"))
    bench.one()
    assert bench.cordoned()
    bench = in_session()
    uncordoned(bench)
    bench.now += 1
    bench.fault()
    bench.one()
    assert bench.nodes["n1"].history.waivers == ()
    bench.fault(*BAD)
    bench.one()
    assert bench.cordoned()


def test_however_many_faults_are_waived_none_is_forgotten() -> None:
    rules = [policy(f"p{i}") for i in range(9)]
    many = tuple(xid(pci=f"0000:{i:02x}:00.0") for i in range(40))
    bench = Bench(*rules)
    bench.see(node(faults=many))
    bench.one()
    bench.now += 1
    uncordoned(bench)
    bench.one(seconds=1)
    bench.now += 1
    bench.fault(*many[1:])
    bench.one()
    assert not bench.cordoned()
    bench.fault()
    bench.one()
    assert bench.nodes["n1"].history.waivers == ()


def test_cancel_undoes_and_leaves_the_fault_to_people() -> None:
    bench = in_session()
    ask(bench, Verb.CANCEL)
    decision = bench.one()
    assert not bench.cordoned()
    assert bench.nodes["n1"].request is None
    assert "cancelled by ann (mine)" in bench.texts()
    assert "Session(" not in str(decision)
    assert bench.one().phase is NodePhase.WAIVED


def test_release_keeps_the_node_as_it_is() -> None:
    bench = in_session()
    ask(bench, Verb.RELEASE)
    bench.one()
    assert bench.cordoned()
    assert bench.nodes["n1"].session is None
    recover(bench)
    assert bench.cordoned()


@pytest.mark.parametrize("mode", [NodeMode.DISABLED, NodeMode.DRY_RUN, NodeMode.NOTIFY_ONLY])
def test_a_request_is_answered_in_every_mode_of_the_node(mode: NodeMode) -> None:
    bench = in_session()
    bench.change(mode=mode)
    ask(bench, Verb.CANCEL)
    bench.one()
    assert bench.nodes["n1"].session is None
    assert not bench.cordoned()


def test_retry_gives_waived_faults_back() -> None:
    bench = in_session()
    uncordoned(bench)
    ask(bench, Verb.RETRY)
    bench.one()
    bench.one(seconds=1)
    assert bench.cordoned()


def test_a_request_with_nothing_to_do_is_answered_too() -> None:
    bench = Bench(policy())
    bench.see(node())
    ask(bench, Verb.UNFREEZE)
    assert "nothing to do" in str(bench.one())
    assert bench.nodes["n1"].request is None


# -- frozen, leaving, dry-run ------------------------------------------------------------------


def broken(bench: Bench, what: str) -> Any:
    session = bench.session()
    (hold,) = session.holds
    holds: Any = {
        "plan": (changed(hold, plan="{}"),),
        "step": (changed(hold, step=7),),
        "negative": (changed(hold, step=-1),),
        "undelivered": (changed(hold, undelivered=(3,)),),
        "none": (),
        "twice": (hold, hold),
    }.get(what)
    return Malformed("not JSON") if holds is None else changed(session, holds=holds)


@pytest.mark.parametrize(
    "what", ["json", "plan", "step", "negative", "undelivered", "none", "twice"]
)
@pytest.mark.parametrize("verb", [None, Verb.UNFREEZE, Verb.CANCEL])
def test_what_cannot_be_read_freezes_until_people_unfreeze(what: str, verb: Verb | None) -> None:
    bench = in_session()
    bench.change(session=broken(bench, what))
    recover(bench)
    assert bench.cordoned()
    assert bench.one().phase is NodePhase.FROZEN
    if verb is not None:
        ask(bench, verb)
        bench.one()
        assert bench.nodes["n1"].request is None
    assert (bench.nodes["n1"].session is None) is (verb is Verb.UNFREEZE)
    assert bench.cordoned()
    assert "is frozen" in bench.texts()


def test_a_node_that_is_being_deleted_is_left_alone() -> None:
    bench = sick(deleting=True)
    decision = bench.one()
    assert decision.phase is NodePhase.LEFT_ALONE
    assert decision.effects == ()
    assert not bench.ledger.nodes["uid-n1"].reserved


def test_a_cluster_in_dry_run_writes_nothing_but_answers_people_and_tells() -> None:
    bench = in_session(policy(steps=[{"cordon": {}}, LOG]))
    (key,) = bench.sent
    bench.outcomes[key] = Outcome(key=key, delivered=True)
    bench.ledger.cluster = ledger(mode="DryRun").cluster
    decision = bench.one()
    assert patch_of(decision) is None
    assert "orphaned" in bench.texts()
    bench.change(unschedulable=False)
    assert patch_of(bench.one()) is None
    bench.change(unschedulable=True)
    ask(bench, Verb.CANCEL)
    bench.one()
    assert not bench.cordoned()


def test_dry_run_policies_act_in_their_own_world_only() -> None:
    bench = sick(policy(mode="DryRun"))
    assert bench.one().effects == ()
    bench.world = World.VIRTUAL
    assert patch_of(bench.one()) is not None


def test_a_node_in_dry_run_is_not_written_to() -> None:
    bench = sick(mode=NodeMode.DRY_RUN)
    assert bench.one().effects == ()


def test_the_next_look_is_never_now() -> None:
    bench = sick(policy(steps=[{**LOG, "onFailure": "hold", "timeout": "0s"}]))
    decision = bench.one()
    assert decision.next_look is None or decision.next_look >= bench.now + SOONEST


def test_a_place_that_was_given_and_not_used_is_given_back() -> None:
    bench = Bench(policy(steps=[LOG, {"cordon": {}}]))
    bench.ledger.pause = Pause(by="ann", at="now")
    bench.see(node(faults=BAD))
    bench.one()
    bench.ledger.pause = None
    ask(bench, Verb.CANCEL)
    bench.one(seconds=1)
    assert bench.nodes["n1"].session is None
    assert not bench.ledger.nodes["uid-n1"].reserved
    assert bench.ledger.state().starts == {}
