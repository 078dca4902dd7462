"""What anyone can write into the cluster, spoilt: read, or refused with a sentence.

And what is read is decided about: a node whose annotations are readable and senseless costs
itself a decision at most, and never by a defect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.contract import (
    FAULTS_ANNOTATION,
    ContractError,
    decode_report,
    encode_report,
)
from remediator.decide.core import World, decide
from remediator.decide.decision import SendMessage
from remediator.decide.facts import Malformed
from remediator.decide.ledger import Ledger
from remediator.decide.requests import (
    APPROVAL_ANNOTATION,
    REQUEST_ANNOTATION,
    Approval,
    Request,
    Verb,
    decode_approvals,
    decode_request,
    encode_approvals,
)
from remediator.decide.session import (
    HISTORY_ANNOTATION,
    SESSION_ANNOTATION,
    AnnotationError,
    History,
    Session,
    Waiver,
    decode_history,
    decode_session,
    encode,
)
from remediator.decide.topics import Topic
from remediator.kube.objects import Node
from remediator.lab.nodes import well_node
from remediator.lab.said import AlertState, Asked, Said, Sayings
from remediator.lab.tape import (
    TapeError,
    encode_blind,
    encode_change,
    encode_header,
    encode_said,
)
from remediator.lab.tape import decode as decode_tape
from remediator.record import messages
from remediator.record.state import decode_state, restore
from remediator.record.status import (
    DueStatus,
    NodeStatus,
    PauseStatus,
    Status,
    StatusUnreadableError,
    decode_status,
    encode_status,
)
from remediator.signals.nodes import observe
from tests.property.cases import cases
from tests.property.spoil import altered, damaged
from tests.unit.decide.build import (
    GPU,
    START,
    Bench,
    cluster,
    node,
    patch_of,
    policies,
    policy,
    written,
    xid,
)


pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(3600)]
EVERYTHING: list[dict[str, Any]] = [
    {"cordon": {}},
    {"taint": {}},
    {"label": {"set": {"example.com/a": "x"}}},
    {"notify": {"to": ["log"]}, "timeout": "1m"},
    {"drain": {}, "timeout": "5m"},
]
POLICIES = policies(policy(steps=EVERYTHING))
SPEC = cluster(budgets=[{"maxUnavailable": "100%", "per": "cluster"}])


def treated() -> Bench:
    """Return a node in the middle of a remediation, with a past."""
    bench = Bench(policy(steps=EVERYTHING))
    waived = Waiver("bus", "xid:48:0000:9b:00.0:boot-1", START, "ann said so", reminded=True)
    past = History(waivers=(waived,), last="recovered").with_attempt(START, {"bus": ("cordon",)})
    bench.see(node(faults=(xid(),), history=past))
    for _ in range(4):
        bench.one(seconds=1)
    return bench


BENCH = treated()
GIVEN = {
    SESSION_ANNOTATION: [encode(BENCH.session())],
    HISTORY_ANNOTATION: [encode(BENCH.nodes["n1"].history)],
    REQUEST_ANNOTATION: [encode(Request(verb=verb, by="ann", at="2026-01-01")) for verb in Verb],
    APPROVAL_ANNOTATION: [
        encode_approvals(
            [Approval(BENCH.session().id, "bus", 3, "ann", "2026-01-01", "2099-01-01")]
        )
    ],
    FAULTS_ANNOTATION: [encode_report((xid(), xid(48)), boot_id="n1-boot-1")],
}
STATE = msgspec.json.encode(BENCH.ledger.state()).decode()
MESSAGES = messages.encode(
    messages.Correspondence(
        unsent=tuple(
            messages.Unsent(one, START)
            for one in BENCH.sent.values()
            if isinstance(one, SendMessage)
        ),
        topics={"ops": (Topic(id="t", conversations=("c",), members=("c|bus",), total=1),)},
        told={"k": START},
    )
)
STATUS = encode_status(
    Status(
        time=START,
        leader="a",
        mode="Enforce",
        pause=PauseStatus(by="ann"),
        nodes=(
            NodeStatus(
                node="n1",
                phase="held",
                sentence="x",
                dues=(DueStatus(policy="bus", what="y", at=START),),
            ),
        ),
    )
)
TAPE = (
    encode_header(START, 1),
    encode_change(None, well_node("n1", now=START, labels=GPU), 0.0) or "",
    encode_blind(40.0, 50.0),
    encode_said(
        Said(
            queries={"q": Asked("up == 0", "prom", 100.0)},
            sources={"alertmanager/main": (True, True, "")},
            alerts={"a": AlertState("main", {"alertname": "Lost"}, START, START, "n1")},
            answers={"q": {"n1": (True, 1.0), "n2": None}},
            results={"q": True},
            heard=("alertmanager/main",),
        ),
        60.0,
    ),
    encode_said(Said(alerts={"a": None}, answers={"q": {"n1": None}}, answered=("q",)), 90.0),
)


def spoilt(texts: Sequence[str]) -> st.SearchStrategy[str]:
    return altered(texts) | damaged(texts)


def annotated(**texts: str) -> Node:
    base = well_node("n1", now=START, labels=GPU)
    return msgspec.structs.replace(base, annotations={**base.annotations, **texts})


@settings(max_examples=cases(400))
@given(
    texts=st.fixed_dictionaries(
        {}, optional={key: spoilt(good) | st.sampled_from(good) for key, good in GIVEN.items()}
    ),
    cordoned=st.booleans(),
    world=st.sampled_from(World),
    steps=st.lists(st.sampled_from([1.0, 61.0, 1000.0, 90000.0]), min_size=1, max_size=3),
)
def test_a_node_with_spoilt_annotations_is_decided_about(
    texts: dict[str, str], *, cordoned: bool, world: World, steps: list[float]
) -> None:
    guards, now = Ledger(cluster=SPEC, started=START), START
    raw = msgspec.structs.replace(annotated(**texts), unschedulable=cordoned)
    facts = observe(None, raw, cluster=SPEC, now=now).facts
    for seconds in steps:
        guards.observe(facts, now)
        (decision,) = decide(
            [facts], policies=POLICIES, ledger=guards, outcomes={}, world=world, now=now
        )
        if decision.next_look is not None:
            assert decision.next_look > now
        patch = patch_of(decision)
        if isinstance(facts.session, Malformed) and facts.request is None:
            assert patch is None, "nobody knows what was done to it"
        if patch is not None and isinstance(patch.session, Session):
            assert decode_session(encode(patch.session), node_uid=raw.uid) == patch.session
        if patch is not None and isinstance(patch.history, History):
            assert decode_history(encode(patch.history), node_uid=patch.uid) == patch.history
        facts, now = written(facts, patch, now), now + seconds


READERS: dict[str, Callable[[str], object]] = {
    SESSION_ANNOTATION: lambda text: decode_session(text, node_uid="uid-n1"),
    HISTORY_ANNOTATION: lambda text: decode_history(text, node_uid="uid-n1"),
    REQUEST_ANNOTATION: decode_request,
    APPROVAL_ANNOTATION: decode_approvals,
    FAULTS_ANNOTATION: decode_report,
}


@pytest.mark.parametrize("key", sorted(GIVEN))
@settings(max_examples=cases(150))
@given(data=st.data())
def test_a_spoilt_annotation_is_read_or_refused_with_its_name(
    key: str, data: st.DataObject
) -> None:
    text = data.draw(spoilt(GIVEN[key]))
    try:
        READERS[key](text)
    except (AnnotationError, ContractError) as error:
        assert key in str(error)  # noqa: PT017 - most are read


@settings(max_examples=cases(200))
@given(text=spoilt([STATE]), seconds=st.sampled_from([0.0, 61.0, 1000.0]))
def test_a_spoilt_memory_of_the_guards_is_restored_or_counts_as_used_up(
    text: str, seconds: float
) -> None:
    loaded, guards, now = decode_state(text), Ledger(cluster=SPEC, started=START), START + seconds
    assert (loaded.state is None) == bool(loaded.problem)
    restore(guards, loaded, now=now)
    facts = observe(
        None, annotated(**{FAULTS_ANNOTATION: GIVEN[FAULTS_ANNOTATION][0]}), cluster=SPEC, now=now
    ).facts
    guards.observe(facts, now)
    decide([facts], policies=POLICIES, ledger=guards, outcomes={}, world=World.REAL, now=now)
    assert decode_state(msgspec.json.encode(guards.state()).decode()).problem == ""


@settings(max_examples=cases(200))
@given(text=spoilt([MESSAGES]))
def test_spoilt_messages_are_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        found = messages._decode(text)
        assert messages._decode(messages.encode(found)) == found


@settings(max_examples=cases(200))
@given(text=spoilt([STATUS]))
def test_a_spoilt_status_is_read_or_refused(text: str) -> None:
    try:
        found = decode_status(text)
    except StatusUnreadableError as error:
        assert str(error)  # noqa: PT017 - many are read
        return
    assert decode_status(encode_status(found)) == found


@settings(max_examples=cases(200))
@given(lines=st.tuples(*(spoilt([line]) | st.just(line) for line in TAPE)))
def test_a_spoilt_tape_is_read_or_refused_to_the_line(lines: tuple[str, ...]) -> None:
    try:
        found = list(decode_tape(f"{line}\n" for line in lines))
    except TapeError as error:
        assert str(error).startswith("line ")  # noqa: PT017 - some are read
        return
    assert all(change.node is None or change.node.name == change.name for change in found)
    sayings = Sayings()
    for change in found:
        if change.said is not None:
            sayings.take(change.said, change.at)
    seen = sayings.sightings()
    assert all(one in seen.around.alerts for alerts in seen.alerts.values() for one in alerts)
