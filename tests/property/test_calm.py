"""A calm node's one answer is what every policy's own clauses would say of it."""

from __future__ import annotations

from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from node_agent.contract import STALE_AFTER_SECONDS, ConditionType
from remediator.decide.answer import Answer
from remediator.decide.calm import calm
from remediator.decide.facts import ConditionFact, NodeFacts
from remediator.decide.match import match
from tests.unit.decide.build import START, node, policy, xid


TYPES = [kind.value for kind in ConditionType]
clauses = st.one_of(
    st.just({"xid": {"codes": [79]}}),
    st.just({"sxid": {"codes": [20034]}}),
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
    for kind in draw(st.lists(st.sampled_from([*TYPES, "Ready"]), unique=True)):
        seen = START - draw(st.sampled_from([0.0, 60.0, STALE_AFTER_SECONDS]))
        status = draw(st.sampled_from(["False", "False", "False", "True", "Unknown"]))
        conditions[kind] = ConditionFact(kind, status, "R", "", since=seen - 3600.0, seen=seen)
    return node(
        faults=draw(st.sampled_from([(), (), (xid(48),)])),
        conditions=conditions,
        boot_id=draw(st.sampled_from(["boot-1", "boot-1", "boot-2", ""])),
        faults_note=draw(st.sampled_from(["", "", "of a newer version"])),
        faults_truncated=draw(st.sampled_from([False, False, True])),
        info_truncated=draw(st.sampled_from([False, False, True])),
    )


@given(facts=nodes(), when=whens)
def test_what_a_calm_node_vouches_for_is_clear_to_the_clauses_too(
    facts: NodeFacts, when: list[dict[str, Any]]
) -> None:
    asked = policy(when=when)
    quiet = calm(facts, START)
    vouched = quiet is not None and quiet.vouches(asked.agent_types)
    event(f"vouched: {vouched}")
    if quiet is None or not vouched:
        return
    found = match(asked, facts, START)
    assert found.answer is Answer.CLEAR
    assert not found.instances
    assert not found.silenced
    assert not found.doubt
    assert found.next_look is None or quiet.until <= found.next_look
    assert quiet.until > START
