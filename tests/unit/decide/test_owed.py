"""That something is over is told at least once, whenever the process dies."""

from __future__ import annotations

import pytest

from remediator.decide.core import World
from remediator.decide.decision import Decision, Outcome, PatchNode, SendMessage, Urgency
from remediator.decide.facts import NodeMode
from remediator.decide.ledger import Ledger, Pause
from remediator.decide.owed import CLEAR_AFTER
from remediator.decide.requests import Request, Verb
from remediator.decide.room import MAX_OWED
from remediator.decide.session import DAY, History, decode_history, encode
from tests.unit.decide.build import Bench, ledger, node, patch_of, policies, policy, xid


def recovered(*, more: bool = False) -> tuple[Bench, Decision]:
    """A node whose session has just ended; and the decision that ended it."""
    steps = [{"cordon": {}}, {"notify": {"to": ["oncall"]}}]
    given = [policy(steps=steps, recover={"for": "0s"})]
    if more:
        given.append(policy("other", when=[{"xid": {"codes": [31]}}], recover={"for": "1h"}))
    budgets = [{"maxUnavailable": "100%", "per": "cluster"}]
    made = Bench(*given, guards=ledger(budgets=budgets, rates={"cordon": "100/1m"}))
    made.see(node(faults=(xid(), xid(31))))
    made.one()
    made.now += 1.0
    made.fault(*([xid(31)] if more else []))
    return made, made.one()


def said(decision: Decision) -> list[SendMessage]:
    return [one for one in decision.effects if isinstance(one, SendMessage) and one.resolves]


def keys(made: Bench) -> list[str]:
    return [one.key for one in made.nodes["n1"].history.owed]


@pytest.mark.parametrize("more", [False, True])
def test_the_next_leader_says_what_the_one_before_may_not_have_said(*, more: bool) -> None:
    made, first = recovered(more=more)
    (message,) = said(first)
    patch = patch_of(first)
    assert patch is not None
    assert isinstance(patch.history, History)
    assert decode_history(encode(patch.history), node_uid=patch.uid) == patch.history
    assert [one.key for one in patch.history.owed] == [message.key]
    assert isinstance(first.effects[0], PatchNode), "not before it is true"

    made.ledger = Ledger(cluster=made.ledger.cluster, started=made.now)
    made.outcomes.clear()
    made.see(*made.nodes.values())
    later = made.one(seconds=3600.0)
    assert said(later) == [message], "the same, under the same key"
    assert patch_of(later) is None


def test_what_arrived_is_taken_out_by_a_patch_of_its_own_only_after_a_while() -> None:
    made, first = recovered()
    (message,) = said(first)
    made.outcomes[message.key] = Outcome(key=message.key, delivered=True)
    again = made.one(seconds=1.0)
    assert (said(again), patch_of(again)) == ([], None)
    assert again.next_look == pytest.approx(made.now - 1.0 + CLEAR_AFTER)
    last = made.one(seconds=CLEAR_AFTER)
    patch = patch_of(last)
    assert patch is not None
    assert (patch.action, patch.disruptive) == ("record", False)
    assert keys(made) == []
    assert patch_of(made.one(seconds=1.0)) is None


def test_a_patch_that_is_written_anyway_takes_it_out() -> None:
    made, first = recovered()
    (message,) = said(first)
    made.outcomes[message.key] = Outcome(key=message.key, delivered=False, note="given up")
    made.now += 1.0
    made.fault(xid())
    made.one()
    assert made.cordoned()
    assert keys(made) == []


def test_what_is_not_known_to_have_arrived_stays_and_is_said_for_a_day() -> None:
    made, first = recovered()
    for _ in range(5):
        later = made.one(seconds=2 * CLEAR_AFTER)
        assert said(later) == said(first)
        assert later.next_look == pytest.approx(made.now + CLEAR_AFTER)
    made.now += DAY
    made.fault()
    assert said(made.one()) == []
    assert keys(made) == []


@pytest.mark.parametrize("how", ["pause", "disabled"])
def test_nothing_is_written_for_it_where_nothing_may_be(how: str) -> None:
    made, first = recovered()
    (message,) = said(first)
    made.outcomes[message.key] = Outcome(key=message.key, delivered=True)
    if how == "pause":
        made.ledger.pause = Pause(by="ann", at="now", all=True)
    else:
        made.change(mode=NodeMode.DISABLED)
    decision = made.one(seconds=2 * CLEAR_AFTER)
    assert patch_of(decision) is None
    assert decision.holds == (), "nobody waits for that"


def test_a_retry_forgets_waivers_and_not_what_is_owed() -> None:
    made, first = recovered()
    made.change(request=Request(verb=Verb.RETRY, by="ann", at="now"))
    made.one(seconds=1.0)
    assert keys(made) == [one.key for one in said(first)]


def test_dry_run_owes_nothing() -> None:
    made = Bench(policy(mode="DryRun", recover={"for": "0s"}))
    made.world = World.VIRTUAL
    made.see(node(faults=(xid(),)))
    made.one()
    made.now += 1.0
    made.fault()
    assert said(made.one())
    assert keys(made) == []


def test_no_more_is_owed_than_there_is_room_for() -> None:
    made, _ = recovered()
    for _ in range(MAX_OWED + 3):
        made.now += 1.0
        made.fault(xid())
        made.one()
        made.change(request=Request(verb=Verb.CANCEL, by="ann", at="now"))
        made.one(seconds=1.0)
        made.change(request=Request(verb=Verb.RETRY, by="ann", at="now"))
        made.one(seconds=1.0)
    assert len(keys(made)) == MAX_OWED


def test_to_the_second_when_it_is_taken_out_and_what_is_written_then() -> None:
    made, first = recovered()
    (message,) = said(first)
    due = made.now + CLEAR_AFTER
    made.outcomes[message.key] = Outcome(key=message.key, delivered=True)
    made.now = due - 0.001
    made.fault()
    early = made.one()
    assert patch_of(early) is None
    assert early.next_look == pytest.approx(due, abs=1.1)
    made.now = due
    patch = patch_of(made.one())
    assert patch is not None
    assert (patch.action, patch.policy) == ("record", "")
    assert patch.why == "what was owed to people is told"
    assert isinstance(patch.history, History)
    assert patch.history.owed == ()


@pytest.mark.parametrize(("late", "tells"), [(0.0, True), (0.001, False)])
def test_it_is_said_for_a_day_and_not_a_moment_longer(*, late: float, tells: bool) -> None:
    made, first = recovered()
    made.now += DAY + late
    made.fault()
    assert said(made.one()) == (said(first) if tells else [])


def test_it_is_said_also_while_something_else_may_not_be_written() -> None:
    """Undo and what is owed are no new step: a pause of every write stops no message."""
    made, first = recovered()
    told = policy("tells", steps=[{"notify": {"to": ["log"]}}], when=[{"xid": {"codes": [63]}}])
    made.policies = policies(*[one.policy for one in made.policies.active.values()], told)
    made.ledger.pause = Pause(by="ann", at="now", all=True)
    made.now += 1.0
    made.fault(xid(63))
    decision = made.one()
    assert patch_of(decision) is None
    assert [one.guard for one in decision.holds] == ["pause"]
    assert decision.effects == tuple(said(first)), "and the new one's message waits for its patch"
    (message,) = said(first)
    assert (message.kind, message.policy, message.urgency) == ("end", "bus", Urgency.INFO)


def test_dry_run_sends_nothing_that_was_owed_in_earnest() -> None:
    made, _ = recovered()
    made.world = World.VIRTUAL
    decision = made.one(seconds=1.0)
    assert said(decision) == []
    assert decision.next_look is not None
    assert decision.next_look > made.now + CLEAR_AFTER, "nobody waits for it"
