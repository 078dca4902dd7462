"""Metrics: the documented names, bounded labels, and gauges that follow the status."""

from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from remediator.decide.decision import Decision, Hold, NodePhase, PatchNode
from remediator.record.audit import WriteResult
from remediator.record.metrics import Metrics
from remediator.record.status import (
    BreakerStatus,
    BudgetStatus,
    PauseStatus,
    PolicyProblem,
    PolicyStatus,
    Status,
)


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

PATCH = PatchNode(name="n1", uid="u", resource_version="1", action="cordon", policy="bus")
LABELS = {
    "policy", "state", "action", "mode", "result", "guard", "scope", "source", "channel", "le",
}  # fmt: skip


def make() -> Metrics:
    return Metrics(registry=CollectorRegistry())


def samples(metrics: Metrics) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, tuple(sorted(labels.items()))))


def status(**more: object) -> Status:
    fields: dict[str, object] = {"version": 1, "time": 1.0, "leader": "a", "mode": "Enforce"}
    return Status(**{**fields, **more})  # type: ignore[arg-type]


def test_the_names_are_those_that_were_agreed() -> None:
    metrics = make()
    metrics.written(PATCH, result=WriteResult.DONE, dry_run=False)
    names = {family.name for family in text_string_to_metric_families(metrics.render().decode())}

    assert names >= {
        "remediation_sessions",
        "remediation_actions",
        "remediation_blocked",
        "remediation_budget_used",
        "remediation_budget_limit",
        "remediation_breaker_open",
        "detect_to_cordon_seconds",
        "leader",
        "watch_last_activity_seconds",
    }


def test_writes_are_counted_by_mode_and_result() -> None:
    metrics = make()
    metrics.written(PATCH, result=WriteResult.DONE, dry_run=True)
    metrics.written(PATCH, result=WriteResult.CONFLICT, dry_run=False)

    counted = [
        value(
            metrics,
            "remediation_actions_total",
            policy="bus",
            action="cordon",
            mode=mode,
            result=result,
        )
        for mode, result in (("dry_run", "done"), ("enforce", "conflict"), ("enforce", "done"))
    ]
    assert counted == [1.0, 1.0, None]


def test_a_hold_counts_when_it_begins_not_each_time_it_is_looked_at() -> None:
    metrics = make()
    held = Decision(
        node="n1",
        uid="u",
        phase=NodePhase.MATCHED,
        holds=(Hold("bus", "budget", "3 of 3 used", 100.0),),
    )
    well = Decision(node="n1", uid="u", phase=NodePhase.WELL)
    for before, now in ((None, held), (held, held), (held, well), (well, held)):
        metrics.decided(before, now, dry_run=False)

    assert (
        value(metrics, "remediation_blocked_total", policy="bus", guard="budget", mode="enforce")
        == 2.0
    )


def test_an_expression_that_fails_counts_when_it_begins_or_fails_otherwise() -> None:
    metrics = make()
    well = Decision(node="n1", uid="u", phase=NodePhase.WELL)
    key, division = (replace(well, failed=(("bus", said),)) for said in ("no key", "division"))
    for before, now in ((None, key), (key, key), (key, division), (division, well), (well, key)):
        metrics.decided(before, now, dry_run=False)

    assert value(metrics, "remediation_expression_failures_total", policy="bus") == 3.0


def test_gauges_follow_the_status_and_forget_what_is_gone() -> None:
    metrics = make()
    budgets = (
        BudgetStatus(scope="pool/a", used=2, limit=9),
        BudgetStatus(scope="pool/a", used=2, limit=3, policy="bus"),
        BudgetStatus(scope="pool/b", used=7, limit=1, dry_run=True),
    )
    metrics.update(
        status(
            budgets=budgets,
            breakers=(
                BreakerStatus(source="bus", open=True),
                BreakerStatus(source="bus", open=False, dry_run=True),
                BreakerStatus(source="hot", open=True, dry_run=True),
            ),
            phases={"frozen": 2, "escalated": 1},
            policy_problems=(PolicyProblem(source="a.yaml", message="x"),) * 2,
            pause=PauseStatus(everything=True),
            policies=(
                PolicyStatus(
                    name="p", version="v", mode="Enforce", effective_mode="DryRun", loaded_at=0.0
                ),
            ),
        ),
        {("bus", "running", False): 3, ("bus", "done", True): 1},
    )

    enforce, dry = {"mode": "enforce"}, {"mode": "dry_run"}
    assert value(metrics, "remediation_sessions", policy="bus", state="running", **enforce) == 3.0
    assert value(metrics, "remediation_sessions", policy="bus", state="done", **dry) == 1.0
    assert value(metrics, "remediation_budget_limit", scope="pool/a", **enforce) == 3.0
    assert value(metrics, "remediation_budget_used", scope="pool/b", **enforce) is None
    assert value(metrics, "remediation_budget_used", scope="pool/b", **dry) == 7.0
    assert value(metrics, "remediation_breaker_open", source="bus", **enforce) == 1.0
    assert value(metrics, "remediation_breaker_open", source="bus", **dry) is None
    assert value(metrics, "remediation_breaker_open", source="hot", **dry) == 1.0
    assert value(metrics, "remediation_frozen_nodes") == 2.0
    assert value(metrics, "remediation_escalated_nodes") == 1.0
    assert value(metrics, "remediation_policy_errors") == 1.0
    assert value(metrics, "remediation_paused") == 2.0
    assert value(metrics, "remediation_policies", mode="DryRun") == 1.0

    metrics.update(status(), {})

    assert value(metrics, "remediation_sessions", policy="bus", state="running", **enforce) is None
    assert value(metrics, "remediation_budget_used", scope="pool/a", **enforce) is None
    assert value(metrics, "remediation_breaker_open", source="bus", **enforce) == 0.0
    assert value(metrics, "remediation_breaker_open", source="hot", **dry) == 0.0
    assert value(metrics, "remediation_paused") == 0.0


def test_a_source_that_nobody_asks_any_more_is_not_shown_as_it_last_was() -> None:
    """It was removed because it was dead, and its alert would go on until the next restart."""
    metrics = make()
    metrics.signals.sources({"alertmanager/old": False, "prometheus/main": True})
    metrics.signals.sources({"prometheus/main": False})
    assert {
        dict(labels)["source"]: value
        for (name, labels), value in samples(metrics).items()
        if name == "remediation_source_ok"
    } == {"prometheus/main": 0.0}


def test_what_changes_by_itself_is_read_at_each_scrape() -> None:
    metrics = make()
    facts: dict[str, Any] = {"leader": False, "age": 1.5, "pending": 2, "config": ""}
    metrics.bind(
        leader=lambda: bool(facts["leader"]),
        watch_staleness=lambda: float(facts["age"]),
        outbox_pending=lambda: int(facts["pending"]),
        config_problem=lambda: str(facts["config"]),
    )
    assert value(metrics, "leader") == 0.0
    facts["leader"] = True

    assert value(metrics, "leader") == 1.0
    assert value(metrics, "watch_last_activity_seconds") == 1.5
    assert value(metrics, "remediation_outbox_pending") == 2.0
    assert value(metrics, "remediation_config_error") == 0.0
    facts["config"] = "a typo"
    assert value(metrics, "remediation_config_error") == 1.0


def test_no_label_can_grow_with_the_fleet() -> None:
    metrics = make()
    metrics.written(PATCH, result=WriteResult.DONE, dry_run=False)
    metrics.message_ended("log", "delivered")
    metrics.cordoned(seconds=0.2)

    assert {name for _, labels in samples(metrics) for name, _ in labels} <= LABELS
    assert "n1" not in metrics.render().decode()
