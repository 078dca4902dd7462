"""Whatever the pods, the rules and the replies: a drain keeps to its rules, and it ends.

The world here is a small one: an API server that accepts or refuses, a kubelet that ends
pods some time later, and the pure planner between them.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from remediator.act.drain.classify import Fate, classify, is_gpu_pod
from remediator.act.drain.plan import Cause, Past, plan
from remediator.act.drain.replies import Attempt, Reply, attempt
from remediator.act.drain.report import Progress, line, lines
from remediator.kube.pods import MIRROR_ANNOTATION, Owner, Pod
from remediator.policy.drain import Drain
from tests.property.cases import cases


KINDS = ("ReplicaSet", "StatefulSet", "DaemonSet", "Job")
LABELS: st.SearchStrategy[dict[str, str]] = st.sampled_from([{}, {"app": "db"}, {"app": "web"}])
OWN = {"app.kubernetes.io/part-of": "gpu-remediator"}
WORDS = ["emptyDir", "unmanaged", "annotated"]


@st.composite
def pods(draw: st.DrawFn, at: int) -> Pod:
    annotations = draw(
        st.sampled_from([{}, {MIRROR_ANNOTATION: "x"}, {"gpu-remediator.io/evict": "never"}])
    )
    owner = draw(st.none() | st.sampled_from(KINDS))
    labels = {**draw(LABELS), **(OWN if draw(st.integers(0, 3)) == 0 else {})}
    return Pod(
        name=f"{draw(st.sampled_from(['team-a', 'kube-system']))}/p{at}",
        uid=f"u{at}",
        labels=labels,
        annotations=annotations,
        owner=None if owner is None else Owner(owner, "o"),
        phase=draw(st.sampled_from(["Pending", "Running", "Running", "Succeeded", "Failed"])),
        resources=draw(st.sampled_from([frozenset(), frozenset({"nvidia.com/gpu"})])),
        claims=draw(st.booleans()),
        disk_data=draw(st.booleans()),
        deleted=draw(st.sampled_from([None, None, "2026-01-01T00:00:00Z"])),
    )


many_pods = st.integers(0, 8).flatmap(lambda n: st.tuples(*(pods(at) for at in range(n))))
despites = st.lists(st.sampled_from(WORDS), unique=True)
behaviours: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"evict": {}},
        {"skip": {}},
        {"waitCompletion": {}},
        {"waitCompletion": {"maxWait": "30s"}},
        {"deleteAfter": {"timeout": "30s"}},
    ]
)


@st.composite
def drains(draw: st.DrawFn) -> Drain:
    rules: list[dict[str, Any]] = [
        {
            **draw(behaviours),
            "selector": {"matchLabels": draw(LABELS)},
            "namespaces": draw(st.sampled_from([[], ["team-*"]])),
            "order": draw(st.integers(-1, 1)),
            "despite": draw(despites),
        }
        for _ in range(draw(st.integers(0, 3)))
    ]
    return Drain.model_validate(
        {
            "pods": rules,
            "gpuPodsOnly": draw(st.booleans()),
            "despite": draw(despites),
            "strict": draw(st.booleans()),
            "completed": draw(st.sampled_from(["skip", "evict"])),
            **draw(st.sampled_from([{}, {"forceDelete": {"after": "10s"}}])),
        }
    )


attempts = st.dictionaries(
    st.sampled_from([f"u{at}" for at in range(8)]),
    st.builds(
        Attempt,
        st.sampled_from(list(Reply)),
        next_at=st.floats(0, 200),
        deletion=st.booleans(),
    ),
)
pasts = st.builds(
    Past,
    since=st.just(0.0),
    attempts=attempts,
    terminating=st.dictionaries(st.sampled_from([f"u{at}" for at in range(8)]), st.just(0.0)),
    kubelet_gone=st.booleans(),
)


@given(many_pods, drains(), pasts, st.floats(0, 200))
def test_nothing_is_asked_for_that_the_rules_forbid(
    there: tuple[Pod, ...], drain: Drain, past: Past, now: float
) -> None:
    said = plan(there, drain, past, now)
    asked = [*said.evict, *said.delete, *said.force]

    assert len({pod.uid for pod in asked}) == len(asked), "each at most once"
    for pod in asked:
        verdict = classify(pod, drain)
        assert not pod.mirror
        assert pod.owner is None or pod.owner.kind != "DaemonSet"
        assert OWN.items().isdisjoint(pod.labels.items())
        assert not drain.gpu_pods_only or is_gpu_pod(pod, drain)
        assert verdict.fate in {Fate.LEAVE, Fate.TERMINATING}
    for pod in (*said.evict, *said.delete):
        assert not pod.terminating
        tried = past.attempts.get(pod.uid)
        assert tried is None or tried.next_at <= now or pod in said.delete
    for pod in said.delete:
        rule = classify(pod, drain).rule
        assert rule is not None
        assert rule.delete_after is not None
        assert now >= rule.delete_after.timeout
    for pod in said.force:
        assert past.kubelet_gone
        assert pod.terminating
        assert drain.force_delete is not None
        assert pod.owner is None or pod.owner.kind != "StatefulSet"


@given(many_pods, drains(), pasts, st.floats(0, 200))
def test_every_pod_is_accounted_for_once(
    there: tuple[Pod, ...], drain: Drain, past: Past, now: float
) -> None:
    said = plan(there, drain, past, now)
    named = [*said.skipped, *said.passed_over, *(one.pod for one in said.left)]

    assert sorted(named) == sorted(pod.name for pod in there)
    asked = {pod.name for pod in (*said.evict, *said.delete, *said.force)}
    assert asked <= {one.pod for one in said.left}, "who is asked is not gone yet"
    progress = Progress(left=tuple(said.left), skipped=said.skipped)
    text = "\n".join(lines(progress, now))
    assert all(one.pod in text and one.cause in set(Cause) for one in said.left)
    assert "\n" not in line(progress, now)


@given(many_pods, drains(), pasts, st.floats(0, 200))
def test_later_orders_and_strict_hold_everybody_else(
    there: tuple[Pod, ...], drain: Drain, past: Past, now: float
) -> None:
    said = plan(there, drain, past, now)
    left = {one.pod: one.cause for one in said.left}
    orders = {pod.name: classify(pod, drain).order for pod in there if pod.name in left}
    asked = [*said.evict, *said.delete]

    assert all(orders[pod.name] == min(orders.values()) for pod in asked)
    if drain.strict and any(
        classify(pod, drain).fate is Fate.BLOCKED for pod in there if pod.name in left
    ):
        assert asked == []


@settings(max_examples=cases(200))
@given(
    many_pods,
    drains(),
    st.lists(st.sampled_from([Reply.ACCEPTED, Reply.BUDGET, Reply.TROUBLE]), max_size=20),
    st.integers(1, 20),
)
def test_it_ends_or_says_who_must_help(
    there: tuple[Pod, ...], drain: Drain, replies: list[Reply], slow: int
) -> None:
    """Refusals are used up, then all is accepted; the kubelet takes its time."""
    known: dict[str, Attempt] = {}
    ends: dict[str, float] = {pod.uid: float(slow) for pod in there if pod.terminating}
    alive, now, tried = list(there), 0.0, list(replies)
    said = plan(alive, drain, Past(since=0.0), now)
    for _ in range(400):
        alive = [pod for pod in alive if ends.get(pod.uid, now + 1) > now]
        said = plan(alive, drain, Past(since=0.0, attempts=known), now)
        if said.done:
            break
        for pod in (*said.evict, *said.delete):
            reply = tried.pop() if tried else Reply.ACCEPTED
            known[pod.uid] = attempt(known.get(pod.uid), reply, now=now)
            if reply is Reply.ACCEPTED:
                ends[pod.uid] = now + slow
                alive[alive.index(pod)] = replace(pod, deleted="2026-01-01T00:00:00Z")
        now += 1.0

    left = {one.pod: one.cause for one in said.left}
    if not said.done:
        helpless = {Cause.EMPTY_DIR, Cause.UNMANAGED, Cause.ANNOTATED, Cause.COMPLETION}
        assert set(left.values()) & helpless, "somebody must help, or a job end"
        assert set(left.values()) <= helpless | {Cause.ORDER, Cause.STRICT}
    leaving = [pod for pod in alive if classify(pod, drain).fate is not Fate.SKIP]
    assert said.done is (leaving == [])


@pytest.mark.parametrize("ready", [True, False])
def test_the_search_meets_what_matters(*, ready: bool) -> None:
    """The generators must not be so narrow that the claims above are empty."""
    pod = Pod(
        name="team-a/p", uid="u", owner=Owner("ReplicaSet", "o"), phase="Running", ready=ready
    )
    said = plan([pod], Drain(), Past(since=0.0), 0.0)

    assert said.evict == [pod]
    assert not said.done
