"""The step `drain` in a running controller, with the rights of `deploy/`."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site


pytestmark = pytest.mark.cluster

STEPS: list[dict[str, Any]] = [{"cordon": {}}, {"drain": {"despite": ["unmanaged"]}}]


def condition(site: Site, node: str, kind: str) -> tuple[str, str, str] | None:
    found = site.cluster.node(node)["status"]["conditions"]
    return next(
        ((one["status"], one["reason"], one["message"]) for one in found if one["type"] == kind),
        None,
    )


def status_of(site: Site, node: str, kind: str) -> str:
    found = condition(site, node, kind)
    return "" if found is None else found[0]


def blocked_node(site: Site) -> tuple[str, str]:
    """A node with one pod that a PodDisruptionBudget holds."""
    node = site.node()
    pod = site.cluster.create_pod(node=node, running=True, labels={"app": "db"})
    path = f"/apis/policy/v1/namespaces/{site.cluster.namespace}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}}
    site.cluster.api.create(path, {"metadata": {"name": "db-budget"}, "spec": spec})
    site.wait(
        lambda: site.cluster.api.get(f"{path}/db-budget").get("status", {}).get("currentHealthy"),
        "the budget",
    )
    return node, pod


def newcomer(site: Site, node: str) -> str:
    """A further pod, that no budget holds: a drain that goes on evicts it at once."""
    return site.cluster.create_pod(node=node, running=True)


def relax(site: Site) -> None:
    path = f"/apis/policy/v1/namespaces/{site.cluster.namespace}/poddisruptionbudgets/db-budget"
    site.cluster.api.patch(
        path, {"spec": {"minAvailable": 0}}, content_type="application/merge-patch+json"
    )


def results(site: Site, node: str) -> list[tuple[str, str]]:
    session = site.session(node) or {"holds": [{}]}
    return [(one["action"], one["result"]) for one in session["holds"][0].get("results", [])]


def test_a_node_is_drained_marked_and_the_marks_go_with_the_session(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.policy(steps=STEPS)
    node = site.node()
    pod = site.cluster.create_pod(node=node, running=True, grace=30)
    run()
    site.says(node, 79)

    site.wait(lambda: "deletionTimestamp" in site.cluster.pod(pod)["metadata"], "its eviction")
    site.wait(lambda: status_of(site, node, "DrainInProgress") == "True", "the condition")
    assert status_of(site, node, "Drained") == "False", "an accepted eviction is no end"
    site.cluster.delete_pod(pod)

    site.wait(lambda: ("drain", "done") in results(site, node), "the drain's result")
    site.wait(lambda: status_of(site, node, "Drained") == "True", "the condition")
    said = condition(site, node, "DrainInProgress")
    assert said is not None
    assert said[:2] == ("False", "DrainCompleted")

    site.says(node)
    site.wait(lambda: site.session(node) is None, "recovery")
    site.wait(lambda: condition(site, node, "Drained") is None, "the marks to go")
    assert condition(site, node, "DrainInProgress") is None
    assert condition(site, node, "Ready") is not None, "those of others stay"


def test_a_blocker_is_named_in_status_and_condition(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.policy(steps=STEPS)
    node, pod = blocked_node(site)
    run()
    site.says(node, 79)

    site.wait(
        lambda: "db-budget" in str(site.status_of(node)) and pod in str(site.status_of(node)),
        "the blocker in the status",
    )
    site.wait(
        lambda: "db-budget" in (condition(site, node, "DrainInProgress") or ("", "", ""))[2],
        "the blocker in the condition",
    )


def series(replica: Replica, name: str) -> dict[str, float]:
    """What a controller says of a metric, by its labels; zeros left out."""
    with urllib.request.urlopen(f"http://127.0.0.1:{replica.port}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    found = [
        line.removeprefix(name).rsplit(" ", 1) for line in lines if line.startswith(f"{name}{{")
    ]
    return {labels: float(value) for labels, value in found if float(value)}


def test_metrics_say_what_blocks_what_was_answered_and_how_long_it_took(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.policy(steps=STEPS)
    node, pod = blocked_node(site)
    gone = site.cluster.create_pod(node=node, running=True)
    replica = run()
    site.wait(lambda: site.status().get("leader"), "the leader: its metrics are served by then")
    site.says(node, 79)
    site.wait(
        lambda: series(replica, "drain_blocked_pods") == {'{cause="PodDisruptionBudget"}': 1.0},
        "the blocker",
    )
    answers = series(replica, "evictions_total")
    assert answers['{result="accepted"}'] == 1.0
    assert answers['{result="budget"}'] >= 1.0
    assert set(answers) == {'{result="accepted"}', '{result="budget"}'}
    assert gone not in site.cluster.pods()
    assert series(replica, "drain_duration_seconds_count") == {}

    relax(site)
    site.wait(lambda: ("drain", "done") in results(site, node), "the drain's result")
    assert pod not in site.cluster.pods()
    assert series(replica, "drain_duration_seconds_count") == {'{result="done"}': 1.0}
    (seconds,) = series(replica, "drain_duration_seconds_sum").values()
    assert seconds > 0
    assert series(replica, "drain_blocked_pods") == {}, "it has ended"
    assert series(replica, "evictions_total")['{result="accepted"}'] == 2.0


def test_a_drain_that_runs_out_of_time_counts_as_failed(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.policy(steps=[STEPS[0], {**STEPS[1], "timeout": "2s"}])
    node, _ = blocked_node(site)
    replica = run()
    site.says(node, 79)
    site.wait(lambda: ("drain", "timed-out") in results(site, node), "the deadline")
    site.wait(
        lambda: series(replica, "drain_duration_seconds_count") == {'{result="failed"}': 1.0},
        "the metric",
    )
    assert series(replica, "drain_blocked_pods") == {}


def test_a_partial_drain_is_a_failed_one(site: Site, run: Callable[..., Replica]) -> None:
    site.policy(steps=[STEPS[0], {**STEPS[1], "timeout": "2s"}])
    node, pod = blocked_node(site)
    run()
    site.says(node, 79)

    site.wait(lambda: ("drain", "timed-out") in results(site, node), "the deadline")
    session = site.session(node)
    assert session is not None
    (late,) = [one for one in session["holds"][0]["results"] if one["result"] == "timed-out"]
    assert late["note"].startswith("it did not end within 2s: 0 of 1 pods gone")
    assert pod in late["note"], "who is in the way is said"
    assert "db-budget" in late["note"]
    assert status_of(site, node, "Drained") != "True"
    assert "deletionTimestamp" not in site.cluster.pod(pod)["metadata"]


@pytest.mark.parametrize("gone", [True, False])
def test_nobody_is_evicted_behind_the_deadline_and_an_empty_node_is_drained(
    site: Site, run: Callable[..., Replica], *, gone: bool
) -> None:
    site.policy(steps=STEPS)
    node, pod = blocked_node(site)
    first = run()
    site.says(node, 79)
    site.wait(lambda: status_of(site, node, "DrainInProgress") == "True", "the drain")
    first.stop()
    relax(site)
    site.overdue(node)
    if gone:
        site.cluster.delete_pod(pod)
    run()

    site.wait(lambda: [one for one in results(site, node) if one[0] == "drain"], "the end")
    assert ("drain", "done" if gone else "timed-out") in results(site, node)
    assert gone or "deletionTimestamp" not in site.cluster.pod(pod)["metadata"]


@pytest.mark.parametrize("by", ["uncordon", "recovery"])
def test_a_drain_stops_when_it_is_not_wanted_any_more(
    site: Site, run: Callable[..., Replica], by: str
) -> None:
    site.policy(steps=STEPS)
    node, pod = blocked_node(site)
    other = site.node()
    site.cluster.create_pod(node=other, running=True, grace=300)  # it goes on for long
    run()
    for one in (node, other):
        site.says(one, 79)
        site.wait(partial(status_of, site, one, "DrainInProgress"), "its drain")

    if by == "uncordon":
        site.cluster.uncordon(node)
    else:
        site.says(node)
    site.wait(lambda: condition(site, node, "DrainInProgress") is None, "its end")
    relax(site)
    late, marker = newcomer(site, node), newcomer(site, other)
    site.wait(lambda: marker not in site.cluster.pods(), "an eviction by the drain that goes on")
    for one in (pod, late):
        assert "deletionTimestamp" not in site.cluster.pod(one)["metadata"], "nothing is evicted"
    assert not site.cordoned(node)


def test_another_process_goes_on_with_it(site: Site, run: Callable[..., Replica]) -> None:
    site.policy(steps=STEPS)
    node, pod = blocked_node(site)
    first = run()
    site.says(node, 79)
    site.wait(lambda: status_of(site, node, "DrainInProgress") == "True", "the drain")
    first.stop()
    relax(site)
    run()

    site.wait(lambda: ("drain", "done") in results(site, node), "the drain's result")
    assert pod not in site.cluster.pods()


def test_dry_run_evicts_nothing(site: Site, run: Callable[..., Replica]) -> None:
    site.policy(steps=STEPS, mode="DryRun")
    nodes = [site.node() for _ in range(3)]
    for node in nodes:
        site.cluster.create_pod(node=node, running=True)
    run()
    before = site.cluster.resource_versions()
    for node in nodes:  # what was begun for one has time while the next is decided about
        site.says(node, 79)
        site.wait(partial(site.status_of, node), "the decision")
    after = site.cluster.resource_versions()

    changed = {key for key in before if before[key] != after.get(key)}
    assert changed == {f"Node/{node}" for node in nodes}, "the agents' own reports only"
    assert [site.attempts_on(node) for node in nodes] == [[], [], []]
