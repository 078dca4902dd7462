"""A recording is its cluster: what is read back is what was there, and replays as it went."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from io import StringIO

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remediator.kube.objects import Condition, Node, Taint
from remediator.lab import nodes as on
from remediator.lab.replay import replay
from remediator.lab.run import Lab
from remediator.lab.tape import (
    LISTED_SECONDS,
    Change,
    TapeError,
    decode,
    encode_blind,
    encode_change,
    encode_header,
)
from remediator.lab.timeline import Timeline, What
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from tests.property.cases import cases
from tests.property.lab.test_agrees_with_engine import changed, node_of, policies, times


START = 1_000_000.0
NAMES = ("n1", "n2", "n3")
SPEC = {
    "mode": "Enforce",
    "budgets": [{"maxUnavailable": 2, "per": "cluster"}],
    "breaker": {"minNodes": 100},
}
GUARDED = frozenset(("uncordon", "cordon", "79", "48", "GPULost", "clear", "down", "up", "beat"))
OURS = "gpu-remediator.io/unhealthy"
MARKED = frozenset(("taint", "untaint", "retaint", "relabel", "unlabel", "annotate"))
"""People touch what our steps set."""
COMES_AND_GOES = frozenset(("gone", "other", "blind"))
"""A node is deleted, one of its name with another UID is there, and nothing was seen."""

MARKING = RemediationPolicy.model_validate(
    {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": "marks"},
        "spec": {
            "mode": "Enforce",
            "when": [{"xid": {"codes": [48]}}],
            "steps": [
                {"label": {"set": {"state": "bad", "other": "bad"}}},
                {"annotate": {"set": {"note": "bad"}}},
                {"wait": {"for": "9s"}},
                {"label": {"set": {"state": "worse"}}},
            ],
            "recover": {"for": "20s"},
        },
    }
)

texts = st.text(max_size=8)
pairs = st.dictionaries(texts, texts, max_size=3)
conditions = st.lists(
    st.builds(
        Condition,
        type=st.sampled_from(["Ready", "GPULost", "é"]),
        status=st.sampled_from(["True", "False", "Unknown"]),
        reason=texts,
        message=texts,
        last_heartbeat_time=st.sampled_from([None, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
    ),
    max_size=3,
    unique_by=lambda one: one.type,
)
taints = st.lists(st.builds(Taint, key=texts, value=texts, effect=texts), max_size=2)
versions = st.lists(
    st.none()
    | st.builds(
        Node,
        name=st.just("n"),
        uid=st.sampled_from(["u1", "u2"]),
        resource_version=st.just("1"),
        labels=pairs,
        annotations=pairs,
        dropped_annotations=st.just(0),
        created=st.just("2026-01-01T00:00:00Z"),
        deleted=st.sampled_from([None, "2026-01-03T00:00:00Z"]),
        unschedulable=st.booleans(),
        taints=taints.map(tuple),
        conditions=conditions.map(tuple),
        addresses=st.just(()),
        boot_id=texts,
    ),
    max_size=6,
)


def essence(node: Node | None) -> object:
    """Return what a recording keeps of a node; heartbeats only by that they changed."""
    if node is None:
        return None
    return (
        node.uid,
        node.labels,
        node.annotations,
        node.deleted is not None,
        node.unschedulable,
        [(one.key, one.value, one.effect) for one in node.taints],
        {one.type: (one.status, one.reason, one.message) for one in node.conditions},
        node.boot_id,
    )


@given(given=versions)
def test_every_version_is_read_back(given: list[Node | None]) -> None:
    lines, seen, old = [encode_header(START, 1)], [], None
    for at, new in enumerate(given):
        line = encode_change(old, new, float(at))
        if line is not None:
            lines.append(line)
            seen.append(essence(new))
        else:
            assert essence(old) == essence(new)
        old = new
    back = [essence(one.node) for one in decode(f"{line}\n" for line in lines)]
    assert back == seen


@given(given=versions, cut=st.integers(1, 60))
def test_a_recording_that_was_cut_off_is_short_and_not_broken(
    given: list[Node | None], cut: int
) -> None:
    lines, old = [encode_header(START, 1) + "\n"], None
    for at, new in enumerate(given):
        if (line := encode_change(old, new, float(at))) is not None:
            lines.append(line + "\n")
        old = new
    whole = list(decode(lines))
    if len(lines) > 1:
        shorter = list(decode([*lines[:-1], lines[-1][: -min(cut, len(lines[-1]))]]))
        assert shorter == whole[:-1] or shorter == whole


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "line 1: this is no recording"),
        (['{"kind": "Node"}\n'], "line 1: this is no recording"),
        (['{"gpuRemediatorRecording": 9, "start": 1.0}\n'], "version 9"),
        ([encode_header(1.0, 1) + "\n", "{\n", "{}\n"], "line 2"),
        ([encode_header(1.0, 1) + "\n", '{"t": 1, "node": "x", "set": {}}\n'], "no first line"),
    ],
)
def test_a_damaged_recording_is_named_to_the_line(lines: list[str], said: str) -> None:
    with pytest.raises(TapeError, match=said):
        list(decode(lines))


def versions_of(name: str) -> st.SearchStrategy[list[Node | None]]:
    return versions.map(
        lambda found: [one and msgspec.structs.replace(one, name=name) for one in found]
    )


@given(before=versions_of("n"), also=versions_of("m"), after=versions_of("n"), cut=st.booleans())
def test_a_recorder_that_begins_again_goes_on(
    before: list[Node | None], also: list[Node | None], after: list[Node | None], *, cut: bool
) -> None:
    """Two recordings in one file: what the second one does not know is gone."""
    first = [*recorded(before, START), *recorded(also, START)[1:]]
    second = recorded(after, START + 3600.0)
    if cut:
        first.append('{"t":9.0,"node":"n","set":{"uid":"u9","labels":{"a":"')
    end = encode_change(None, node_of("end"), LISTED_SECONDS + 100.0)
    changes = list(decode(StringIO("".join([*first, *second, f"{end}\n"]), newline="\n")))
    assert {key: essence(one) for key, one in standing(changes).items() if key != "end"} == {
        key: essence(one) for key, one in standing(decode(second)).items()
    }
    (again,) = [one for one in changes if one.anew]
    assert again.at == START + 3600.0
    assert again.at - again.blind == max(
        (one.at for one in changes if one.at < again.at), default=START
    )


def recorded(given: list[Node | None], start: float) -> list[str]:
    """Return the lines of these versions of one node, one a second."""
    lines, old = [encode_header(start, len(given[:1])) + "\n"], None
    for at, new in enumerate(given):
        if (line := encode_change(old, new, float(at))) is not None:
            lines.append(line + "\n")
        old = new
    return lines


def standing(changes: Iterable[Change]) -> dict[str, Node]:
    """Return the nodes that are there in the end."""
    found: dict[str, Node] = {}
    for one in changes:
        if one.node is not None:
            found[one.name] = one.node
        elif one.name:
            del found[one.name]
    return found


def events_of(kinds: frozenset[str]) -> st.SearchStrategy[list[tuple[int, str, str]]]:
    return st.lists(
        st.tuples(st.integers(1, 12), st.sampled_from(NAMES), st.sampled_from(sorted(kinds))),
        min_size=1,
        max_size=14,
    )


def steps(timeline: Timeline) -> list[tuple[float, str, str, str, str]]:
    found = timeline.of(What.STEP, What.UNDONE, What.ENDED)
    return [(round(one.at, 2), one.node, one.policy, one.name, one.result) for one in found]


@settings(max_examples=cases(80))
@given(
    script=events_of(GUARDED)
    | events_of(GUARDED | COMES_AND_GOES)
    | events_of(MARKED | {"48", "clear", "uncordon"})
)
def test_a_recording_replays_as_it_went(script: list[tuple[int, str, str]]) -> None:
    """Our own cordons and sessions are in the recording, and are not taken for people's."""
    cluster = ClusterSpec.model_validate(SPEC)
    enforced = [*policies("Enforce"), MARKING]
    lab = Lab(policies=enforced, cluster=cluster, start=START)
    lines = [encode_header(START, len(NAMES))]

    def written(old: Node | None, new: Node | None) -> None:
        line = encode_change(old, new, lab.now - START)
        if line is not None:
            lines.append(line)

    def blind() -> None:
        lines.append(encode_blind(42.0, lab.now - START))
        lab.blind(42.0)

    lab.on_version = written
    for name in NAMES:
        lab.put(node_of(name))
    for at, name, what in [*times(script), (2000.37, "last", "other")]:
        lab.call_at(START + at, blind if what == "blind" else _event(lab, name, what))
    lab.run(START + 2001.0)
    changes = list(decode(f"{line}\n" for line in lines))
    again = replay(changes, policies=enforced, cluster=cluster)
    assert steps(again.timeline) == steps(lab.timeline)
    assert again.lost == lab.timeline.lost
    assert any("saw nothing" in note for note in again.notes) is ("blind" in str(script))


def _event(lab: Lab, name: str, what: str) -> Callable[[], None]:
    def happen() -> None:
        there = lab.fleet.node(name)
        if what == "other":
            lab.put(msgspec.structs.replace(node_of(name), uid=f"{name} of {lab.now}"))
        elif there is not None and what == "gone":
            lab.remove(name)
        elif there is not None and what in MARKED:
            lab.put(marked(there, what))
        elif there is not None:
            lab.put(changed(there, what, lab.now))

    return partial(happen)


def marked(node: Node, what: str) -> Node:
    """Return the node after a person touched a taint, a label or an annotation."""
    done: dict[str, Node] = {
        "taint": on.with_taint(node, OURS, "NoSchedule"),
        "retaint": on.with_taint(node, OURS, "NoSchedule", value="theirs"),
        "untaint": on.without_taint(node, OURS),
        "relabel": on.with_texts(node, labels={"state": "mine", "other": "bad"}),
        "unlabel": on.with_texts(node, labels={"state": None, "other": None}),
        "annotate": on.with_texts(node, annotations={"note": "mine"}),
    }
    return done[what]


def test_a_cordon_of_another_controller_s_session_is_not_taken_over() -> None:
    """Recorded under one policy, replayed under none: nothing is out of service by us."""
    cluster = ClusterSpec.model_validate(SPEC)
    lab = Lab(policies=policies("Enforce"), cluster=cluster, start=START)
    lines = [encode_header(START, 1)]
    lab.on_version = lambda old, new: lines.append(encode_change(old, new, lab.now - START) or "")
    lab.put(node_of("n1"))
    lab.call_at(START + 100, _event(lab, "n1", "79"))
    lab.run(START + 200)
    assert lab.node("n1").unschedulable
    lab.put(msgspec.structs.replace(lab.node("n1"), labels={**lab.node("n1").labels, "a": "b"}))
    other = [one for one in policies("Enforce") if one.name == "ecc"]
    again = replay(decode(f"{line}\n" for line in lines), policies=other, cluster=cluster)
    assert again.sessions == 0
    assert again.lost_node_hours == 0.0
    first = replay(decode(f"{line}\n" for line in lines), policies=policies(), cluster=cluster)
    assert first.sessions == 1
    assert first.most_lost == 1


def test_a_well_node_is_recorded_once() -> None:
    node = on.well_node("n", now=START, labels={})
    assert encode_change(node, node, 1.0) is None
    beat = encode_change(node, on.beaten(node, now=START + 300), 300.0)
    assert beat is not None
    assert "beats" in beat
    assert "set" not in beat
