"""Rules about values that are compared letter for letter, and are written as patterns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from remediator.policy.base import LabelSelector
from remediator.policy.lint.reasons import conditions
from remediator.policy.lint.rule import Context, Hit, Rule, Severity, entries
from remediator.policy.model import RemediationPolicy
from remediator.policy.problems import Location
from remediator.policy.steps import LABEL_VALUE_PATTERN
from remediator.policy.when import AlertClause


_PATTERN: Final = re.compile(r"\*|\.\+|^[\^~]|\$$|^[\w-]+(\|[\w-]+)+$")
"""What texts have that were meant as a pattern, and hardly any other."""
_LABEL_VALUE: Final = re.compile(LABEL_VALUE_PATTERN)


def _patterns(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for at, clause in _alerts(policy):
        if _PATTERN.search(clause.name):
            yield _hit((*at, "name"), clause.name, "write an entry for each alert, by its name")
        for key, value in clause.labels.items():
            if _PATTERN.search(value):
                yield _hit((*at, "labels", key), value, "write an entry for each value")
    for at, condition in conditions(policy):
        if _PATTERN.search(condition.type):
            yield _hit((*at, "type"), condition.type, "write an entry for each type")
    for at, selector in _selectors(policy):
        for place, value in _values(selector):
            if not _LABEL_VALUE.fullmatch(value):
                yield Hit(
                    (*at, *place),
                    f"{value} is the value of no label: it is compared letter for letter",
                    "write values as they are: matchExpressions: "
                    "[{key: ..., operator: In, values: [a, b]}]",
                )


def _hit(at: Location, value: str, fix: str) -> Hit:
    return Hit(at, f"{value} is no pattern: it is compared letter for letter", fix)


def _alerts(policy: RemediationPolicy) -> Iterator[tuple[Location, AlertClause]]:
    for at, entry in entries(policy):
        if entry.alert is not None:
            yield (*at, "alert"), entry.alert
    for index, one in enumerate(policy.spec.unless):
        if one.alert is not None:
            yield ("spec", "unless", index, "alert"), one.alert


def _selectors(policy: RemediationPolicy) -> Iterator[tuple[Location, LabelSelector]]:
    yield ("spec", "nodes", "selector"), policy.spec.nodes.selector
    for index, step in enumerate(policy.spec.steps):
        for number, rule in enumerate(step.drain.pods if step.drain is not None else ()):
            yield ("spec", "steps", index, "drain", "pods", number, "selector"), rule.selector


def _values(selector: LabelSelector) -> Iterator[tuple[Location, str]]:
    for key, value in selector.match_labels.items():
        yield ("matchLabels", key), value
    for index, one in enumerate(selector.match_expressions):
        for number, value in enumerate(one.values):
            yield ("matchExpressions", index, "values", number), value


RULES: Final = (
    Rule(
        "no-pattern",
        Severity.WARNING,
        "A pattern where values are compared letter for letter: of alerts, conditions, selectors.",
        "`Gpu.*` is the name of no alert, and `gpu-*` the value of no label: it never matches.",
        "Write an entry for each value; any entry is enough.",
        _patterns,
    ),
)
