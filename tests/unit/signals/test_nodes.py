"""The fold of node versions into facts, by the controller's own clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from node_agent.contract import (
    FAULTS_ANNOTATION,
    MAX_READ,
    STALE_AFTER_SECONDS,
    VERSION,
    Fault,
    FaultKind,
    Past,
    Severity,
    encode_report,
)
from remediator.decide.facts import Malformed, NodeFacts, NodeMode
from remediator.decide.requests import MAX_SAID, REQUEST_ANNOTATION, Request, Verb
from remediator.decide.session import (
    HISTORY_ANNOTATION,
    MODE_KEY,
    SESSION_ANNOTATION,
    Added,
    Before,
    History,
    PolicyHold,
    Result,
    Session,
    StepResult,
    Waiver,
    encode,
)
from remediator.decide.session import Taint as OurTaint
from remediator.kube.objects import Condition, Node, Taint
from remediator.policy.cluster import ClusterSpec
from remediator.signals.nodes import (
    FIRST_SIGHT_AGE,
    MAX_REASONS,
    Observation,
    observe,
    restart_ages,
    significant,
)
from tests.unit.kube.build import bare_node


CLUSTER = ClusterSpec()
GPU = {"nvidia.com/gpu.present": "true"}
SEEN = datetime(2026, 1, 1, tzinfo=UTC)
XID = Fault(kind=FaultKind.XID, severity=Severity.FATAL, first_seen=SEEN, last_seen=SEEN, code=79)


def condition(
    status: str, beat: str = "1", *, kind: str = "GPUXidError", reason: str = "Xid79"
) -> Condition:
    return Condition(type=kind, status=status, reason=reason, last_heartbeat_time=beat)


SESSION = Session(
    version=1,
    id="s1",
    node_uid="u1",
    boot_id="b1",
    started=1.0,
    before=Before(),
    added=Added(),
    holds=(),
)
READY = condition("True", kind="Ready", reason="KubeletReady")


def node(*conditions: Condition, version: int = 1, **changes: Any) -> Node:
    base = bare_node(
        resource_version=str(version),
        labels=GPU,
        created="2026-01-01T00:00:00Z",
        conditions=(READY, *conditions),
        boot_id="b1",
    )
    return msgspec.structs.replace(base, **changes)


def fold(*versions: tuple[float, Node], cluster: ClusterSpec = CLUSTER) -> Observation:
    seen: Observation | None = None
    for now, one in versions:
        seen = observe(seen, one, cluster=cluster, now=now)
    assert seen is not None
    return seen


def facts(*versions: tuple[float, Node]) -> NodeFacts:
    return fold(*versions).facts


def test_since_is_when_we_saw_the_status_begin() -> None:
    fact = facts(
        (100.0, node(condition("False"))),
        (200.0, node(condition("True", "2"))),
        (300.0, node(condition("True", "3"))),
    ).conditions["GPUXidError"]
    assert (fact.since, fact.seen) == (200.0, 300.0)


def test_another_reason_does_not_restart_the_age() -> None:
    fact = facts(
        (100.0, node(condition("False"))),
        (200.0, node(condition("True"))),
        (300.0, node(condition("True", reason="Xid48"))),
    ).conditions["GPUXidError"]
    assert (fact.since, fact.reason) == (200.0, "Xid48")


def test_reasons_that_alternate_are_remembered_from_when_they_were_first_seen() -> None:
    known = facts(
        (100.0, node(condition("True", reason="A"))),
        (200.0, node(condition("True", reason="B"))),
        (300.0, node(condition("True", reason="A"))),
        (400.0, node(condition("True", reason="C"))),
    )
    fact = known.conditions["GPUXidError"]
    assert fact.reasons == {"A": 100.0, "B": 200.0, "C": 400.0}
    assert fact.since_of(("B", "C")) == 200.0
    assert fact.since_of(("never",)) == fact.since_of(()) == 100.0
    blind = restart_ages(known, now=500.0, blind_since=450.0).conditions["GPUXidError"]
    assert blind.since_of(("B",)) == 500.0


def test_another_status_forgets_the_reasons_and_they_are_bounded() -> None:
    versions = [(float(at), node(condition("True", reason=f"R{at}"))) for at in range(100)]
    assert len(facts(*versions).conditions["GPUXidError"].reasons) == MAX_REASONS
    healed = facts(*versions, (200.0, node(condition("False"))))
    assert not healed.conditions["GPUXidError"].reasons


def test_only_another_heartbeat_shows_that_the_writer_lives() -> None:
    other = condition("False", "9", kind="DiskPressure")
    fact = facts(
        (100.0, node()),
        (200.0, node(condition("True", "1"))),
        (300.0, node(condition("True", "1"), other)),
    ).conditions["GPUXidError"]
    assert fact.seen == 200.0


def test_what_we_find_at_first_must_soon_be_renewed() -> None:
    fact = facts((1000.0, node(condition("False")))).conditions["GPUXidError"]
    assert fact.since == 1000.0
    assert fact.fresh(1000.0 + STALE_AFTER_SECONDS - FIRST_SIGHT_AGE - 1)
    assert not fact.fresh(1000.0 + STALE_AFTER_SECONDS - FIRST_SIGHT_AGE)


def test_a_heartbeat_alone_is_no_change_unless_it_ends_a_silence() -> None:
    before = fold((100.0, node()), (200.0, node(condition("True", "1"))))
    soon = observe(before, node(condition("True", "2"), version=2), cluster=CLUSTER, now=300.0)
    assert not significant(before, soon, now=300.0)
    assert soon.facts.conditions["GPUXidError"].seen == 300.0
    assert soon.facts.resource_version == "2"
    late = 200.0 + STALE_AFTER_SECONDS
    again = observe(before, node(condition("True", "2")), cluster=CLUSTER, now=late)
    assert significant(before, again, now=late)


def test_a_heartbeat_that_says_well_counts_during_a_session() -> None:
    text = {SESSION_ANNOTATION: encode(SESSION)}
    for status, counts in (("False", True), ("True", False)):
        before = fold((100.0, node(condition(status, "1"), annotations=text)))
        after = observe(
            before, node(condition(status, "2"), annotations=text), cluster=CLUSTER, now=200.0
        )
        assert significant(before, after, now=200.0) is counts


@pytest.mark.parametrize(
    "changed",
    [
        node(condition("False")),
        node(condition("True", reason="Xid48")),
        node(),
        node(condition("True"), unschedulable=True),
        node(condition("True"), boot_id="b2"),
        node(condition("True"), deleted="2026-01-02T00:00:00Z"),
        node(condition("True"), labels={**GPU, "a": "b"}),
        node(condition("True"), taints=(Taint(key="x", effect="NoSchedule"),)),
        node(condition("True"), annotations={MODE_KEY: "disabled"}),
        node(condition("True"), annotations={FAULTS_ANNOTATION: encode_report((), boot_id="b1")}),
        msgspec.structs.replace(node(condition("True")), conditions=(condition("True"),)),
    ],
)
def test_everything_else_is_a_change(changed: Node) -> None:
    before = fold((100.0, node(condition("True"))))
    after = observe(before, changed, cluster=CLUSTER, now=200.0)
    assert significant(before, after, now=200.0)


def test_faults_are_read_once_and_kept() -> None:
    text = encode_report((XID,), boot_id="b1")
    first = fold((100.0, node(annotations={FAULTS_ANNOTATION: text})))
    assert first.facts.faults == (XID,)
    assert first.facts.faults_boot_id == "b1"
    second = observe(
        first, node(annotations={FAULTS_ANNOTATION: text, "x": "y"}), cluster=CLUSTER, now=200.0
    )
    assert second.facts.faults is first.facts.faults
    gone = observe(second, node(), cluster=CLUSTER, now=300.0)
    assert (gone.facts.faults, gone.facts.faults_boot_id) == ((), "")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        f'{{"version": {VERSION + 1}}}',
        '{"version": "x"}',
        f'{{"version": {VERSION}}}' + " " * MAX_READ,
    ],
)
def test_unreadable_faults_leave_the_conditions_and_say_so(text: str) -> None:
    found = facts((100.0, node(condition("True"), annotations={FAULTS_ANNOTATION: text})))
    assert found.faults == ()
    assert FAULTS_ANNOTATION in found.faults_note
    assert found.conditions["GPUXidError"].status == "True"


def test_a_truncated_report_says_what_is_missing() -> None:
    text = '{"version":1,"bootID":"b","faults":[],"truncated":{"warning":2}}'
    found = facts((1.0, node(annotations={FAULTS_ANNOTATION: text})))
    assert (found.faults_truncated, found.info_truncated) == (True, False)
    text = '{"version":1,"bootID":"b","faults":[],"truncated":{"info":2}}'
    found = facts((1.0, node(annotations={FAULTS_ANNOTATION: text})))
    assert (found.faults_truncated, found.info_truncated) == (False, True)


def test_what_is_over_is_known_apart_from_what_is_there() -> None:
    past = Past(kind=FaultKind.XID, code=94, pci="0000:9b:00.0", times=(SEEN,))
    text = encode_report((XID,), boot_id="b1", past=(past,))
    found = facts((1.0, node(annotations={FAULTS_ANNOTATION: text})))
    assert (found.faults, found.past, found.past_truncated) == ((XID,), (past,), False)
    text = '{"version":1,"bootID":"b","faults":[],"truncated":{"past":2}}'
    found = facts((1.0, node(annotations={FAULTS_ANNOTATION: text})))
    assert (found.past, found.past_truncated) == ((), True)
    assert (found.faults_truncated, found.info_truncated) == (False, False)
    assert facts((1.0, node())).past == ()


@pytest.mark.parametrize("text", ["", "{", "null", '{"version": 2}'])
def test_an_unreadable_session_is_malformed(text: str) -> None:
    found = facts((1.0, node(annotations={SESSION_ANNOTATION: text})))
    assert isinstance(found.session, Malformed)


DEEP = '{"version":1,"more":' + "[" * 20_000 + "]" * 20_000 + "}"


def test_what_is_nested_too_deeply_is_unreadable() -> None:
    keys = (FAULTS_ANNOTATION, SESSION_ANNOTATION, HISTORY_ANNOTATION, REQUEST_ANNOTATION)
    seen = fold((1.0, node(annotations=dict.fromkeys(keys, DEEP))))
    assert isinstance(seen.facts.session, Malformed)
    assert seen.facts.faults_note
    assert HISTORY_ANNOTATION in seen.problem
    assert REQUEST_ANNOTATION in seen.problem


def test_times_of_a_clock_that_ran_ahead_count_as_of_now() -> None:
    done = StepResult(step=0, action="cordon", result=Result.DONE, at=9000.0)
    hold = PolicyHold(
        policy="p", version="v", plan="{}", reasons=(), instances=(), since=50.0,
        step_since=9000.0, results=(done,),
    )  # fmt: skip
    session = msgspec.structs.replace(SESSION, started=9000.0, holds=(hold,))
    history = History(attempts=(60.0, 9000.0), waivers=(Waiver("p", "i", 9000.0, "w"),))
    texts = {SESSION_ANNOTATION: encode(session), HISTORY_ANNOTATION: encode(history)}
    seen = facts((100.0, node(annotations=texts)))
    assert isinstance(seen.session, Session)
    (held,) = seen.session.holds
    assert (seen.session.started, held.since, held.step_since) == (100.0, 50.0, 100.0)
    assert held.results[0].at == 100.0
    assert seen.history.attempts == (60.0, 100.0)
    assert seen.history.waivers[0].at == 100.0


def test_a_cordon_after_an_uncordon_is_not_the_sessions() -> None:
    cordoned = msgspec.structs.replace(SESSION, added=Added(cordoned=True))
    ours = {SESSION_ANNOTATION: encode(cordoned)}
    seen = fold((1.0, node(annotations=ours, unschedulable=True)))
    assert not seen.facts.uncordoned
    seen = observe(seen, node(version=2, annotations=ours), cluster=CLUSTER, now=2.0)
    assert seen.facts.uncordoned
    theirs = node(version=3, annotations=ours, unschedulable=True)
    again = observe(seen, theirs, cluster=CLUSTER, now=3.0)
    assert again.facts.uncordoned
    other = {SESSION_ANNOTATION: encode(msgspec.structs.replace(cordoned, id="s2"))}
    new = node(version=4, annotations=other, unschedulable=True)
    assert not observe(again, new, cluster=CLUSTER, now=4.0).facts.uncordoned


def test_a_long_request_is_cut_to_what_can_be_repeated() -> None:
    request = Request(verb=Verb.CANCEL, by="b" * 5000, at="a" * 5000, reason="r" * 50_000)
    seen = facts((1.0, node(annotations={REQUEST_ANNOTATION: encode(request)})))
    assert seen.request is not None
    assert {len(seen.request.by), len(seen.request.at), len(seen.request.reason)} == {MAX_SAID}


def test_an_unreadable_history_permits_no_new_session() -> None:
    seen = fold((1.0, node(annotations={HISTORY_ANNOTATION: "{"})))
    assert seen.facts.mode is NodeMode.NOTIFY_ONLY
    assert HISTORY_ANNOTATION in seen.facts.mode_note
    assert HISTORY_ANNOTATION in seen.problem
    mended = observe(seen, node(), cluster=CLUSTER, now=2.0)
    assert (mended.facts.mode, mended.problem) == (NodeMode.FULL, "")


def test_the_history_of_another_node_is_not_this_ones() -> None:
    """A Node made anew from a copy of its object is another machine: its day begins empty."""
    past = History(attempts=(60.0,), waivers=(Waiver("p", "i", 60.0, "w"),), last="released")
    known = node()
    for uid, seen in {known.uid: past, "": past, "the one before": History()}.items():
        text = encode(replace(past, uid=uid))
        found = fold((100.0, node(annotations={HISTORY_ANNOTATION: text})))
        assert found.facts.history == seen
        assert (found.facts.mode, found.problem) == (NodeMode.FULL, "")


def test_an_unreadable_request_is_left_aside_and_said() -> None:
    seen = fold((1.0, node(annotations={REQUEST_ANNOTATION: "please"})))
    assert seen.facts.request is None
    assert REQUEST_ANNOTATION in seen.problem


@pytest.mark.parametrize(
    ("annotation", "label", "mode"),
    [
        (None, None, NodeMode.FULL),
        ("", None, NodeMode.FULL),
        ("dry-run", None, NodeMode.DRY_RUN),
        (None, "notify-only", NodeMode.NOTIFY_ONLY),
        ("dry-run", "disabled", NodeMode.DISABLED),
        ("disabled", "dry-run", NodeMode.DISABLED),
        ("disabeld", None, NodeMode.DISABLED),
    ],
)
def test_the_stricter_mode_counts_and_an_unknown_one_is_an_opt_out(
    annotation: str | None, label: str | None, mode: NodeMode
) -> None:
    found = facts(
        (1.0, node()),
        (
            2.0,
            node(
                annotations={} if annotation is None else {MODE_KEY: annotation},
                labels=GPU if label is None else {**GPU, MODE_KEY: label},
            ),
        ),
    )
    assert found.mode is mode
    assert bool(found.mode_note) == (annotation == "disabeld")


def test_groups_come_from_the_labels() -> None:
    labels = {
        **GPU,
        "karpenter.sh/nodepool": "h200",
        "topology.kubernetes.io/zone": "z1",
        "node-role.kubernetes.io/control-plane": "",
    }
    found = facts((1.0, node(labels=labels)))
    assert (found.gpu, found.control_plane, found.pool, found.zone) == (True, True, "h200", "z1")
    found = facts((1.0, node(labels=labels)), (2.0, node(labels={})))
    assert (found.gpu, found.control_plane, found.pool, found.zone) == (False, False, "", "")


def test_a_taint_that_was_taken_away_is_not_the_sessions_when_it_returns() -> None:
    ours = OurTaint(key="gpu-remediator.io/unhealthy", effect="NoSchedule")
    session = msgspec.structs.replace(SESSION, added=Added(taints=(ours,)))
    texts = {SESSION_ANNOTATION: encode(session)}
    there = (Taint(key=ours.key, effect=ours.effect),)
    plain = node(annotations=texts)
    seen = fold((1.0, msgspec.structs.replace(plain, taints=there)))
    assert not seen.facts.untainted
    assert seen.facts.unavailable_since == 1.0
    seen = observe(seen, node(version=2, annotations=texts), cluster=CLUSTER, now=2.0)
    assert seen.facts.untainted
    assert seen.facts.unavailable_since is None
    back = msgspec.structs.replace(node(version=3, annotations=texts), taints=there)
    seen = observe(seen, back, cluster=CLUSTER, now=3.0)
    assert seen.facts.untainted
    assert seen.facts.unavailable_since == 3.0


def test_unavailable_since_the_first_of_cordoned_and_not_ready() -> None:
    not_ready = msgspec.structs.replace(node(), conditions=(condition("Unknown", kind="Ready"),))
    seen = fold((100.0, node()), (200.0, node(unschedulable=True)))
    assert seen.facts.unavailable_since == 200.0
    seen = observe(seen, not_ready, cluster=CLUSTER, now=300.0)
    assert not seen.facts.ready
    assert seen.facts.unavailable_since == 200.0
    seen = observe(seen, node(), cluster=CLUSTER, now=400.0)
    assert seen.facts.unavailable_since is None


def test_no_word_of_the_kubelet_is_no_readiness() -> None:
    assert not facts((1.0, msgspec.structs.replace(node(), conditions=()))).ready


def test_a_new_node_of_the_same_name_begins_anew() -> None:
    found = facts((100.0, node(condition("True"))), (200.0, node(condition("True"), uid="u2")))
    assert found.uid == "u2"
    assert found.conditions["GPUXidError"].since == 200.0


def test_a_gap_of_our_watch_restarts_ages_but_revives_nobody() -> None:
    seen = facts(
        (0.0, node(unschedulable=True)),
        (100.0, node(condition("True"), unschedulable=True)),
    )
    alive = restart_ages(seen, now=700.0, blind_since=600.0).conditions["GPUXidError"]
    assert (alive.since, alive.seen) == (700.0, 700.0)
    late = 100.0 + STALE_AFTER_SECONDS
    again = restart_ages(seen, now=late + 60, blind_since=late)
    assert again.conditions["GPUXidError"].seen == 100.0
    assert again.unavailable_since == late + 60
