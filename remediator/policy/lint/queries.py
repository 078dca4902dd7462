"""Rules about PromQL queries: what no server reads, names no node, or names every node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from remediator.policy.lint.rule import Context, Hit, Rule, Severity, entries
from remediator.policy.model import RemediationPolicy
from remediator.policy.problems import Location
from remediator.policy.promql import Kind, PromQLError, Shape, read_promql
from remediator.policy.when import QueryClause


_GIVES: Final = {
    Kind.RANGES: "a range of values",
    Kind.NUMBER: "one number without labels",
    Kind.TEXT: "text",
}
_BOOL: Final = re.compile(r"\s*\bbool\b")
_SHOWN: Final = 120
_THRESHOLD: Final = re.compile(r"(.+?)(>=?|<=?)([-+]?[0-9.]+([eE][-+]?[0-9]+)?)", re.DOTALL)


class _Query(NamedTuple):
    """A query, where it stands, and what it is for; ``joined``: it is not the only clause."""

    at: Location
    text: str
    clause: QueryClause
    exception: bool = False
    clears: bool = False
    joined: bool = False


def _queries(policy: RemediationPolicy) -> Iterator[_Query]:
    """Yield all queries of a policy, those of ``clearedBy`` too."""
    for at, entry in entries(policy):
        clause = entry.query
        if clause is None:
            continue
        joined = "all" in at or any(key not in {"query", "attempts"} for key, _ in entry.given)
        here = (*at, "query")
        yield _Query((*here, "promql"), clause.promql, clause, joined=joined)
        if clause.cleared_by is not None:
            yield _Query((*here, "clearedBy"), clause.cleared_by, clause, clears=True)
    for index, one in enumerate(policy.spec.unless):
        if one.query is not None:
            at = ("spec", "unless", index, "query", "promql")
            joined = one.alert is not None or one.condition is not None
            yield _Query(at, one.query.promql, one.query, exception=True, joined=joined)


def _read(policy: RemediationPolicy) -> Iterator[tuple[_Query, Shape]]:
    """Yield the queries that give series; others are another rule's."""
    for one in _queries(policy):
        try:
            shape = read_promql(one.text)
        except PromQLError:
            continue
        if shape.kind is Kind.SERIES:
            yield one, shape


def _unreadable(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for one in _queries(policy):
        try:
            kind = read_promql(one.text).kind
        except PromQLError as error:
            yield Hit(
                one.at,
                f"no PromQL: {error}",
                "try it in the server's own page; where the server is one that reads more than "
                "PromQL, silence this rule for the policy",
            )
            continue
        if kind is Kind.RANGES:
            yield Hit(
                one.at,
                f"it gives {_GIVES[kind]}, and a list of series is wanted",
                f"write max_over_time({_shown(one.text)}) > 0, or another function over the range",
            )
        elif kind is not Kind.SERIES:
            yield Hit(
                one.at,
                f"it gives {_GIVES[kind]}, and a list of series is wanted",
                "write a query about a metric"
                + ("" if one.exception else " that has the node's name as a label"),
            )


def _of_no_node(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for one, shape in _read(policy):
        labels = shape.labels
        if one.exception or labels is None or labels & set(one.clause.node_from):
            continue
        said = ", ".join(sorted(labels)) or "none"
        yield Hit(
            one.at,
            f"its result names no node: its series keep these labels: {said}",
            f"aggregate by one of: {', '.join(one.clause.node_from)}",
        )


def _any_value(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    """Where another clause has to hold beside it, a query may well say which nodes are meant."""
    for one, shape in _read(policy):
        if one.clears or one.joined or shape.selective:
            continue
        compared = _BOOL.sub("", one.text)
        fix = (
            f"leave out bool: {_shown(compared)}"
            if compared != one.text
            else f"compare it: {_shown(one.text)} > 0, or whatever value is a fault"
        )
        yield Hit(
            one.at,
            "it has a result whatever the value is, 0 too: the policy never acts"
            if one.exception
            else "every node that has the metric is in its result, whatever the value is, 0 too",
            fix,
        )


def _shown(text: str) -> str:
    """Return a query on one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def clears_what_it_finds(promql: str, cleared_by: str) -> bool:
    """Tell whether two queries ask on which side of a threshold a value is, and mean the same side.

    As ``T > 90``, cleared by ``T > 80``; or word for word the same.
    """
    one, other = ("".join(text.split()) for text in (promql, cleared_by))
    if one == other:
        return True
    first, second = _THRESHOLD.fullmatch(one), _THRESHOLD.fullmatch(other)
    if first is None or second is None:
        return False
    return first[1] == second[1] and first[2][0] == second[2][0]


RULES: Final = (
    Rule(
        "unreadable-query",
        Severity.ERROR,
        "A query that is no PromQL, or whose result is no list of series.",
        "The server refuses it or answers what names no node, so that the entry is never known; an "
        "`unless` that is not known holds the policy for good.",
        "Write it as the server's own page accepts it. MetricsQL and other dialects are read as "
        "PromQL here: silence the rule where you use more.",
        _unreadable,
    ),
    Rule(
        "query-names-no-node",
        Severity.ERROR,
        "A query whose aggregation drops every label that could name a node.",
        "No series of its result can be given to a node: the entry never matches, and a "
        "`clearedBy` never clears.",
        "Aggregate `by (node)`, or name the label in `nodeFrom`.",
        _of_no_node,
    ),
    Rule(
        "any-value",
        Severity.WARNING,
        "A query without a comparison, or with `bool`: all of its series are in the result.",
        "What is in the result is meant, whatever its value, 0 too: every node that has the metric "
        "is. In `unless` it holds for good. `bool` makes 0 and 1 of what a comparison leaves out.",
        "Compare: `METRIC > 0`. For a metric that is there only where something is wrong, name a "
        "label of it.",
        _any_value,
    ),
)
