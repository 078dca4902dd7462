"""Clauses, windows and expressions as their author writes them: what is refused, and why."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pydantic import ValidationError

from remediator.policy import expression
from remediator.policy.expression import ExpressionError, check, holds
from remediator.policy.load import parse_policies
from remediator.policy.model import RemediationPolicy
from remediator.policy.problems import PolicyError, Problem
from remediator.policy.when import When


HEAD = "apiVersion: gpu-remediator.io/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: p}\n"
XID = "{xid: {codes: [79]}}"


def problem(*, when: str = XID, rest: str = "") -> Problem:
    """Return the only problem of a policy whose one entry of ``when`` is on line 5."""
    text = f"{HEAD}spec:\n  when: [{when}]\n  steps: [{{cordon: {{}}}}]\n{rest}"
    with pytest.raises(PolicyError) as caught:
        parse_policies(text.encode(), file="p.yaml")
    assert len(caught.value.problems) == 1, "\n".join(map(str, caught.value.problems))
    return caught.value.problems[0]


WHENS = {
    "a filter alone": (
        "{attempts: {atLeast: 2}}",
        ("spec.when[0]", "attempts alone names no fault", "at least one of: xid, sxid"),
    ),
    "a filter alone, deep": (
        "{xid: {codes: [79]}, any: [{cel: ready}]}",
        ("spec.when[0].any[0]", "cel alone names no fault", "into one entry"),
    ),
    "nested too deep": (
        "{all: [{any: [{all: [{xid: {codes: [79]}}]}]}]}",
        ("spec.when[0].all[0].any[0].all", "unknown key all", "spec.when[].all[]"),
    ),
    "nothing in all": ("{all: []}", ("spec.when[0].all", "this list is empty", "1 entry")),
    "an entry for a list": (
        f"{{any: {XID}}}",
        ("spec.when[0].any", "a list is expected", "with a dash"),
    ),
    "an alert without a name": (
        "{alert: {for: 1m}}",
        ("spec.when[0].alert", "every alert is meant", ""),
    ),
    "a label that is none": (
        "{alert: {labels: {a-b: c}}}",
        ("spec.when[0].alert.labels.a-b", "a-b is not valid", "a label of Prometheus"),
    ),
    "a query in a loop": (
        "{query: {promql: up, interval: 100ms}}",
        ("spec.when[0].query.interval", "at most once a second", "1s or more"),
    ),
    "an empty query": ("{query: {promql: ''}}", ("spec.when[0].query.promql", "empty", "")),
    "a count of both": (
        "{count: {xid: [94], sxid: [1], atLeast: 3}}",
        ("spec.when[0].count", "exactly one of: xid, sxid", ""),
    ),
    "a count of more than is kept": (
        "{count: {xid: [94], atLeast: 11}}",
        ("spec.when[0].count.atLeast", "11 is too large", "10 or less"),
    ),
    "attempts of more than a day": (
        "{xid: {codes: [79]}, attempts: {atLeast: 1, within: 25h}}",
        ("spec.when[0].attempts.within", "last 24 h are remembered", "24h or less"),
    ),
    "a severity that is none": (
        "{condition: {type: A, severity: critical}}",
        ("spec.when[0].condition.severity", "critical is not one of info, warning, fatal", ""),
    ),
    "an expression that does not parse": (
        "{xid: {codes: [79]}, cel: 'ready &&'}",
        ("spec.when[0].cel", "does not compile: column 9: Syntax error", ""),
    ),
    "an expression with an unknown name": (
        "{xid: {codes: [79]}, cel: 'redy'}",
        ("spec.when[0].cel", "undeclared reference to 'redy'", ""),
    ),
    "an expression of the wrong type": (
        "{xid: {codes: [79]}, cel: 'attempts'}",
        ("spec.when[0].cel", "gives INT, not true or false", "a comparison"),
    ),
}


@pytest.mark.parametrize("case", WHENS)
def test_a_bad_clause_is_named_with_its_fix(case: str) -> None:
    when, (path, message, fix) = WHENS[case]
    found = problem(when=when)
    assert found.path == path
    assert message in found.message
    assert fix in found.fix


RESTS = {
    "nothing in an entry of unless": (
        "  unless: [{}]\n",
        ("spec.unless[0]", "needs at least one of: alert, query, condition", ""),
    ),
    "a fault in unless": (
        "  unless: [{xid: {codes: [1]}}]\n",
        ("spec.unless[0].xid", "unknown key xid", "it belongs in spec.when[]"),
    ),
    "a time without quotes": (
        "  windows: [{start: 22:00}]\n",
        ("spec.windows[0].start", "base 60", '"22:00" in quotes'),
    ),
    "a time that is none": (
        '  windows: [{start: "9:00"}]\n',
        ("spec.windows[0].start", "9:00 is not valid", "a time of day in quotes"),
    ),
    "a window without length": (
        '  windows: [{start: "09:00", end: "09:00"}]\n',
        ("spec.windows[0]", "has no length", '"24:00" for the whole day'),
    ),
    "a window that begins when the day is over": (
        '  windows: [{start: "24:00", end: "09:00"}]\n',
        ("spec.windows[0]", "has no length", ""),
    ),
    "a zone that is none": (
        "  windows: [{timeZone: Europe/Berlln}]\n",
        ("spec.windows[0].timeZone", "is no time zone", "such as Europe/Berlin"),
    ),
    "a zone that is a path": (
        "  windows: [{timeZone: ../../etc/passwd}]\n",
        ("spec.windows[0].timeZone", "is no time zone", "a name such as"),
    ),
    "a date that is none": (
        '  windows: [{from: "2026-02-30"}]\n',
        ("spec.windows[0].from", "2026-02-30 is no date", ""),
    ),
    "dates the wrong way round": (
        '  windows: [{from: "2026-02-03", until: "2026-02-01"}]\n',
        ("spec.windows[0]", "it ends on 2026-02-01, before it begins", ""),
    ),
    "a day in full": (
        "  windows: [{days: [Monday]}]\n",
        ("spec.windows[0].days[0]", "Monday is not one of Mon", ""),
    ),
    "a rate of a class that is none": (
        "  limits: {rate: {reboot: 1/1h}}\n",
        ("spec.limits.rate.reboot", "unknown key reboot", "cordon, drain, job"),
    ),
}


@pytest.mark.parametrize("case", RESTS)
def test_a_bad_guard_is_named_with_its_fix(case: str) -> None:
    rest, (path, message, fix) = RESTS[case]
    found = problem(rest=rest)
    assert found.path == path
    assert message in found.message
    assert fix in found.fix


def test_entries_nest_twice() -> None:
    deep: dict[str, Any] = {"all": [{"any": [{"xid": {"codes": [79]}}]}], "cel": "ready"}
    assert When.model_validate(deep).all is not None


def test_an_expression_without_its_package_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    expression._environment.cache_clear()
    with pytest.raises(ValidationError, match=r"install gpu-remediator\[controller,cel\]"):
        When.model_validate({"xid": {"codes": [79]}, "cel": "ready && 'not yet compiled' != ''"})
    monkeypatch.undo()
    expression._environment.cache_clear()


def test_an_expression_is_bounded() -> None:
    deep = "faults.all(a, faults.all(b, faults.all(c, faults.all(d, d.code < 1000))))"
    check(deep)
    values = {"faults": [{"code": i} for i in range(300)]}
    with pytest.raises(ExpressionError, match="budget"):
        holds(deep, values)


def test_a_policy_without_the_new_keys_is_what_it_was() -> None:
    plain = RemediationPolicy.model_validate(
        {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediationPolicy",
            "metadata": {"name": "p"},
            "spec": {"when": [{"xid": {"codes": [79]}}], "steps": [{"cordon": {}}]},
        }
    )
    assert not plain.spec.unless
    assert not plain.spec.windows
    assert "unless" not in plain.plan
