"""Alerts and answers in a recording: what is read back is what was said, and replays as it went."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediator.decide.facts import AlertFact, ClusterFacts, QueryFact, SourceFact
from remediator.kube.objects import Node
from remediator.lab import nodes as on
from remediator.lab.replay import Replayed, replay
from remediator.lab.said import Said, Sayings, Writer
from remediator.lab.simulate import simulate
from remediator.lab.tape import (
    TapeError,
    decode,
    encode_change,
    encode_header,
    encode_said,
)
from remediator.lab.timeline import What
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from remediator.signals.sightings import Sightings


START = 1_000_000.0
LASTS = 100.0
CLUSTER = ClusterSpec.model_validate(
    {"mode": "Enforce", "settling": "0s", "budgets": [{"maxUnavailable": 9, "per": "cluster"}]}
)
NAMES = ("n1", "n2")


def _named(fact: AlertFact) -> AlertFact:
    return replace(fact, labels={**fact.labels, "alertname": fact.name})


alerts = st.builds(
    AlertFact,
    source=st.just("main"),
    name=st.sampled_from(["A", "B"]),
    labels=st.dictionaries(st.sampled_from(["pod", "é"]), st.text(max_size=3), max_size=2),
    since=st.sampled_from([START, START + 5]),
    seen=st.just(START),
    starts_at=st.sampled_from([START - 50, START]),
    suppressed=st.booleans(),
).map(_named)
answers = st.builds(
    QueryFact,
    holds=st.booleans(),
    since=st.just(0.0),
    seen=st.just(0.0),
    fresh_until=st.just(LASTS),
    value=st.sampled_from([1.0, 2.5]),
    source=st.just("prom"),
)
levels = st.builds(SourceFact, ok=st.booleans(), since=st.just(0.0), why=st.text(max_size=3))


@st.composite
def sightings(draw: st.DrawFn) -> Sightings:
    """Alerts of one identity are one alert: about one node, or about none."""
    found = {repr(sorted(one.labels.items())): one for one in draw(st.lists(alerts, max_size=4))}
    places = {key: draw(st.sampled_from(["", *NAMES])) for key in found}
    on_nodes = {
        name: tuple(found[key] for key in found if places[key] == name)
        for name in NAMES
        if name in places.values()
    }
    around = ClusterFacts(
        alerts=tuple(found.values()),
        sources=draw(st.dictionaries(st.sampled_from(["alertmanager/main"]), levels, max_size=1)),
        queries=draw(st.dictionaries(st.sampled_from(["q", "r"]), st.booleans(), max_size=2)),
    )
    each = st.dictionaries(st.sampled_from(["q", "r"]), answers, min_size=1, max_size=2)
    queries = draw(st.dictionaries(st.sampled_from(NAMES), each, max_size=2))
    return Sightings(around, on_nodes, queries)


def essence(seen: Sightings) -> object:
    """What a recording keeps: values of queries only as they were when the answer began."""
    around = seen.around
    return (
        {name: sorted(map(repr, map(_timeless, one))) for name, one in seen.alerts.items() if one},
        {
            name: {key: (fact.holds, fact.source) for key, fact in known.items()}
            for name, known in seen.queries.items()
            if known
        },
        sorted(map(repr, map(_timeless, around.alerts))),
        {name: (one.ok, one.alive, one.why) for name, one in around.sources.items()},
        dict(around.queries),
    )


def _timeless(fact: AlertFact) -> tuple[Any, ...]:
    labels = sorted(fact.labels.items())
    return fact.source, fact.name, labels, fact.since, fact.starts_at, fact.suppressed


@given(given=st.lists(sightings(), max_size=5))
def test_what_was_said_is_read_back(given: list[Sightings]) -> None:
    writer, sayings = Writer({"q": "up == 0", "r": "up == 1"}), Sayings()
    lines = [encode_header(START, 2) + "\n"]
    for at, seen in enumerate(given):
        said = writer.difference(seen)
        if said is not None:
            lines.append(encode_said(said, float(at)) + "\n")
            (*_, change) = decode(lines)
            assert change.said is not None
            sayings.take(change.said, change.at)
        assert essence(sayings.sightings()) == essence(seen)
        assert writer.difference(seen) is None  # what is the same is not written again


# -- replays -----------------------------------------------------------------------------------


def policy(**spec: Any) -> RemediationPolicy:
    return RemediationPolicy.model_validate(
        {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediationPolicy",
            "metadata": {"name": "p"},
            "spec": {
                "steps": [{"cordon": {}}],
                "recover": {"for": "60s"},
                "limits": {"breaker": {"minNodes": 100}},
                **spec,
            },
        }
    )


BY_ALERT = policy(when=[{"alert": {"name": "Lost", "for": "2m"}}])
QUERY = {"promql": "lost", "clearedBy": "fine", "interval": "30s"}
BY_QUERY = policy(
    when=[{"query": QUERY}],
    recover={"for": "150s"},  # for longer than one answer lasts
)
((KEY),) = [entry.query.key for entry in BY_QUERY.spec.when if entry.query is not None]


class Tape:
    """A recording in the making: one node, whose agent is well, and what is said of it."""

    def __init__(self) -> None:
        self.lines = [encode_header(START, 1)]
        self.writer = Writer({KEY: "lost"})
        self._node: Node | None = None
        self.around: dict[str, Any] = {
            "sources": {
                "alertmanager/main": SourceFact(ok=True, since=START, alive=True),
                "prometheus/prom": SourceFact(ok=True, since=START),
            }
        }

    def beat(self, *times: int) -> None:
        for at in times:
            now = START + at
            labels = {"nvidia.com/gpu.present": "true"}
            old = self._node
            new = (
                on.well_node("n", now=now, labels=labels)
                if old is None
                else on.beaten(old, now=now)
            )
            self._node = new
            self.lines.append(encode_change(old, new, float(at)) or "")

    def say(
        self,
        at: int,
        *firing: AlertFact,
        node: str = "n",
        queries: Mapping[str, QueryFact] | None = None,
    ) -> None:
        around = ClusterFacts(alerts=firing, **self.around)
        on_node = {node: firing} if node and firing else {}
        seen = Sightings(around, on_node, {"n": queries} if queries else {})
        said = self.writer.difference(seen)
        if said is not None:
            self.lines.append(encode_said(said, float(at)))

    def replay(self, *policies: RemediationPolicy) -> Replayed:
        lines = [f"{line}\n" for line in self.lines]
        return replay(decode(lines), policies=policies, cluster=CLUSTER)


def lost(at: int, *, suppressed: bool = False) -> AlertFact:
    return AlertFact(
        source="main",
        name="Lost",
        labels={"alertname": "Lost"},
        since=START + at,
        seen=START + at,
        starts_at=START + at,
        suppressed=suppressed,
    )


def said_at(at: int, *, holds: bool, since: int) -> QueryFact:
    return QueryFact(
        holds=holds,
        since=START + since,
        seen=START + at,
        fresh_until=START + at + LASTS,
        value=1.0,
        source="prom",
    )


def steps(found: Replayed) -> list[tuple[float, str]]:
    return [(round(one.at - START), one.name) for one in found.timeline.of(What.STEP, What.UNDONE)]


def test_an_alert_is_judged_when_it_has_fired_long_enough_and_when_it_has_gone() -> None:
    tape = Tape()
    tape.beat(0)
    tape.say(1)
    tape.say(100, lost(100))
    tape.beat(300)
    tape.say(400)
    tape.beat(600)
    found = tape.replay(BY_ALERT)
    assert steps(found) == [(220, "cordon"), (460, "uncordon")]
    assert found.notes == ()


def test_an_alert_that_ends_while_its_source_is_not_alive_proves_nothing() -> None:
    tape = Tape()
    tape.around["sources"]["alertmanager/main"] = SourceFact(ok=True, since=START, alive=False)
    tape.beat(0)
    tape.say(1)
    tape.say(100, lost(100))
    tape.say(400)
    tape.beat(300, 600)
    assert steps(tape.replay(BY_ALERT)) == [(220, "cordon")]
    tape.around["sources"] = {"alertmanager/main": SourceFact(ok=True, since=START, alive=True)}
    tape.say(700)
    tape.beat(900)
    assert steps(tape.replay(BY_ALERT)) == [(220, "cordon"), (760, "uncordon")]


def test_a_silence_in_the_recording_holds() -> None:
    tape = Tape()
    tape.beat(0)
    tape.say(1)
    tape.say(100, lost(100, suppressed=True))
    tape.say(500, lost(100))
    tape.beat(300, 600)
    found = tape.replay(BY_ALERT)
    assert steps(found) == [(500, "cordon")]
    assert found.holds["silence"] == 1


@pytest.mark.parametrize(("answered", "ends"), [(True, True), (False, False)])
def test_a_query_recovers_by_answers_that_go_on(answered: bool, ends: bool) -> None:  # noqa: FBT001
    tape = Tape()
    tape.beat(0)
    tape.say(1)
    for at in range(30, 120, 30):
        tape.say(at, queries={KEY: said_at(at, holds=True, since=30)})
    for at in range(120, 600 if answered else 121, 30):
        tape.say(at, queries={KEY: said_at(at, holds=False, since=120)})
    tape.beat(300, 600, 900)
    found = tape.replay(BY_QUERY)
    assert [name for _, name in steps(found)] == ["cordon", *(["uncordon"] if ends else [])]


def test_a_query_begins_anew_when_it_was_not_answered_for_too_long() -> None:
    tape = Tape()
    tape.beat(0)
    lasting = policy(when=[{"query": QUERY | {"for": "3m"}}])
    for at in (30, 60, 90):
        tape.say(at, queries={KEY: said_at(at, holds=True, since=30)})
    for at in range(300, 600, 30):
        tape.say(at, queries={KEY: said_at(at, holds=True, since=300)})
    tape.beat(600)
    assert steps(tape.replay(lasting)) == [(480, "cordon")]


def test_unless_sees_alerts_beside_the_nodes() -> None:
    careful = policy(when=[{"alert": {"name": "Lost"}}], unless=[{"alert": {"name": "Upgrade"}}])
    upgrade = {"alertname": "Upgrade"}
    other = AlertFact(
        source="main", name="Upgrade", labels=upgrade, since=START, seen=START, starts_at=START
    )
    tape = Tape()
    tape.beat(0)
    said = tape.writer.difference(
        Sightings(ClusterFacts(alerts=(other, lost(50)), **tape.around), {"n": (lost(50),)})
    )
    assert said is not None
    tape.lines.append(encode_said(said, 50.0))
    tape.say(400, lost(50))
    tape.beat(600)
    assert steps(tape.replay(careful)) == [(400, "cordon")]


def test_what_the_recording_does_not_know_is_said() -> None:
    tape = Tape()
    tape.beat(0)
    old = [tape.lines[0].replace('"gpuRemediatorRecording":2', '"gpuRemediatorRecording":1')]
    old += tape.lines[1:]
    found = replay(decode(f"{one}\n" for one in old), policies=[BY_ALERT], cluster=CLUSTER)
    assert found.notes == ("the recording holds no alerts: p cannot be told by them",)
    tape.say(1)
    other = policy(when=[{"query": {"promql": "hot > 90"}}])
    (note,) = tape.replay(other).notes
    assert "no answer to query hot > 90" in note
    assert tape.replay(BY_QUERY, BY_ALERT).notes == ()


def test_a_look_at_the_recording_sees_what_was_said_then() -> None:
    tape = Tape()
    tape.beat(0)
    tape.say(1)
    tape.say(100, lost(100))
    sayings = Sayings()
    for change in decode(f"{line}\n" for line in tape.lines):
        if change.said is not None:
            sayings.take(change.said, change.at)
    node = on.well_node("n", now=START + 300, labels={"nvidia.com/gpu.present": "true"})
    found = simulate(
        [node],
        policies=[BY_ALERT],
        cluster=CLUSTER,
        now=START + 300,
        sightings=sayings.sightings(),
    )
    assert found.before["n"].alerts[0].name == "Lost"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"t": 1, "weather": {}}', "line 2: .*unknown field `weather`.*or a newer one"),
        ('{"t": 1, "said": {"traces": []}}', "line 2: .*unknown field `traces`.*or a newer one"),
    ],
)
def test_lines_of_a_newer_program_are_an_error_that_says_what_to_do(line: str, said: str) -> None:
    with pytest.raises(TapeError, match=said):
        list(decode([encode_header(START, 1) + "\n", line + "\n", "{}\n"]))
    newer = json.dumps({"gpuRemediatorRecording": 3, "start": START})
    with pytest.raises(TapeError, match=r"reads versions 1 to 2: take the program that recorded"):
        list(decode([newer + "\n"]))


def test_nothing_new_is_no_line() -> None:
    assert Writer({}).difference(Sightings()) is None
    assert msgspec.json.encode(Said()) == b"{}"
