"""What would hold a drain, now or later, and for how long it has: judged without an eviction."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.act.drain.ahead import ahead
from remediator.act.drain.plan import Cause, Left, Past, plan
from remediator.act.drain.replies import Reply, attempt
from remediator.act.drain.report import Progress, line, lines
from remediator.kube.budgets import Budget
from remediator.kube.pods import Owner, Pod
from remediator.policy.base import LabelSelector
from remediator.policy.drain import Drain


NOW = 10_000.0
OWNER = Owner(kind="StatefulSet", name="db")


def pod(name: str, **more: Any) -> Pod:
    given: dict[str, Any] = {"uid": f"uid-{name}", "labels": {"app": name}, "owner": OWNER}
    return Pod(name=f"team/{name}", phase="Running", ready=True, **(given | more))


def budget(app: str, **more: Any) -> Budget:
    selector = LabelSelector.model_validate({"matchLabels": {"app": app}})
    given: dict[str, Any] = {"allowed": 0, "healthy": 1, "desired": 1}
    return Budget(name=f"team/{app}-budget", selector=selector, **(given | more))


def judged(*pods: Pod, budgets: tuple[Budget, ...], **drain: Any) -> dict[str, tuple[Cause, str]]:
    said = ahead(pods, {}, Drain.model_validate(drain), budgets, now=NOW, since=NOW)
    return {one.pod.partition("/")[2]: (one.cause, one.why) for one in said.left}


HELD = "the disruption budget team/db-budget needs 1 healthy pods and has 1"


@pytest.mark.parametrize(
    ("drain", "why"),
    [
        ({}, HELD),
        (
            {"pods": [{"selector": {"matchLabels": {"app": "db"}}, "order": 1, "evict": {}}]},
            f"{HELD}, when its order comes",
        ),
        (
            {"pods": [{"selector": {"matchLabels": {"app": "db"}}, "waitCompletion": {}}]},
            f"{HELD}, if it has not ended by itself",
        ),
        ({"strict": True}, f"{HELD}, once nothing is protected"),
        (
            {"pods": [{"deleteAfter": {"timeout": "30m"}}]},
            f"{HELD}; deleted past it after 30m",
        ),
    ],
)
def test_a_budget_is_named_whenever_the_pod_s_turn_comes(drain: dict[str, Any], why: str) -> None:
    lone = pod("lone", owner=None) if "strict" in drain else pod("lone")
    found = judged(pod("db"), lone, budgets=(budget("db"),), **drain)
    assert found["db"] == (Cause.BUDGET, why)


def test_what_no_budget_holds_stays_as_it_was_planned() -> None:
    rule = {"selector": {"matchLabels": {"app": "late"}}, "order": 1, "evict": {}}
    pods = (pod("free"), pod("late"), pod("lone", owner=None))
    found = judged(*pods, budgets=(budget("db"), budget("free", allowed=1)), pods=[rule])
    causes = {name: cause for name, (cause, _) in found.items()}
    assert causes == {"free": Cause.TURN, "late": Cause.ORDER, "lone": Cause.UNMANAGED}


def test_two_budgets_over_a_later_pod_are_named_both() -> None:
    other = Budget(name="team/all", selector=LabelSelector())
    rule = {"order": 1, "evict": {}}
    found = judged(pod("db"), budgets=(budget("db", allowed=1), other), pods=[rule])
    assert found["db"] == (Cause.BUDGETS, "covered by team/db-budget, team/all")


def test_what_would_be_let_go_is_what_no_budget_holds() -> None:
    pods = (pod("db"), pod("free"))
    said = ahead(pods, {}, Drain(), (budget("db"),), now=NOW, since=NOW)
    assert [one.name for one in said.evict] == ["team/free"]


def test_past_its_time_a_pod_is_deleted_and_no_budget_is_asked() -> None:
    drain = Drain.model_validate({"pods": [{"deleteAfter": {"timeout": "1m"}}]})
    said = ahead((pod("db"),), {}, drain, (budget("db"),), now=NOW, since=NOW - 60.0)
    assert [one.name for one in said.delete] == ["team/db"]
    assert [one.cause for one in said.left] == [Cause.TURN]


def test_the_budget_s_own_condition_says_since_when() -> None:
    since = NOW - 1200.0
    budgets = (budget("db", refusing_since=since),)
    said = ahead((pod("db"),), {}, Drain(), budgets, now=NOW, since=NOW)
    assert f"team/db for 20m: {HELD}" in "\n".join(lines(Progress(left=tuple(said.left)), NOW))


def test_a_drain_says_for_how_long_it_has_been_refused_and_who_waits_longest() -> None:
    early = attempt(None, Reply.BUDGET, "no", now=NOW)
    again = attempt(early, Reply.BUDGET, "no", now=NOW + 300.0)
    late = attempt(None, Reply.BUDGET, "not yet", now=NOW + 300.0)
    past = Past(since=NOW, attempts={"uid-z": again, "uid-a": late})
    left = plan((pod("a"), pod("z")), Drain(), past, NOW + 600.0).left
    assert {one.pod: one.since for one in left} == {"team/a": NOW + 300.0, "team/z": NOW}
    said = line(Progress(total=2, left=tuple(left)), NOW + 600.0)
    assert "2 held by a PodDisruptionBudget: team/z for 10m (no), team/a for 5m" in said


def test_another_answer_begins_anew() -> None:
    early = attempt(None, Reply.TROUBLE, "502", now=NOW)
    assert attempt(early, Reply.BUDGET, "no", now=NOW + 60.0).since == NOW + 60.0


def test_a_protected_pod_has_blocked_since_the_drain_began() -> None:
    left = plan((pod("lone", owner=None),), Drain(), Past(since=NOW), NOW + 120.0).left
    assert left == [Left("team/lone", Cause.UNMANAGED, "no controller would make it anew", NOW)]
