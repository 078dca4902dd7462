"""What is asked later of a fault that began a session: there, gone, silenced, or doubtful?"""

from __future__ import annotations

import pytest

from remediator.decide.answer import Answer
from remediator.decide.facts import ClusterFacts, SourceFact
from remediator.decide.instances import (
    gone,
    in_first_answer,
    instance_answer,
    instance_doubt,
    queries_of,
    silenced,
    source_of,
    sources_of,
    speaker,
    still_there,
    unhealthy_since,
)
from tests.unit.decide.build import SEEN, START, alert, alive, node, query_fact, xid


FELL, OTHER = alert(), alert("Other", source="second")
HOLDS, CLEAR = query_fact(holds=True, source="main"), query_fact(holds=False, source="main")
XID = "xid:79:0000:9b:00.0:boot-1"
FACTS = node(faults=(xid(),), alerts=(FELL,), queries={"q1": HOLDS, "q2": CLEAR})
DOWN = SourceFact(ok=False, since=0.0, why="connection refused")


def test_who_speaks_for_a_fault() -> None:
    assert speaker("condition:GPULost=True") == "GPULost"
    assert speaker("condition:a=b=True") == "a=b"
    assert speaker(XID) == "GPUXidError"
    assert (speaker(FELL.instance), speaker("query:q1")) == ("", "")


def test_on_which_source_a_fault_rests() -> None:
    assert source_of(FELL.instance, FACTS) == "alertmanager/main"
    assert source_of(OTHER.instance, FACTS) == "alertmanager/second"
    assert source_of("query:q1", FACTS) == "prometheus/main"
    assert source_of("query:gone", FACTS) == ""
    assert source_of("condition:GPULost=True", FACTS) == "agents/all"
    assert source_of("condition:Ready=False", FACTS) == ""
    given = (XID, "query:gone", FELL.instance, "condition:GPULost=True")
    assert sources_of(given, FACTS) == ("agents/all", "alertmanager/main")


@pytest.mark.parametrize(
    ("instance", "is_gone"),
    [
        (FELL.instance, False),
        (OTHER.instance, True),
        ("query:q1", False),
        ("query:q2", True),
        ("query:q3", True),
        (XID, False),
        ("condition:GPULost=True", False),
        ("condition:q3", False),
    ],
)
def test_gone_is_what_an_alert_or_a_query_does_not_say_any_more(
    instance: str, *, is_gone: bool
) -> None:
    assert gone(instance, FACTS) is is_gone


def test_a_silence_counts_where_a_session_rests_on_that_alert() -> None:
    quiet = node(alerts=(FELL, alert("Other", source="second", suppressed=True)))
    assert "Other" in silenced([FELL.instance, OTHER.instance], quiet)
    assert silenced([FELL.instance], quiet) == ""
    assert silenced([FELL.instance], FACTS) == ""


def test_a_source_that_fails_is_why_its_fault_is_doubtful_and_no_other_is() -> None:
    known = (
        alive(),
        ClusterFacts(
            sources={"alertmanager/main": DOWN, "prometheus/main": SourceFact(ok=True, since=0.0)}
        ),
    )
    assert instance_doubt(FELL.instance, FACTS, START, known[0]) == ""
    assert "connection refused" in instance_doubt(FELL.instance, FACTS, START, known[1])
    assert instance_doubt("query:q1", FACTS, START, known[1]) == ""
    assert instance_doubt("query:gone", FACTS, START, known[1]) == ""
    assert instance_doubt(XID, FACTS, START, known[1]) == ""
    down = ClusterFacts(sources={"prometheus/main": DOWN})
    assert "connection refused" in instance_doubt("query:q1", FACTS, START, down)
    assert instance_doubt("condition:q1", FACTS, START, down) == ""


def test_the_queries_of_a_session_are_those_that_it_names_and_that_are_known() -> None:
    assert queries_of(["query:q2", XID, "query:gone", "condition:q1"], FACTS) == [CLEAR]


def test_what_is_still_there_of_a_session_s_faults() -> None:
    gone_since = node(faults=(xid(48),), alerts=(OTHER,), queries={"q1": CLEAR})
    known = alive()
    for instance in (XID, FELL.instance, "query:q1"):
        found = still_there([instance], FACTS, START, known)
        assert found.answer is Answer.HOLDS, instance
        assert found.instances == (instance,)
        assert still_there([instance], gone_since, START, known).answer is Answer.UNKNOWN
    both = still_there([FELL.instance, XID], FACTS, START, known)
    assert set(both.instances) == {FELL.instance, XID}
    assert still_there(["newer:1"], FACTS, START, known).answer is Answer.UNKNOWN
    later = still_there(["query:q1"], FACTS, HOLDS.fresh_until, known)
    assert (later.answer, later.fresh) == (Answer.HOLDS, False)


def test_a_query_proves_its_end_only_while_its_answer_is_fresh() -> None:
    assert instance_answer("query:q1", FACTS, START) is Answer.HOLDS
    assert instance_answer("query:q2", FACTS, CLEAR.fresh_until - 1.0) is Answer.CLEAR
    assert instance_answer("query:q2", FACTS, CLEAR.fresh_until) is Answer.UNKNOWN
    assert instance_answer("query:gone", FACTS, START) is Answer.UNKNOWN


def test_an_alert_that_is_absent_is_over_only_if_its_own_source_lives() -> None:
    two = ClusterFacts(
        sources={
            "alertmanager/main": SourceFact(ok=True, since=0.0, alive=True),
            "alertmanager/second": SourceFact(ok=True, since=0.0, alive=False),
        }
    )
    nothing = node()
    assert instance_answer(FELL.instance, nothing, START, two) is Answer.CLEAR
    assert instance_answer(OTHER.instance, nothing, START, two) is Answer.UNKNOWN
    assert instance_answer(FELL.instance, FACTS, START, two) is Answer.HOLDS


def test_what_the_first_answer_of_a_source_said_may_be_old() -> None:
    heard = ClusterFacts(heard={"alertmanager/main": START, "query:q1": START})
    assert in_first_answer(FELL.instance, FACTS, heard)
    assert in_first_answer("query:q1", FACTS, heard)
    assert not in_first_answer("query:q2", FACTS, heard)
    assert not in_first_answer(OTHER.instance, FACTS, heard)
    assert not in_first_answer(XID, FACTS, heard)
    later = node(alerts=(alert(since=START + 1.0),))
    assert not in_first_answer(FELL.instance, later, heard)


def test_since_when_a_node_is_unhealthy_by_whoever_saw_it_first() -> None:
    early = node(faults=(xid(),), alerts=(alert(starts_at=START - 500.0),), created=START - 9000.0)
    assert unhealthy_since([FELL.instance], early, START) == START - 500.0
    assert unhealthy_since(["query:q1"], early, START) == START
    young = node(alerts=(alert(starts_at=START - 500.0),), created=START - 100.0)
    assert unhealthy_since([FELL.instance], young, START) == START - 100.0
    first_seen = SEEN.timestamp()
    long_ago = first_seen + 1000.0
    for instance in (XID, "condition:GPULost=True"):
        assert unhealthy_since([instance], FACTS, long_ago) == first_seen, instance
    assert unhealthy_since(["condition:Ready=False"], FACTS, long_ago) == long_ago
