"""Rules about RemediatorConfig itself: what it loosens, it loosens for every policy."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.policy.cluster import RemediatorConfig
from remediator.policy.lint import IGNORE_ANNOTATION, RULES, lint_config, templates


def found(annotations: dict[str, str] | None = None, **spec: Any) -> list[tuple[str, str]]:
    config = RemediatorConfig.model_validate(
        {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediatorConfig",
            "metadata": {"name": "config", "annotations": annotations or {}},
            "spec": spec,
        }
    )
    return [(one.rule.id, str(one.at[1])) for one in lint_config(config)]


def budgets(*amounts: int | str) -> dict[str, Any]:
    return {"budgets": [{"maxUnavailable": amount, "per": "cluster"} for amount in amounts]}


READ = {"mode": "Enforce", "alertsTo": ["oncall"], "channels": {"oncall": {"log": {}}}}
EXAMPLES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "no budget binds": ("unbounded-budget", budgets("100%", "100%"), budgets("100%", "10%")),
    "a budget of no node": ("empty-budget", budgets("10%", 0), budgets("10%", 1)),
    "a budget of no share": ("empty-budget", budgets("0%"), budgets("1%")),
    "a breaker that never opens": (
        "deaf-breaker",
        {"breaker": {"percent": 100}},
        {"breaker": {"percent": 99}},
    ),
    "agents that are always believed": (
        "deaf-breaker",
        {"sanity": {"percent": 100}},
        {"sanity": {"percent": 99}},
    ),
    "a leader that acts at once": ("short-settling", {"settling": "0s"}, {"settling": "30s"}),
    "nobody is told": ("only-log", {"mode": "Enforce"}, READ),
    "nobody is told, on purpose, in dry-run": ("only-log", {"mode": "Enforce"}, {"mode": "DryRun"}),
}


@pytest.mark.parametrize("case", EXAMPLES)
def test_a_rule_finds_its_example_and_not_the_config_put_right(case: str) -> None:
    rule, bad, good = EXAMPLES[case]
    place = {"only-log": "alertsTo"}.get(rule, next(iter(bad)))
    assert found(**bad) == [(rule, place)]
    assert found(**good) == []


def test_every_rule_that_asks_the_config_has_an_example() -> None:
    asked = {one.id for one in RULES if one.asks_config and one not in templates.RULES}
    assert asked == {rule for rule, _, _ in EXAMPLES.values()}


def test_the_defaults_are_clean() -> None:
    assert found() == []


def test_a_rule_can_be_silenced_for_the_config() -> None:
    silenced = {IGNORE_ANNOTATION: "deaf-breaker"}
    loose = {"breaker": {"percent": 100}, "settling": "0s"}
    assert [rule for rule, _ in found(silenced, **loose)] == ["short-settling"]
