"""All kinds of steps on one node, with everything going wrong in any order.

Two policies of any steps share the node's session. The machine plays agent, workers, people and
the API server; what is checked is what the node's people rely on.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from remediator.decide.core import World, decide
from remediator.decide.decision import Decision, Outcome, PatchNode, Work
from remediator.decide.facts import uncordoned_since, untainted_since
from remediator.decide.ledger import Ledger, Pause
from remediator.decide.requests import Approval, Request, Verb
from remediator.decide.session import HoldState, PolicyHold, Result, Session, decode_session, encode
from remediator.decide.work import LOOK_FIRST, under_way
from tests.property.cases import cases
from tests.unit.decide.build import (
    GPU,
    cluster,
    condition,
    node,
    patch_of,
    policies,
    policy,
    written,
    xid,
)


LABELS, ANNOTATIONS = ["example.com/a", "example.com/b"], ["example.com/c"]
STEPS: list[dict[str, Any]] = [
    {"cordon": {}},
    {"taint": {}},
    {"label": {"set": {LABELS[0]: "ours"}}},
    {"label": {"set": {LABELS[0]: "also", LABELS[1]: "ours"}}},
    {"annotate": {"set": {ANNOTATIONS[0]: "ours"}}},
    {"drain": {}, "timeout": "5m"},
    {"drain": {}, "timeout": "5m", "onFailure": "continue"},
    {"job": {"template": "reset"}, "timeout": "5m"},
    {"job": {"template": "reset", "maxAttempts": 2}, "onFailure": "continue"},
    {"job": {"template": "reboot", "success": "reboot"}, "timeout": "5m"},
    {"create": {"template": "request"}, "onFailure": "escalate"},
    {"webhook": {"to": "service"}},
    {"wait": {"for": "2m"}},
    {"wait": {"condition": {"type": "Reset"}}, "timeout": "5m"},
    {"approve": {}, "timeout": "10m"},
    {"notify": {"to": ["log"]}},
    {"event": {}, "onFailure": "hold"},
    {"uncordon": {}},
    {"untaint": {}},
]
some_steps = st.lists(st.sampled_from(STEPS), min_size=1, max_size=5)
pytestmark = pytest.mark.timeout(3600)
HALTED = {HoldState.HELD, HoldState.ESCALATED}


class Node(RuleBasedStateMachine):
    """One node, two policies for the same fault, one clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.spec = cluster(
            budgets=[{"maxUnavailable": "100%", "per": "cluster"}],
            rates=dict.fromkeys(("cordon", "drain", "job"), "100/1m"),
            breaker={"minNodes": 100},
        )
        self.ledger = Ledger(cluster=self.spec, started=self.now)
        self.facts = node(now=self.now)
        self.outcomes: dict[str, Outcome] = {}
        self.works: dict[str, Work] = {}
        self.told: dict[str, str] = {}
        self.ran: dict[str, float] = {}
        """For how long work was followed, by key: what counts for its deadline."""
        self.last_turn = self.now
        self.followed: dict[str, float] = {}
        """Since when this leader follows work, by key."""
        self.loaded = policies(policy("a"), policy("b"))
        self.boots = 1

    # -- the shell ---------------------------------------------------------------------------

    def see(self, **fields: Any) -> None:
        facts = replace(self.facts, **fields)
        gone = facts.out_of_service or not facts.ready
        self.facts = replace(
            facts,
            unavailable_since=(facts.unavailable_since or self.now) if gone else None,
            uncordoned=uncordoned_since(facts, facts.session, unschedulable=facts.unschedulable),
            untainted=untainted_since(facts, facts.session, facts.taints),
        )
        self.ledger.observe(self.facts, self.now)

    def turn(self, *, refused: bool = False) -> Decision:
        for one in self.works.values():
            if not one.suspended:
                self.ran[one.key] = self.ran.get(one.key, 0.0) + self.now - self.last_turn
        self.last_turn = self.now
        wanted = {one.policy: one for one in under_way(self.facts)}
        (decision,) = decide(
            [self.facts],
            policies=self.loaded,
            ledger=self.ledger,
            outcomes=self.outcomes,
            world=World.REAL,
            now=self.now,
        )
        patch = patch_of(decision)
        works = {one.key: one for one in decision.effects if isinstance(one, Work)}
        if patch is not None:
            self.check_patch(patch)
            self.check_late(patch, wanted)
            if refused:
                self.ledger.refund(self.facts.uid)
                return decision
            self.facts = written(self.facts, patch, self.now)
            self.see()
        self.check_works(works, decision)
        self.works = works
        return decision

    # -- what must hold ----------------------------------------------------------------------

    def check_patch(self, patch: PatchNode) -> None:
        before = self.facts.session
        marks = before.added if isinstance(before, Session) else None
        after = patch.session.added if isinstance(patch.session, Session) else None
        for now, changes, old, new in (
            (
                self.facts.labels,
                patch.labels,
                marks.labels if marks else (),
                after.labels if after else (),
            ),
            (
                self.facts.annotations,
                patch.annotations,
                marks.annotations if marks else (),
                after.annotations if after else (),
            ),
        ):
            ours = {mark.key: mark for mark in old}
            kept = {mark.key: mark for mark in new}
            for key, value in changes.items():
                if value is not None and key in kept and kept[key].value == value:
                    if key in ours:
                        assert now.get(key) == ours[key].value, "a person's change was lost"
                        assert kept[key].old == ours[key].old
                    else:
                        assert kept[key].old == now.get(key), "the old value was not kept"
                else:
                    assert now.get(key) == ours[key].value, "not ours to put back"
                    assert value == ours[key].old
        if isinstance(patch.session, Session):
            assert decode_session(encode(patch.session), node_uid=patch.uid) == patch.session
            for hold in patch.session.holds:
                self.check_results(hold, patch.session.id)

    def check_results(self, hold: PolicyHold, session: str) -> None:
        tries: dict[int, int] = {}
        for one in hold.results:
            number = tries.get(one.step, 0)
            tries[one.step] = number + 1
            if one.action not in {"drain", "job", "create", "webhook"}:
                continue
            key = f"{session}/{hold.policy}/{one.step}"
            most = number + hold.spent.get(one.step, 0)
            keys = (f"{key}/{at}" if at else key for at in range(number, most + 1))
            known = [self.outcomes[key] for key in keys if key in self.outcomes]
            if one.result is Result.DONE:
                assert any(end.delivered for end in known) or "boot id" in one.note, one
            if one.result is Result.FAILED:
                assert not all(end.delivered for end in known)

    def check_late(self, patch: PatchNode, wanted: dict[str, Work]) -> None:
        """No deadline is judged too early, whatever was suspended and whoever led meanwhile."""
        session = patch.session if isinstance(patch.session, Session) else None
        for name, work in wanted.items():
            hold = session.hold(name) if session is not None else None
            last = hold.results[-1] if hold is not None and hold.results else None
            late = last is not None and (last.step, last.at) == (work.step, self.now)
            if last is not None and late and last.result is Result.TIMED_OUT:
                assert self.ran[work.key] >= work.spec.limit - 1e-3, "too early"

    def check_works(self, works: dict[str, Work], decision: Decision) -> None:
        session = self.facts.session
        classes = [one.spec.work_class for one in works.values()]
        assert len(classes) == len(set(classes)), "two of a class at once"
        for one in works.values():
            assert isinstance(session, Session)
            hold = session.hold(one.policy)
            assert hold is not None
            assert hold.work_since == one.since, "it is not on the node that it began"
            assert one.session == session.id
            if one.suspended:
                self.followed.pop(one.key, None)
            else:
                since = self.followed.setdefault(one.key, self.now)
                assert self.now < max(one.deadline, since + LOOK_FIRST)
            assert self.ledger.pause is None or not self.ledger.pause.all or one.suspended
        assert (
            decision.next_look is not None or not works or any(w.suspended for w in works.values())
        )

    # -- what happens ------------------------------------------------------------------------

    @initialize(first=some_steps, second=some_steps, theirs=st.booleans())
    def furnish(
        self, first: list[dict[str, Any]], second: list[dict[str, Any]], *, theirs: bool
    ) -> None:
        recover = {"for": "1m"}
        self.loaded = policies(
            policy("a", steps=first, recover=recover), policy("b", steps=second, recover=recover)
        )
        labels = {**GPU, LABELS[0]: "theirs"} if theirs else GPU
        self.see(labels=labels, annotations={ANNOTATIONS[0]: "theirs"} if theirs else {})
        self.report(faulty=True)

    @rule(faulty=st.booleans())
    def report(self, *, faulty: bool) -> None:
        status = "True" if faulty else "False"
        known = self.facts.conditions["GPUXidError"]
        fresh = condition("GPUXidError", status, now=self.now)
        since = known.since if known.status == status else self.now
        faults = (replace_boot(xid(), self.facts.boot_id),) if faulty else ()
        conditions = {**self.facts.conditions, "GPUXidError": replace(fresh, since=since)}
        self.see(conditions=conditions, faults=faults, faults_boot_id=self.facts.boot_id)
        self.turn()

    @rule(seconds=st.sampled_from([0.5, 1.5, 61.0, 125.0, 301.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.turn()

    @rule(well=st.booleans())
    def work_ends(self, *, well: bool) -> None:
        for one in self.works.values():
            if not one.suspended:
                self.outcomes.setdefault(one.key, Outcome(key=one.key, delivered=well, note="x"))
        self.turn()

    @rule(delivered=st.booleans())
    def messages_end(self, *, delivered: bool) -> None:
        decision = self.turn()
        for effect in decision.effects:
            if not isinstance(effect, PatchNode | Work):
                self.outcomes.setdefault(effect.key, Outcome(key=effect.key, delivered=delivered))
        self.turn()

    @rule()
    def reboot(self) -> None:
        self.boots += 1
        self.see(boot_id=f"boot-{self.boots}")
        self.turn()

    @rule(ready=st.booleans())
    def readiness(self, *, ready: bool) -> None:
        self.see(ready=ready)
        self.turn()

    @rule(key=st.sampled_from(LABELS), value=st.sampled_from([None, "mine", "ours"]))
    def a_person_labels(self, key: str, value: str | None) -> None:
        labels = {one: text for one, text in self.facts.labels.items() if one != key}
        self.see(labels=labels if value is None else {**labels, key: value})
        self.turn()

    @rule()
    def a_person_uncordons(self) -> None:
        self.see(unschedulable=False)
        self.turn()

    @rule()
    def a_person_cordons(self) -> None:
        self.see(unschedulable=True)
        self.turn()

    @rule(verb=st.sampled_from([Verb.CANCEL, Verb.RELEASE, Verb.RETRY]))
    def a_person_asks(self, verb: Verb) -> None:
        self.see(request=Request(verb=verb, by="ann", at="now"))
        self.turn()

    @rule()
    def a_person_approves(self) -> None:
        session = self.facts.session
        if isinstance(session, Session):
            until = datetime.fromtimestamp(self.now + 300.0, tz=UTC).isoformat()
            given = tuple(
                Approval(
                    session=session.id, policy=h.policy, step=h.step, by="a", at="", expires=until
                )
                for h in session.holds
            )
            self.see(approvals=given)
        self.turn()

    @rule(pause=st.sampled_from([None, Pause(by="a", at=""), Pause(by="a", at="", all=True)]))
    def pause(self, pause: Pause | None) -> None:
        self.ledger.pause = pause
        self.turn()

    @rule()
    def refuse_a_write(self) -> None:
        self.turn(refused=True)

    @rule(name=st.sampled_from(["a", "b"]))
    def unload(self, name: str) -> None:
        left = {one: active for one, active in self.loaded.active.items() if one != name}
        self.loaded = replace(self.loaded, active=left)
        self.turn()

    @rule(saved=st.booleans())
    def restart(self, *, saved: bool) -> None:
        pause, state = self.ledger.pause, self.ledger.state()
        self.ledger = Ledger(cluster=self.spec, started=self.now)
        self.ledger.pause = pause
        if saved:
            self.ledger.restore(state)
        self.followed.clear()
        self.outcomes = {key: one for key, one in self.outcomes.items() if key not in self.works}
        self.see()
        self.turn()

    def teardown(self) -> None:
        """Every session ends, or it waits for a person: then it says so."""
        self.ledger.pause = None
        self.see(ready=True)
        self.get_well()
        session = self.facts.session
        if isinstance(session, Session):
            gone = [hold for hold in session.holds if hold.policy not in self.loaded.active]
            halted = [hold for hold in session.holds if hold.state in HALTED]
            assert gone or halted, session
            self.a_person_asks(Verb.CANCEL)
            self.get_well()
        assert self.facts.session is None, "a person's word ends it"
        assert not self.works

    def get_well(self) -> None:
        """The fault is over, work is done, and time passes until nothing more happens."""
        calm = 0
        for _ in range(20):
            self.report(faulty=False)
            self.now += 301.0
            self.report(faulty=False)
            for one in self.works.values():
                self.outcomes.setdefault(one.key, Outcome(key=one.key, delivered=True))
            calm = 0 if isinstance(self.facts.session, Session) else calm + 1
            if calm == 2:
                return


def replace_boot(fault: Any, boot_id: str) -> Any:
    """Return the fault as of this boot."""
    return type(fault)(
        **{name: getattr(fault, name) for name in fault.__struct_fields__ if name != "boot_id"},
        boot_id=boot_id,
    )


class Brief(Node):
    """The same in many short runs: each begins with other steps."""


TestNode, TestBrief = Node.TestCase, Brief.TestCase
TestNode.settings = settings(max_examples=cases(250), stateful_step_count=40)
TestBrief.settings = settings(max_examples=cases(9750), stateful_step_count=10)
