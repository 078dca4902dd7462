"""Rules about PromQL: queries whose result names no node, every node, or the wrong ones.

No parser: what is not understood is taken for right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from remediator.policy.lint.rule import Context, Hit, Rule, Severity, entries
from remediator.policy.model import RemediationPolicy
from remediator.policy.problems import Location


_AGGREGATION: Final = re.compile(
    r"^\s*(sum|min|max|avg|group|count|stddev|stdvar|quantile|count_values)\b"
    r"\s*(?:(by|without)\s*\(([^)]*)\))?",
    re.IGNORECASE,
)
_BY_BEHIND: Final = re.compile(r"\)\s*(by|without)\s*\(([^)]*)\)", re.IGNORECASE)
_TEXTS: Final = re.compile(r"\"(\\.|[^\"\\])*\"|'(\\.|[^'\\])*'|`[^`]*`|#[^\n]*")
_LABELS: Final = re.compile(r"\{([^{}]*)\}|\[[^][]*\]")
_COMPARES: Final = re.compile(r"(==|!=|>=|<=|>|<)(?!\s*bool\b)")
_COMPARES_TO_BOOL: Final = re.compile(r"(==|!=|>=|<=|>|<)\s*bool\b")
_SELECTS: Final = re.compile(
    r"\b(and|or|unless|absent|absent_over_time|topk|bottomk|limitk|limit_ratio|count_values)\b"
    r"|\bALERTS(_FOR_STATE)?\b|[A-Za-z0-9_]:[A-Za-z0-9_]",
)
"""What leaves series out without a comparison; a name with a colon is a rule's, and may."""
_THRESHOLD: Final = re.compile(r"(.+?)(>=?|<=?)([-+]?[0-9.]+([eE][-+]?[0-9]+)?)", re.DOTALL)


def _of_no_node(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for at, entry in entries(policy):
        if entry.query is None:
            continue
        kept = kept_labels(entry.query.promql)
        if kept is not None and not kept & set(entry.query.node_from):
            said = ", ".join(sorted(kept)) or "none"
            yield Hit(
                (*at, "query", "promql"),
                f"its result names no node: the aggregation keeps these labels: {said}",
                f"aggregate by one of: {', '.join(entry.query.node_from)}",
            )


def kept_labels(promql: str) -> frozenset[str] | None:
    """Return the labels that the outermost aggregation of a query keeps; None: not known."""
    found = _AGGREGATION.match(promql)
    if found is None:
        return None
    word, labels = found.group(2), found.group(3)
    if word is None:
        behind = _BY_BEHIND.search(promql)
        if behind is None:
            return None if _more_follows(promql) else frozenset()
        word, labels = behind.group(1), behind.group(2)
    if word.lower() == "without":
        return None
    return frozenset(one.strip() for one in labels.split(",") if one.strip())


def _more_follows(promql: str) -> bool:
    """Tell whether a binary operator with its own labels may follow the aggregation."""
    return bool(re.search(r"\b(on|ignoring|group_left|group_right|and|or|unless)\b", promql))


def _any_value(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for at, promql in _queries(policy):
        why = takes_all(promql)
        compared = "METRIC == 0" if at[-1] == "clearedBy" else "METRIC > 0"
        if why:
            yield Hit(
                at,
                f"{why}: each of its series counts, whatever the value, 0 too",
                "leave the word bool out" if "bool" in why else f"compare it, as in {compared}",
            )


def _queries(policy: RemediationPolicy) -> Iterator[tuple[Location, str]]:
    for at, entry in entries(policy):
        if entry.query is not None:
            yield (*at, "query", "promql"), entry.query.promql
            if entry.query.cleared_by is not None:
                yield (*at, "query", "clearedBy"), entry.query.cleared_by
    for index, one in enumerate(policy.spec.unless):
        if one.query is not None:
            yield ("spec", "unless", index, "query", "promql"), one.query.promql


def takes_all(promql: str) -> str:
    """Say why a query's result has every series, those too of which all is well; "" if not so.

    A metric with labels is taken for right: many are there only where something is the case.
    """
    bare = _TEXTS.sub("", promql)
    labelled = any((one[1] or "").strip() for one in _LABELS.finditer(bare))
    bare = _LABELS.sub("", bare)
    if _COMPARES.search(bare) or _SELECTS.search(bare):
        return ""
    if _COMPARES_TO_BOOL.search(bare):
        return "it compares with bool"
    return "" if labelled else "it compares with nothing"


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
        "query-names-no-node",
        Severity.ERROR,
        "A query whose aggregation drops every label that could name a node.",
        "No series of its result can be given to a node: the entry never matches.",
        "Aggregate `by (node)`, or name the label in `nodeFrom`.",
        _of_no_node,
    ),
    Rule(
        "any-value",
        Severity.WARNING,
        "A query without a comparison, or with `bool`: all of its series are in the result.",
        "What is in the result is meant, whatever its value: every node that has the metric.",
        "Compare: `METRIC > 0`. For a metric that is there only where something is wrong, name a "
        "label of it.",
        _any_value,
    ),
)
