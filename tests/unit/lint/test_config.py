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
    "half of the nodes are left": ("unbounded-budget", budgets("51%"), budgets("50%")),
    "no budget binds": ("unbounded-budget", budgets("100%", "100%"), budgets("100%", "10%")),
    "a budget of more nodes than a pool has": ("unbounded-budget", budgets(1001), budgets(1000)),
    "a budget of no node": ("empty-budget", budgets("10%", 0), budgets("10%", 1)),
    "a budget of no share": ("empty-budget", budgets("0%"), budgets("1%")),
    "a breaker that opens when most are bad": (
        "deaf-breaker",
        {"breaker": {"percent": 51}},
        {"breaker": {"percent": 50}},
    ),
    "a breaker that opens at more nodes than there are": (
        "deaf-breaker",
        {"breaker": {"minNodes": 101}},
        {"breaker": {"minNodes": 100}},
    ),
    "a breaker that never sees two nodes at once": (
        "deaf-breaker",
        {"breaker": {"window": "59s"}},
        {"breaker": {"window": "1m"}},
    ),
    "agents that are believed when most are silent": (
        "deaf-breaker",
        {"sanity": {"percent": 51}},
        {"sanity": {"percent": 50}},
    ),
    "agents that are believed when many are silent": (
        "deaf-breaker",
        {"sanity": {"minAgents": 101}},
        {"sanity": {"minAgents": 100}},
    ),
    "nodes without a GPU are counted": (
        "every-node",
        {"gpuNodes": {}},
        {"gpuNodes": {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}},
    ),
    "each node is a pool": (
        "lone-groups",
        {"pools": {"labels": ["pool", "kubernetes.io/hostname"]}},
        {"pools": {"labels": ["pool"]}},
    ),
    "each node is a zone": (
        "lone-groups",
        {"zones": {"label": "kubernetes.io/hostname"}},
        {"zones": {"label": "rack"}},
    ),
    "a leader that acts at once": ("short-settling", {"settling": "0s"}, {"settling": "30s"}),
    "a leader that never begins": ("long-settling", {"settling": "30d"}, {"settling": "1h"}),
    "a rate of more than a storm": (
        "loose-rate",
        {"rates": {"cordon": "101/1d"}},
        {"rates": {"cordon": "100/1d"}},
    ),
    "a rate of one a second": (
        "loose-rate",
        {"rates": {"job": "1/1s"}},
        {"rates": {"job": "10/1m"}},
    ),
    "nobody hears of what is held": (
        "late-word",
        {"tellHeldAfter": "100d"},
        {"tellHeldAfter": "1d"},
    ),
    "records that nobody can read": (
        "brief-records",
        {"remediations": {"maxAge": "0s"}},
        {"remediations": {"maxAge": "1h"}},
    ),
    "no records, and it is said": (
        "brief-records",
        {"remediations": {"maxAge": "59m"}},
        {"remediations": {"maxAge": "0s", "keep": 0}},
    ),
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


def test_each_loose_rate_is_told_with_what_would_hold() -> None:
    rates = {"cordon": "1000000/1m", "drain": "2/10m", "job": "60/1m"}
    config = RemediatorConfig.model_validate(
        {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediatorConfig",
            "spec": {"rates": rates},
        }
    )
    told = {one.at[-1]: (one.message, one.fix) for one in lint_config(config)}
    assert set(told) == {"cordon", "job"}
    for action, usual in (("cordon", "10/10m"), ("job", "1/10m")):
        message, fix = told[action]
        assert message.startswith(f"{rates[action]} is more than")
        assert fix.endswith(f"leave it out for {usual}")


def test_the_defaults_are_clean() -> None:
    assert found() == []


def test_a_rule_can_be_silenced_for_the_config() -> None:
    silenced = {IGNORE_ANNOTATION: "deaf-breaker"}
    loose = {"breaker": {"percent": 100}, "settling": "0s"}
    assert [rule for rule, _ in found(silenced, **loose)] == ["short-settling"]
