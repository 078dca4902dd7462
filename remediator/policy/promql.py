"""What a PromQL expression can answer, as far as its text tells. Pure: nobody is asked.

Parsed by promql-parser, which follows Prometheus' own parser. How labels go through operators:
https://prometheus.io/docs/prometheus/latest/querying/operators/
"""

from __future__ import annotations

import re
from enum import StrEnum
from itertools import chain
from typing import Any, Final, NamedTuple

import promql_parser as parser


class PromQLError(Exception):
    """The text is no PromQL; ``str()`` says why, in the parser's words."""


class Kind(StrEnum):
    """What an expression gives."""

    SERIES = "series"
    RANGES = "ranges"
    NUMBER = "number"
    TEXT = "text"


class Shape(NamedTuple):
    """What is known of the result of an expression.

    ``labels`` are those that its series keep; None: not known, mostly those that the metric has.
    ``selective``: whether the values, the labels that are asked for, or that a series is there at
    all may decide what is in the result. Otherwise every series of the metric is in it, whatever
    its value.
    """

    kind: Kind
    labels: frozenset[str] | None = None
    selective: bool = False


_KINDS: Final = (
    (parser.ValueType.Vector, Kind.SERIES),
    (parser.ValueType.Matrix, Kind.RANGES),
    (parser.ValueType.Scalar, Kind.NUMBER),
    (parser.ValueType.String, Kind.TEXT),
)
"""Pairs: the parser's types have no hash."""
_NO_LABELS: Final[frozenset[str]] = frozenset()
_EVENTS: Final = frozenset(("ALERTS", "ALERTS_FOR_STATE"))
"""Metrics of Prometheus itself whose series are there only while something is wrong.
https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/"""
_ALWAYS_THERE: Final = re.compile(r"up|problem_gauge|kube_[a-z_]+_status_[a-z_]+")
"""Metrics that have a series for each state, of value 0 where it is not the case: their labels
leave nothing out. Of others a label mostly says that something is the case.
https://github.com/kubernetes/kube-state-metrics/tree/main/docs/metrics"""
_COMPARISONS: Final = frozenset(("==", "!=", ">", "<", ">=", "<="))
_KEEP_LABELS: Final = frozenset(("topk", "bottomk", "limitk", "limit_ratio"))
"""Aggregations that pick series, and leave them their labels."""
_ABSENCES: Final = frozenset(("absent", "absent_over_time"))
_LABELLING: Final = frozenset(("label_replace", "label_join"))


def read_promql(promql: str) -> Shape:
    """Parse an expression of at most 4,096 characters, and tell what it can answer.

    Raises:
        PromQLError: it does not parse.
    """
    try:
        return _shape(parser.parse(promql))
    except ValueError as error:
        raise PromQLError(str(error)) from error
    except RecursionError as error:
        raise PromQLError("it nests too deeply to be read") from error


def _shape(node: Any) -> Shape:  # noqa: PLR0911 - one return for each kind of node
    match node:
        case parser.ParenExpr() | parser.UnaryExpr():
            return _shape(node.expr)
        case parser.VectorSelector():
            return Shape(Kind.SERIES, selective=_is_event(node))
        case parser.MatrixSelector():
            return _shape(node.vector_selector)._replace(kind=Kind.RANGES)
        case parser.SubqueryExpr():
            return _shape(node.expr)._replace(kind=Kind.RANGES)
        case parser.NumberLiteral():
            return Shape(Kind.NUMBER)
        case parser.Call():
            return _call(node)
        case parser.AggregateExpr():
            return _aggregation(node)
        case parser.BinaryExpr():
            return _operation(node)
        case _:
            return Shape(Kind.TEXT)


def _is_event(node: parser.VectorSelector) -> bool:
    """Tell whether its series are, or may be, there only while something is the case.

    So it is taken of what a recording rule has made (a name with a colon), too.
    """
    asked = [*node.matchers.matchers, *chain.from_iterable(node.matchers.or_matchers)]
    given = {one.name: one.value for one in _equal(node)}
    metric = node.name or given.get("__name__", "")
    labelled = any(one.name != "__name__" for one in asked)
    return metric in _EVENTS or ":" in metric or (labelled and not _ALWAYS_THERE.fullmatch(metric))


def _equal(node: parser.VectorSelector) -> list[parser.Matcher]:
    return [one for one in node.matchers.matchers if one.op == parser.MatchOp.Equal]


def _call(node: parser.Call) -> Shape:
    kind = next(kind for given, kind in _KINDS if given == node.func.return_type)
    if kind is not Kind.SERIES:
        return Shape(kind)
    shapes = [_shape(one) for one in node.args]
    of = next((one for one in shapes if one.kind in (Kind.SERIES, Kind.RANGES)), None)
    if of is None:  # vector(1), hour()
        return Shape(kind, _NO_LABELS)
    labels = of.labels
    if node.func.name in _ABSENCES:
        return Shape(kind, _absent_labels(node.args[0]), selective=True)
    if node.func.name in _LABELLING and labels is not None:
        labels |= {node.args[1].val}
    if node.func.name == "info":
        labels = None
    return Shape(kind, labels, of.selective)


def _absent_labels(node: Any) -> frozenset[str]:
    """Return the labels of ``absent``: those that the selector fixes."""
    while isinstance(node, parser.ParenExpr):
        node = node.expr
    if isinstance(node, parser.MatrixSelector):
        node = node.vector_selector
    if not isinstance(node, parser.VectorSelector):
        return _NO_LABELS
    return frozenset(one.name for one in _equal(node)) - {"__name__"}


def _aggregation(node: parser.AggregateExpr) -> Shape:
    of = _shape(node.expr)
    by = node.modifier
    labels: frozenset[str] | None = _NO_LABELS
    if str(node.op) in _KEEP_LABELS:
        labels = of.labels
    elif by is not None and by.type == parser.AggModifierType.By:
        labels = frozenset(by.labels) & (of.labels if of.labels is not None else set(by.labels))
    elif by is not None:
        labels = None if of.labels is None else of.labels - set(by.labels)
    if str(node.op) == "count_values" and labels is not None and node.param is not None:
        labels |= {node.param.val}
    return Shape(Kind.SERIES, labels, of.selective)


def _operation(node: parser.BinaryExpr) -> Shape:
    """Return the shape of ``left op right``."""
    left, right = _shape(node.lhs), _shape(node.rhs)
    series = [one for one in (left, right) if one.kind is Kind.SERIES]
    if not series:
        return Shape(Kind.NUMBER)
    op, how = str(node.op), node.modifier
    if len(series) == 1:
        labels = series[0].labels
    else:
        labels = _joined_labels(op, left.labels, right.labels, how)
    if op in ("and", "unless") or (
        op in _COMPARISONS and not (how is not None and how.return_bool)
    ):
        return Shape(Kind.SERIES, labels, selective=True)
    fills = how is not None and (how.fill_values.lhs, how.fill_values.rhs) != (None, None)
    both = op == "or" or fills
    selective = (all if both else any)(one.selective for one in series)
    return Shape(Kind.SERIES, labels, selective)


def _joined_labels(
    op: str,
    left: frozenset[str] | None,
    right: frozenset[str] | None,
    how: parser.BinModifier | None,
) -> frozenset[str] | None:
    """Return the labels of two lists of series that are matched with each other."""
    if op in ("and", "unless"):
        return left
    if op == "or":
        return None if left is None or right is None else left | right
    if how is None:
        return left
    if how.card == parser.VectorMatchCardinality.ManyToOne:
        return None if left is None else left | set(how.group_labels or ())
    if how.card == parser.VectorMatchCardinality.OneToMany:
        return None if right is None else right | set(how.group_labels or ())
    return _matched_labels(left, how.matching)


def _matched_labels(
    left: frozenset[str] | None, on: parser.LabelModifier | None
) -> frozenset[str] | None:
    """Return the labels of pairs of one series each: those that ``on`` or ``ignoring`` leaves."""
    if on is None:
        return left
    named = frozenset(on.labels)
    if on.type == parser.LabelModifierType.Include:
        return named
    return None if left is None else left - named
