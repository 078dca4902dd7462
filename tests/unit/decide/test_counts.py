"""Counts within a time, earlier attempts and expressions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from node_agent.contract import Fault, FaultKind, Past
from remediator.decide.match import Answer, instance_answer, match
from remediator.decide.session import DAY, History
from tests.unit.decide.build import SEEN, START, Bench, condition, node, policy, xid


def episodes(*hours: float, code: int = 94, pci: str = "0000:9b:00.0", count: int = 0) -> Fault:
    times = tuple(SEEN + timedelta(hours=hour) for hour in hours)
    return replace(xid(code, pci), times=times, count=count or len(times), last_seen=times[-1])


def counts(**clause: Any) -> Any:
    return policy(when=[{"count": {"xid": [94], "atLeast": 3} | clause}])


@pytest.mark.parametrize(
    ("clause", "faults", "answer"),
    [
        ({}, (episodes(0, 1, 2),), Answer.HOLDS),
        ({}, (episodes(0, 1),), Answer.CLEAR),
        ({}, (), Answer.CLEAR),
        ({}, (episodes(0, 1, 25),), Answer.CLEAR),
        ({}, (episodes(0, 10, 23.9),), Answer.HOLDS),
        ({}, (episodes(0, 10, 24),), Answer.CLEAR),
        ({"within": "1h"}, (episodes(0, 0.3, 0.6, 5),), Answer.CLEAR),
        ({"within": "1h"}, (episodes(0, 5, 5.3, 5.6),), Answer.HOLDS),
        ({}, (episodes(0, 1), episodes(0, 1, pci="0000:1b:00.0")), Answer.CLEAR),
        ({"per": "node"}, (episodes(0, 1), episodes(0, 1, pci="0000:1b:00.0")), Answer.HOLDS),
        ({}, (episodes(0, 1, 2, code=95),), Answer.CLEAR),
        ({"xid": [94, 95]}, (episodes(0, 1), episodes(2, code=95)), Answer.HOLDS),
        ({}, (episodes(2, count=3),), Answer.UNKNOWN),
        ({}, (episodes(2, count=2),), Answer.CLEAR),
    ],
    ids=[
        "three",
        "two",
        "none",
        "third-too-late",
        "just-within",
        "just-not-within",
        "an-old-burst-does-not-count",
        "a-new-burst-counts",
        "two-gpus-are-apart",
        "two-gpus-together",
        "another-code",
        "two-codes",
        "times-were-left-out",
        "times-were-left-out-and-do-not-matter",
    ],
)
def test_count(clause: dict[str, Any], faults: tuple[Fault, ...], answer: Answer) -> None:
    facts = node(conditions={"GPUXidError": condition("GPUXidError", "True")}, faults=faults)
    assert match(counts(**clause), facts, START).answer is answer


def test_a_count_says_how_many_where_and_ends_with_the_faults_themselves() -> None:
    facts = node(faults=(episodes(0, 1, 2), episodes(0, pci="0000:1b:00.0")))
    found = match(counts(), facts, START)
    assert found.reasons == ("3 x Xid 94 on 0000:9b:00.0",)
    assert found.instances == ("xid:94:0000:9b:00.0:boot-1",)
    assert instance_answer(found.instances[0], facts, START) is Answer.HOLDS
    assert instance_answer(found.instances[0], node(), START) is Answer.CLEAR
    everywhere = match(counts(per="node"), facts, START)
    assert everywhere.reasons == ("4 x Xid 94 on the node",)
    assert len(everywhere.instances) == 2


def over(*hours: float, code: int = 94, pci: str = "0000:9b:00.0") -> Past:
    times = tuple(SEEN + timedelta(hours=hour) for hour in hours)
    return Past(kind=FaultKind.XID, code=code, pci=pci, times=times)


@pytest.mark.parametrize(
    ("clause", "faults", "past", "answer"),
    [
        ({}, (episodes(3),), (over(0, 1),), Answer.HOLDS),
        ({}, (episodes(3),), (over(0),), Answer.CLEAR),
        ({}, (), (over(0, 1, 2, 3),), Answer.CLEAR),
        ({}, (episodes(25),), (over(0, 2),), Answer.CLEAR),
        ({"within": "2h"}, (episodes(9),), (over(0, 1, 2),), Answer.CLEAR),
        ({}, (episodes(3),), (over(0, 1, pci="0000:1b:00.0"),), Answer.CLEAR),
        ({"per": "node"}, (episodes(3),), (over(0, 1, pci="0000:1b:00.0"),), Answer.HOLDS),
        ({}, (episodes(3),), (over(0, 1, code=95),), Answer.CLEAR),
        ({"xid": [94, 95]}, (episodes(3),), (over(0, 1, code=95),), Answer.HOLDS),
        ({"xid": [94, 95]}, (episodes(3, code=63),), (over(0, 1),), Answer.CLEAR),
    ],
    ids=[
        "two-before-a-reset",
        "one-before-a-reset",
        "nothing-is-wrong-now",
        "too-long-ago",
        "an-old-burst",
        "of-another-gpu",
        "of-another-gpu-on-the-node",
        "another-code",
        "two-codes",
        "another-fault-is-there",
    ],
)
def test_a_count_goes_on_over_a_reset(
    clause: dict[str, Any], faults: tuple[Fault, ...], past: tuple[Past, ...], answer: Answer
) -> None:
    facts = node(
        conditions={"GPUXidError": condition("GPUXidError", "True" if faults else "False")},
        faults=faults,
        past=past,
    )
    assert match(counts(**clause), facts, START).answer is answer


def test_only_a_count_asks_what_is_over() -> None:
    facts = node(past=(over(0, 1, 2),))
    for entry in (
        {"xid": {"codes": [94]}},
        {"xid": {"minSeverity": "info"}},
        {"condition": {"type": "GPUXidError"}},
        {"xid": {"codes": [94]}, "cel": "faults.size() > 0"},
    ):
        assert match(policy(when=[entry]), facts, START).answer is Answer.CLEAR
    assert instance_answer("xid:94:0000:9b:00.0:boot-1", facts, START) is Answer.CLEAR


def test_a_count_of_what_is_there_is_unknown_while_some_of_the_past_is_missing() -> None:
    cut: dict[str, Any] = {"past": (over(0),), "past_truncated": True}
    assert match(counts(), node(faults=(episodes(1),), **cut), START).answer is Answer.UNKNOWN
    assert match(counts(), node(faults=(episodes(1, 2),), **cut), START).answer is Answer.HOLDS
    assert match(counts(), node(**cut), START).answer is Answer.CLEAR


def test_a_count_is_unknown_while_the_report_is_not_trusted() -> None:
    facts = node(faults=(episodes(0, 1),), faults_truncated=True)
    assert match(counts(), facts, START).answer is Answer.UNKNOWN
    assert match(counts(), node(boot_id="boot-2"), START).answer is Answer.UNKNOWN


def test_clocks_of_nodes_do_not_matter() -> None:
    facts = node(faults=(episodes(0, 1, 2),))
    assert SEEN.timestamp() > START + 10 * DAY
    assert match(counts(), facts, START).holds


# -- filters -------------------------------------------------------------------------------


SECOND_LINE = policy(when=[{"xid": {"codes": [79]}, "attempts": {"atLeast": 2}}])


@pytest.mark.parametrize(
    ("ago", "holds"),
    [((), False), ((100,), False), ((100, 200), True), ((100, DAY), False), ((1, 2, 3), True)],
)
def test_attempts_are_the_sessions_that_ended_lately(ago: tuple[float, ...], holds: bool) -> None:  # noqa: FBT001
    history = History(attempts=tuple(START - one for one in ago))
    facts = node(faults=(xid(),), history=history)
    found = match(SECOND_LINE, facts, START)
    assert found.answer is (Answer.HOLDS if holds else Answer.CLEAR)
    if holds:
        assert found.instances == ("xid:79:0000:9b:00.0:boot-1",)
        assert f"remediated {len(ago)} times before" in found.reasons


def test_attempts_say_when_they_are_forgotten() -> None:
    facts = node(
        conditions={"KernelDeadlock": condition("KernelDeadlock", "True")},
        history=History(attempts=(START - 3000, START - 10)),
    )
    one = policy(
        when=[{"condition": {"type": "KernelDeadlock"}, "attempts": {"atLeast": 2, "within": "1h"}}]
    )
    assert match(one, facts, START).next_look == START + 600


def cel(text: str) -> Any:
    return policy(when=[{"xid": {"codes": [79]}, "cel": text}])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("ready", Answer.HOLDS),
        ("!ready", Answer.CLEAR),
        ('name == "n1" && pool == "h100" && zone == ""', Answer.HOLDS),
        ('labels["nvidia.com/gpu.present"] == "true"', Answer.HOLDS),
        ('labels["absent"] == "true"', Answer.UNKNOWN),
        ('"absent" in labels && labels["absent"] == "true"', Answer.CLEAR),
        ('faults.exists(f, f.code == 79 && f.severity == "fatal" && f.count >= 1)', Answer.HOLDS),
        ('conditions["GPUXidError"].status == "True"', Answer.HOLDS),
        ("attempts == 1 && !unschedulable", Answer.HOLDS),
        ("alerts.size() == 0", Answer.HOLDS),
        ("1 / (attempts - 1) == 1", Answer.UNKNOWN),
        ("faults[0].code + 'x' == ''", Answer.UNKNOWN),
    ],
)
def test_an_expression_filters_and_where_it_fails_nobody_knows(text: str, answer: Answer) -> None:
    facts = node(faults=(xid(),), pool="h100", history=History(attempts=(START - 5,)))
    assert match(cel(text), facts, START).answer is answer


FAILS = 'labels["absent"] == "true"'


@pytest.mark.parametrize(
    "when",
    [
        [{"xid": {"codes": [79]}, "cel": FAILS}],
        [{"xid": {"codes": [48]}}, {"any": [{"xid": {"codes": [79]}, "cel": FAILS}]}],
    ],
)
def test_an_expression_that_fails_is_said_for_as_long_as_it_does(when: Any) -> None:
    bench = Bench(policy(when=when))
    bench.see(node(faults=(xid(),)))
    (decision,) = bench.decide()
    ((name, said),) = decision.failed
    assert (name, "absent" in said) == ("bus", True)
    assert not bench.cordoned()
    bench.change(labels={"absent": "true"})
    (decision,) = bench.decide()
    assert not decision.failed
    assert bench.cordoned()


def test_an_expression_is_asked_only_where_all_else_holds() -> None:
    well = match(cel(FAILS), node(), START)
    assert (well.answer, well.error) == (Answer.CLEAR, "")
    waits = policy(when=[{"condition": {"type": "K", "for": "1h"}, "cel": FAILS}])
    facts = node(conditions={"K": condition("K", "True")})
    assert match(waits, facts, START).error, "what will hold is asked, so that it is known before"
