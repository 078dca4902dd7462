"""What the API server refuses: the rest goes on, the step has a deadline, people are told once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from remediator.decide.decision import Decision, PatchNode, SendMessage
from remediator.decide.session import HoldState, Session
from tests.unit.decide.build import Bench, node, patch_of, policy, written, xid


MINUTE = 60.0
LABEL = {"label": {"set": {"example.com/broken": "true"}}}
NOTICE = "refuses our changes"

Refuses = Callable[[PatchNode], bool]


def labels(patch: PatchNode) -> bool:
    return bool(patch.labels)


def cordons(patch: PatchNode) -> bool:
    return patch.unschedulable is True


def uncordons(patch: PatchNode) -> bool:
    return patch.unschedulable is False


def everything(_patch: PatchNode) -> bool:
    return True


class Server:
    """One node with Xid 79 behind an API server that refuses some patches."""

    def __init__(self, *steps: dict[str, Any], refuses: Refuses, **spec: Any) -> None:
        self.bench = Bench(policy(steps=list(steps), **spec))
        self.bench.see(node(faults=(xid(),)))
        self.refuses = refuses
        self.tried: list[PatchNode] = []
        self.told: dict[str, SendMessage] = {}

    def look(self, seconds: float = 0.0) -> Decision:
        """Decide, write what is not refused, and tell what may be told then."""
        made = self.bench
        made.now += seconds
        (decision,) = made.decide(write=False)
        patch, refused = patch_of(decision), False
        if patch is not None:
            self.tried.append(patch)
            refused = self.refuses(patch)
            if refused:
                made.ledger.refusals.refused(patch, "the policy says no")
                made.ledger.refund(patch.uid)
            else:
                made.ledger.refusals.accepted(patch)
                made.see(written(made.nodes["n1"], patch, made.now))
        for effect in decision.effects:
            if isinstance(effect, PatchNode) and refused:
                break
            if isinstance(effect, SendMessage):
                self.told.setdefault(effect.key, effect)
        return decision

    def run(self, seconds: float, step: float = 30.0) -> Server:
        """Look now and then, and again soon after a refusal, as the engine does."""
        for _ in range(int(seconds / step)):
            self.look(step - 1.0)
            self.look(1.0)
        return self

    @property
    def results(self) -> list[tuple[str, str]]:
        held = self.bench.session().holds[0]
        return [(one.action, one.result.value) for one in held.results]

    def titles(self, word: str) -> list[str]:
        return [one.title for one in self.told.values() if word in one.title]


def test_a_label_that_is_refused_does_not_keep_the_cordon_away() -> None:
    server = Server({"cordon": {}}, LABEL, refuses=labels)
    server.look()
    assert not server.bench.cordoned(), "both were one patch"
    server.look(1.0)
    assert server.bench.cordoned(), "for itself it is written"
    server.look(1.0)
    decision = server.look(1.0)
    assert [(one.guard, one.reason) for one in decision.holds] == [
        ("refused", "the API server refuses this label: the policy says no")
    ]
    assert patch_of(decision) is None, "it is not tried at each look"


@pytest.mark.parametrize("first", [True, False])
def test_a_refused_step_fails_at_its_deadline_and_people_are_told_once(*, first: bool) -> None:
    steps: tuple[Any, ...] = (LABEL, {"cordon": {}}) if first else ({"cordon": {}}, LABEL)
    server = Server(*steps, refuses=labels).run(4 * MINUTE)
    assert not server.titles("label")
    server.run(10 * MINUTE)
    assert server.results[-1] == ("label", "failed")
    assert server.bench.session().holds[0].state is HoldState.HELD
    assert server.titles("label") == ["n1: label failed"]
    assert not server.titles(NOTICE), "that is said already"
    (result,) = [one for one in server.bench.session().holds[0].results if one.action == "label"]
    assert result.note == "the API server refuses it: the policy says no"
    tried = len(server.tried)
    server.run(10 * MINUTE)
    assert len(server.tried) == tried, "it is not tried for ever"


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        (({**LABEL, "onFailure": "continue"}, {"cordon": {}}), HoldState.DONE),
        (({**LABEL, "onFailure": "escalate"}, {"cordon": {}}), HoldState.ESCALATED),
    ],
)
def test_on_failure_says_what_follows(steps: tuple[Any, ...], state: HoldState) -> None:
    server = Server(*steps, refuses=labels).run(10 * MINUTE)
    assert server.bench.session().holds[0].state is state
    assert server.bench.cordoned() is (state is HoldState.DONE)


def test_a_timeout_of_its_own_counts_from_the_first_refusal() -> None:
    server = Server({**LABEL, "timeout": "20m"}, refuses=labels).run(19 * MINUTE)
    assert server.bench.nodes["n1"].session is None
    server.run(3 * MINUTE)
    assert server.results == [("label", "failed")]


def test_a_refused_cordon_is_tried_each_half_minute_and_goes_on_once_it_is_let() -> None:
    server = Server({"cordon": {}}, refuses=cordons)
    for _ in range(120):
        server.look(1.0)
    assert 4 <= len(server.tried) <= 5
    decision = server.look()
    assert [one.reason for one in decision.holds] == [
        "the API server refuses this cordon: the policy says no"
    ]
    assert decision.next_look is not None
    assert decision.next_look <= server.bench.now + 30.0
    server.refuses = lambda _: False
    server.run(MINUTE)
    assert server.bench.cordoned()
    assert server.results == [("cordon", "done")]
    assert not server.titles("cordon")


def test_waiting_for_a_guard_is_not_failing() -> None:
    server = Server({"cordon": {}}, refuses=cordons).run(4 * MINUTE)
    server.bench.ledger.open_breaker("bus", "a storm", server.bench.now)
    server.run(30 * MINUTE)
    server.bench.ledger.reset_breaker("bus", keep=True)
    server.run(2 * MINUTE)
    assert server.bench.nodes["n1"].session is None, "its five minutes begin anew"
    server.run(5 * MINUTE)
    assert server.results == [("cordon", "failed")]


def test_people_hear_once_that_nothing_at_all_can_be_written() -> None:
    server = Server({"cordon": {}}, {"notify": {"to": ["log"]}}, refuses=everything)
    server.run(60 * MINUTE)
    assert len(server.titles(NOTICE)) == 1
    assert len(server.told) == 1, "nothing else is true"


def test_people_hear_once_of_an_undo_that_is_refused() -> None:
    server = Server({"cordon": {}}, refuses=uncordons)
    server.run(2 * MINUTE)
    assert server.bench.cordoned()
    for _ in range(40):
        server.bench.fault()
        server.look(30.0)
    assert isinstance(server.bench.nodes["n1"].session, Session)
    assert len(server.titles(NOTICE)) == 1
    server.refuses = lambda _: False
    server.bench.fault()
    server.look(30.0)
    assert not server.bench.cordoned()


def test_an_uncordon_step_that_is_refused_fails_at_its_deadline() -> None:
    steps: tuple[Any, ...] = ({"cordon": {}}, {"wait": {"for": "1s"}}, {"uncordon": {}})
    server = Server(*steps, refuses=uncordons).run(7 * MINUTE)
    assert server.results == [("cordon", "done"), ("wait", "done"), ("uncordon", "failed")]
    assert len(server.tried) < 15


def test_a_step_is_not_blamed_for_an_undo_in_the_same_patch() -> None:
    spec: dict[str, Any] = {"recover": {"for": "0s"}}
    server = Server({"label": {"set": {"a": "b"}}}, refuses=lambda _: False, **spec)
    steps = [{"event": {}}, {"wait": {"for": "1m"}}, {"label": {"set": {"c": "d"}}}]
    other = Bench(policy("other", when=[{"xid": {"codes": [31]}}], steps=steps)).policies.active
    server.bench.policies = type(server.bench.policies)({**server.bench.policies.active, **other})
    server.bench.fault(xid(31), xid(79))
    server.look()
    server.refuses = lambda patch: "a" in patch.labels
    for _ in range(30):
        server.bench.now += 60.0
        server.bench.fault(xid(31))
        server.look()
    assert {(("other", 2), ("", -1))} == {one.changes for one in server.tried[1:]}
    assert not server.titles("label")
    assert len(server.titles(NOTICE)) == 1


def test_others_writes_go_on_while_a_step_is_refused() -> None:
    server = Server({**LABEL, "timeout": "1h"}, refuses=labels)
    server.bench.policies = type(server.bench.policies)(
        {
            **server.bench.policies.active,
            **Bench(policy("other", steps=[{"cordon": {}}])).policies.active,
        }
    )
    server.run(3 * MINUTE)
    assert server.bench.cordoned()
    assert [one.policy for one in server.bench.session().holds] == ["other"]


def test_a_node_that_is_gone_is_forgotten() -> None:
    server = Server({"cordon": {}}, refuses=cordons)
    server.look()
    assert server.bench.ledger.refusals.of_step("bus", "uid-n1", 0, server.bench.now)
    server.bench.ledger.forget("uid-n1")
    assert not server.bench.ledger.refusals.of_step("bus", "uid-n1", 0, server.bench.now)
