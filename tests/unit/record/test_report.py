"""The status document: what is in it, what is left out of it, how it is read again."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediator.decide.candidate import ActivePolicy
from remediator.decide.decision import Decision, Hold, NodePhase
from remediator.decide.facts import NodeFacts
from remediator.decide.ledger import Ledger, Pause
from remediator.decide.session import Added, Before, HoldState, PolicyHold, Session
from remediator.decide.storms import Calm, Matching, Recent
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from remediator.record.publish import fitted, same_but_time
from remediator.record.report import (
    MAX_FAULTS,
    MAX_NAMED,
    MAX_TEXT,
    Surroundings,
    WorldView,
    build_status,
    session_counts,
)
from remediator.record.status import (
    MAX_STATUS_BYTES,
    BreakerStatus,
    BudgetStatus,
    NodeStatus,
    OutboxStatus,
    PauseStatus,
    PolicyProblem,
    PolicyStatus,
    RateStatus,
    Status,
    StatusUnreadableError,
    decode_status,
    encode_status,
)


NOW = 10_000.0
ROWS = {"budgets", "rates", "breakers", "policies", "policy_problems"}


def policy(name: str = "bus", **spec: Any) -> RemediationPolicy:
    return RemediationPolicy.model_validate(
        {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediationPolicy",
            "metadata": {"name": name},
            "spec": {
                "mode": "Enforce",
                "when": [{"xid": {"codes": [79]}}],
                "steps": [{"cordon": {}}],
                **spec,
            },
        }
    )


def node(number: int, **more: Any) -> NodeFacts:
    fields = {"name": f"n{number}", "uid": f"u{number}", "resource_version": "1", "pool": "a"}
    return NodeFacts(**{**fields, **more})


def decision(number: int, phase: NodePhase, **more: Any) -> Decision:
    return Decision(node=f"n{number}", uid=f"u{number}", phase=phase, **more)


def world(
    *decisions: Decision,
    facts: list[NodeFacts],
    policies: tuple[RemediationPolicy, ...] = (),
    dry_run: bool = False,
    **cluster: Any,
) -> WorldView:
    ledger = Ledger(
        cluster=ClusterSpec.model_validate({"mode": "Enforce", **cluster}), started=NOW - 30
    )
    for one in facts:
        ledger.observe(one, NOW)
    return WorldView(
        dry_run=dry_run,
        ledger=ledger,
        policies={one.name: ActivePolicy(one, 5.0) for one in policies},
        decisions={one.uid: one for one in decisions},
    )


def build(real: WorldView, facts: list[NodeFacts], virtual: WorldView | None = None) -> Status:
    return build_status(
        real=real,
        virtual=virtual,
        facts={one.uid: one for one in facts},
        around=Surroundings(leader="me", sources={"bus": "policies/bus.yaml"}),
        now=NOW,
    )


def session(*states: HoldState) -> Session:
    holds = tuple(
        PolicyHold(
            policy=f"p{number}",
            version="v",
            plan="{}",
            reasons=(),
            instances=(),
            since=1.0,
            step_since=1.0,
            state=state,
        )
        for number, state in enumerate(states)
    )
    return Session(
        version=1,
        id="s1",
        node_uid="u1",
        boot_id="",
        started=77.0,
        before=Before(),
        added=Added(),
        holds=holds,
    )


def test_well_nodes_are_counted_and_the_others_listed_with_their_holds() -> None:
    facts = [node(1, session=session(HoldState.RUNNING), unschedulable=True), node(2)]
    held = decision(
        1,
        NodePhase.IN_SESSION,
        matched=("bus",),
        reasons=("Xid 79 on 0000:9b:00.0",),
        holds=(Hold("bus", "budget", "1 of 1", 99.0),),
        sentence="held",
    )
    document = build(
        world(held, decision(2, NodePhase.WELL), facts=facts, policies=(policy(),)), facts
    )

    (listed,) = document.nodes
    assert (listed.node, listed.phase, listed.session, listed.since) == (
        "n1",
        "in-session",
        "s1",
        77.0,
    )
    assert listed.faults == ("Xid 79 on 0000:9b:00.0",)
    assert [(h.guard, h.reason, h.look_again) for h in listed.holds] == [("budget", "1 of 1", 99.0)]
    assert document.phases == {"in-session": 1, "well": 1}
    assert document.well == 1
    assert document.policies[0].matching == 1
    assert document.policies[0].source == "policies/bus.yaml"
    assert document.settling_until == NOW + 30


def test_dry_run_is_marked_and_says_nothing_twice() -> None:
    facts = [node(1), node(2)]
    real = world(
        decision(1, NodePhase.WELL), decision(2, NodePhase.LEFT_ALONE), facts=facts, mode="DryRun"
    )
    virtual = world(
        decision(1, NodePhase.IN_SESSION, matched=("bus",)),
        decision(2, NodePhase.LEFT_ALONE),
        facts=facts,
        policies=(policy(),),
        dry_run=True,
    )
    document = build(real, facts, virtual)

    assert [(one.node, one.dry_run) for one in document.nodes] == [("n1", True), ("n2", False)]
    assert document.policies[0].effective_mode == "DryRun"
    assert document.phases_dry_run == {"in-session": 1, "left-alone": 1}
    assert document.well == 0, "well by the policies that act is not well"


def test_the_budgets_are_the_ones_that_the_guard_asks() -> None:
    facts = [node(1, unschedulable=True), node(2), node(3, pool="b")]
    default = build(world(facts=facts, policies=(policy(),)), facts)
    own = build(
        world(
            facts=facts,
            policies=(policy(limits={"budget": {"maxUnavailable": 2, "per": "pool"}}),),
        ),
        facts,
    )

    assert [(b.scope, b.used, b.limit, b.policy, b.holders) for b in default.budgets] == [
        ("pool/a", 1, 1, "", ("n1",)),
        ("pool/b", 0, 1, "", ()),
        ("cluster", 1, 1, "", ("n1",)),
    ]
    assert [(b.scope, b.used, b.limit, b.policy) for b in own.budgets] == [
        ("pool/a", 1, 2, "bus"),
        ("pool/b", 0, 2, "bus"),
    ]


def test_the_names_in_a_budget_are_bounded_and_its_numbers_are_not() -> None:
    facts = [node(number, unschedulable=True) for number in range(80)]
    budget = build(world(facts=facts), facts).budgets[0]

    assert (budget.used, len(budget.holders)) == (80, MAX_NAMED)


def test_no_node_takes_the_room_of_the_others() -> None:
    """Names of alerts, reasons of conditions and the agent's report are what others wrote."""
    facts = [node(1)]
    reasons = tuple(f"Xid 79 on {at}" + "x" * 9000 for at in range(100))
    held = (Hold("bus", "unless", "y" * 9000),)
    view = world(
        decision(1, NodePhase.MATCHED, reasons=reasons, sentence="z" * 9000, holds=held),
        facts=facts,
    )
    (shown,) = build(view, facts).nodes
    assert len(shown.faults) == MAX_FAULTS + 1
    assert shown.faults[-1] == "and 80 more"
    texts = (*shown.faults, shown.sentence, shown.holds[0].reason)
    assert max(map(len, texts)) == MAX_TEXT


def test_a_fault_report_that_is_not_used_is_a_note() -> None:
    facts = [node(2, faults_note="it is no report"), node(1, faults_note="too new"), node(3)]
    assert build(world(facts=facts), facts).notes == (
        "the fault report of n1 and 1 more nodes is not used: too new",
    )


def test_a_rate_says_what_is_used_and_when_there_is_room() -> None:
    facts = [node(1)]
    view = world(facts=facts, rates={"cordon": "2/10m"})
    for at in (NOW - 700, NOW - 300, NOW - 100):
        view.ledger.start("cordon", "a", ("",), "u1", at)

    (rate,) = build(view, facts).rates
    assert (rate.scope, rate.action, rate.used, rate.limit) == ("pool/a", "cordon", 2, "2/10m")
    assert rate.next_at == NOW + 300


def test_an_open_breaker_and_a_pause_are_shown() -> None:
    facts = [node(1)]
    view = world(facts=facts, policies=(policy(),))
    view.ledger.open_breaker("bus", "too many", NOW - 5)
    view.ledger.pause = Pause(by="ann", at="noon", reason="upgrade", all=True)
    document = build(view, facts)

    (breaker,) = document.breakers
    assert (breaker.source, breaker.open, breaker.since, breaker.reason) == (
        "bus",
        True,
        NOW - 5,
        "too many",
    )
    assert document.pause is not None
    assert (document.pause.by, document.pause.everything) == ("ann", True)


def test_what_newly_matches_on_a_source_is_shown_under_its_name() -> None:
    facts = [node(1), node(2), node(3)]
    view = world(facts=facts, policies=(policy(),))
    watch = view.ledger.storms.watch("bus", 0.0)
    watch.scope.update(one.uid for one in facts)
    for one in facts[:2]:
        watch.recent[one.uid] = Recent(NOW - 10, ("agents/all",))
    watch.recent[facts[2].uid] = Recent(NOW - 1000, ("agents/all",))
    shown = {one.source: one for one in build(view, facts).breakers}
    assert set(shown) == {"bus", "agents/all"}
    both = tuple(one.name for one in facts[:2])
    assert all((one.seen, one.limit, one.nodes) == (2, 3, both) for one in shown.values())


def test_an_open_breaker_says_when_it_closes_by_itself() -> None:
    facts = [node(1)]
    view = world(facts=facts, policies=(policy(),), breaker={"cooldown": "10m"})
    view.ledger.open_breaker("bus", "too many", NOW - 50)
    assert build(view, facts).breakers[0].closes_at is None
    view.ledger.storms.calm["bus"] = Calm(NOW - 5, frozenset())
    assert build(view, facts).breakers[0].closes_at == NOW + 595


def test_a_backlog_is_named() -> None:
    facts = [node(1), node(2), node(3)]
    view = world(facts=facts, policies=(policy(),))
    watch = view.ledger.storms.watch("bus", 0.0)
    watch.backlog.update(one.uid for one in facts[:2])
    watch.matching[facts[0].uid] = Matching(NOW, (), ())
    (shown,) = build(view, facts).breakers
    assert (shown.open, shown.backlog, shown.backlog_nodes) == (False, 1, (facts[0].name,))


def test_sessions_are_counted_by_policy_and_state() -> None:
    facts = [
        node(1, session=session(HoldState.RUNNING, HoldState.DONE)),
        node(2, session=session(HoldState.RUNNING)),
        node(3),
    ]

    assert session_counts(facts, dry_run=True) == {
        ("p0", "running", True): 2,
        ("p1", "done", True): 1,
    }


def test_a_document_of_another_version_or_a_damaged_one_is_refused_in_words() -> None:
    with pytest.raises(StatusUnreadableError, match=r"version 2 .* reads 1"):
        decode_status('{"version": 2, "strange": true}')
    with pytest.raises(StatusUnreadableError, match="damaged"):
        decode_status('{"version": 1, "time":')


def test_fields_of_a_later_program_are_ignored() -> None:
    text = encode_status(Status(version=1, time=1.0, leader="a", mode="DryRun"))

    assert decode_status(text[:-1] + ',"later":[1]}').leader == "a"


def test_time_alone_is_no_news() -> None:
    one = Status(version=1, time=1.0, leader="a", mode="DryRun")

    assert same_but_time(one, msgspec.structs.replace(one, time=2.0))
    assert not same_but_time(one, msgspec.structs.replace(one, leader="b"))


@given(
    phases=st.lists(st.sampled_from(list(NodePhase)), max_size=60),
    limit=st.integers(1000, 12000),
    text=st.text(max_size=20),
)
def test_a_document_fits_and_leaves_out_the_least_urgent(
    phases: list[NodePhase], limit: int, text: str
) -> None:
    nodes = tuple(
        NodeStatus(node=f"n{number}", phase=phase.value, sentence=text)
        for number, phase in enumerate(phases)
    )
    whole = Status(version=1, time=1.0, leader="a", mode="DryRun", nodes=nodes)
    written = fitted(whole, limit=limit)
    read = decode_status(written)

    assert len(msgspec.json.encode(written)) - 2 <= limit
    assert len(read.nodes) + read.nodes_left_out == len(nodes)
    if len(msgspec.json.encode(encode_status(whole))) - 2 <= limit:
        assert read.nodes_left_out == 0
    if any(node.phase == NodePhase.MATCHED for node in read.nodes):
        listed = {node.node for node in read.nodes}
        assert all(n.node in listed for n in nodes if n.phase == NodePhase.FROZEN)


MANY = tuple(f"gpu-node-{number:05d}.example.com" for number in range(50))
LONG: dict[str, Any] = {
    "budgets": tuple(
        BudgetStatus(scope=f"pool/{n}", used=60, limit=1, holders=MANY, escalated=MANY)
        for n in range(700)
    ),
    "rates": tuple(
        RateStatus(scope=f"pool/{n}", action="cordon", used=1, limit="1/10m") for n in range(20_000)
    ),
    "breakers": tuple(
        BreakerStatus(source=f"p-{n}", open=True, reason="r" * 300, nodes=MANY, backlog_nodes=MANY)
        for n in range(700)
    ),
    "policies": tuple(
        PolicyStatus(
            name=f"p-{n}", version="v", mode="DryRun", effective_mode="DryRun", loaded_at=1
        )
        for n in range(20_000)
    ),
    "policy_problems": tuple(
        PolicyProblem(source=f"{n}.yaml", message='"' * 5000) for n in range(500)
    ),
    "notes": ("n" * 3_000_000,),
    "pause": PauseStatus(reason="\n" * 900_000, by="b" * 900_000, since="s" * 900_000),
    "outbox": OutboxStatus(pending=1, trouble=("t" * 900_000,), last_failure="f" * 900_000),
}
NODES = tuple(NodeStatus(node=f"n{n}", phase=NodePhase.FROZEN, sentence="s") for n in range(200))


@pytest.mark.parametrize("fields", [*([one] for one in LONG), list(LONG)], ids=" ".join)
def test_whatever_is_long_the_document_fits_and_still_names_the_nodes(fields: list[str]) -> None:
    """A document that is refused shows yesterday, in the middle of an outage."""
    given = {one: LONG[one] for one in fields}
    whole = Status(version=1, time=1.0, leader="a", mode="DryRun", nodes=NODES, **given)
    text = fitted(whole)
    read = decode_status(text)
    assert len(msgspec.json.encode(text)) - 2 <= MAX_STATUS_BYTES
    assert read.nodes == NODES
    for one in fields:
        assert getattr(read, one), f"nothing is left of {one}"
    left = sum(len(given[one]) - len(getattr(read, one)) for one in given if one in ROWS)
    assert left == 0 or any(f"no room for {left} lines" in note for note in read.notes)


def test_names_are_left_out_before_anything_that_only_stands_there() -> None:
    whole = Status(version=1, time=1.0, leader="a", mode="DryRun", budgets=LONG["budgets"])
    read = decode_status(fitted(whole))
    assert len(read.budgets) == len(whole.budgets)
    assert {len(one.holders) for one in read.budgets} <= {5, 0}
    assert {(one.used, one.limit) for one in read.budgets} == {(60, 1)}


def test_an_expression_that_fails_is_a_note_and_counted_at_its_policy() -> None:
    facts = [node(i) for i in range(3)]
    failed = (("bus", "no such key: 'tier'"),)
    decisions = [decision(i, NodePhase.WELL, **({"failed": failed} if i else {})) for i in range(3)]
    status = build(world(*decisions, facts=facts, policies=(policy(), policy("ecc"))), facts)
    found = {one.name: one.expression_failures for one in status.policies}
    assert found == {"bus": 2, "ecc": 0}
    (note,) = status.notes
    assert "policy bus: its expression fails on 2 nodes" in note
    assert "such as on n2: no such key: 'tier'" in note
    assert not status.nodes
