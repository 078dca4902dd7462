"""What an agent's one answer vouches for is what every policy's own clauses would say of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec import structs

from node_agent.contract import STALE_AFTER_SECONDS, ConditionType, FaultKind
from remediator.decide.answer import Answer
from remediator.decide.calm import calm
from remediator.decide.facts import ConditionFact, NodeFacts
from remediator.decide.match import match
from tests.unit.decide.build import START, node, policy, xid


TYPES = [kind.value for kind in ConditionType]
FAULTS = [
    xid(48),
    xid(94),
    structs.replace(xid(48), kind=FaultKind.SXID, code=20034),
    structs.replace(xid(48), kind=FaultKind.THERMAL, code=None),
]
clauses = st.one_of(
    st.just({"xid": {"codes": [79]}}),
    st.just({"xid": {"codes": [48, 63]}}),
    st.just({"xid": {"minSeverity": "warning", "except": [48]}}),
    st.just({"sxid": {"codes": [20034]}}),
    st.just({"sxid": {"minSeverity": "info"}}),
    st.just({"count": {"xid": [48, 79], "atLeast": 2, "within": "1h", "per": "node"}}),
    st.just({"count": {"xid": [94], "atLeast": 2, "within": "1h"}}),
    st.just({"alert": {"name": "GpuFell"}}),
    st.just({"xid": {"codes": [79]}, "attempts": {"atLeast": 1}}),
    st.builds(
        lambda kind, status, seconds: {
            "condition": {"type": kind, "status": status, "for": f"{seconds}s"}
        },
        st.sampled_from([*TYPES, "Ready", "AcceleratedHardwareReady"]),
        st.sampled_from(["True", "False", "Unknown"]),
        st.sampled_from([0, 60]),
    ),
)
nested = st.one_of(
    clauses,
    st.builds(
        lambda key, parts: {key: parts},
        st.sampled_from(["all", "any"]),
        st.lists(clauses, min_size=1, max_size=3),
    ),
)
whens: st.SearchStrategy[list[dict[str, Any]]] = st.lists(nested, min_size=1, max_size=3)


@st.composite
def nodes(draw: st.DrawFn) -> NodeFacts:
    conditions = {}
    told = [*TYPES, "Ready"]
    left_out = draw(st.lists(st.sampled_from(told), unique=True, max_size=4))
    odd = draw(st.lists(st.sampled_from(told), unique=True, max_size=4))
    for kind in told:
        if kind in left_out:
            continue
        seen, status = START, "False"
        if kind in odd:
            seen -= draw(st.sampled_from([0.0, 60.0, STALE_AFTER_SECONDS]))
            status = draw(st.sampled_from(["False", "True", "True", "Unknown"]))
        conditions[kind] = ConditionFact(kind, status, "R", "", since=seen - 3600.0, seen=seen)
    return node(
        faults=tuple(draw(st.lists(st.sampled_from(FAULTS), max_size=2, unique=True))),
        conditions=conditions,
        boot_id=draw(st.sampled_from(["boot-1"] * 6 + ["boot-2", ""])),
        faults_note=draw(st.sampled_from([""] * 6 + ["of a newer version"])),
        faults_truncated=draw(st.sampled_from([False] * 6 + [True])),
        info_truncated=draw(st.sampled_from([False] * 6 + [True])),
    )


@given(facts=nodes(), when=whens)
def test_what_an_agent_vouches_for_is_clear_to_the_clauses_too(
    facts: NodeFacts, when: list[dict[str, Any]]
) -> None:
    asked = policy(when=when)
    quiet = calm(facts, START)
    vouched = quiet is not None and quiet.vouches(asked.asked)
    event(f"vouched: {vouched}, with a fault: {bool(facts.faults)}")
    if quiet is None or not vouched:
        return
    found = match(asked, facts, START)
    assert found.answer is Answer.CLEAR
    assert not found.instances
    assert not found.silenced
    assert not found.doubt
    assert found.next_look is None or quiet.until <= found.next_look
    assert quiet.until > START


@pytest.mark.parametrize(
    ("entry", "vouched"),
    [
        ({"xid": {"codes": [79]}}, True),
        ({"xid": {"codes": [48]}}, False),
        ({"count": {"xid": [79], "atLeast": 2}}, True),
        ({"count": {"xid": [48], "atLeast": 2}}, False),
        ({"any": [{"xid": {"codes": [79]}}, {"xid": {"codes": [48]}}]}, False),
        ({"sxid": {"codes": [20034]}}, True),
        ({"xid": {"minSeverity": "fatal"}}, False),
        ({"condition": {"type": "GPULost"}}, True),
        ({"condition": {"type": "GPUXidError"}}, False),
        ({"xid": {"codes": [79]}, "alert": {"name": "GpuFell"}}, False),
    ],
)
def test_with_a_fault_an_agent_vouches_for_all_that_it_does_not_name(
    entry: dict[str, Any], *, vouched: bool
) -> None:
    kinds = {kind: "True" if kind == ConditionType.XID_ERROR else "False" for kind in TYPES}
    conditions = {
        kind: ConditionFact(kind, status, "R", "", since=START, seen=START)
        for kind, status in kinds.items()
    }
    quiet = calm(node(faults=(xid(48),), conditions=conditions), START)
    assert quiet is not None
    assert quiet.vouches(policy(when=[entry]).asked) is vouched
    assert not quiet.vouches(policy(when=[entry, {"xid": {"codes": [48]}}]).asked)
