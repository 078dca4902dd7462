"""What can be read off the text of a query; tests/integration asks a real Prometheus the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediator.policy.promql import Kind, PromQLError, Shape, read_promql
from remediator.policy.when import MAX_PROMQL


@pytest.mark.parametrize(
    ("promql", "labels"),
    [
        ("sum(x)", set()),
        ("sum by (node, gpu) (x) > 1", {"node", "gpu"}),
        ("sum(x) by (gpu)", {"gpu"}),
        ("max without (gpu) (x)", None),
        ("max without (gpu) (sum by (gpu, node) (x))", {"node"}),
        ("x == 79", None),
        ("rate(x[5m]) > 1", None),
        ("sum(x) * on(node) group_left y", set()),
        ("sum by (gpu) (x) * on(gpu) group_left(node) y", {"gpu", "node"}),
        ("sum by (gpu) (x) * on(gpu) group_right y", None),
        ("x * on(gpu) y", {"gpu"}),
        ("sum by (gpu, node) (x) - ignoring(node) sum by (gpu) (y)", {"gpu"}),
        ("sum by (node) (x) > 1 and on() sum(y) > 2", {"node"}),
        ("sum by (node) (x) > 1 or sum by (gpu) (y) > 2", {"node", "gpu"}),
        ("x == 1 or sum(y) == 1", None),
        ('label_replace(sum(x), "node", "a", "", "")', {"node"}),
        ('absent(x{node="a", gpu!="b", zone=~"c"})', {"node"}),
        ('absent_over_time((x{node="a"})[5m:])', set()),
        ("topk(1, sum by (node) (x))", {"node"}),
        ('count_values by (node) ("of", x)', {"node", "of"}),
        ("vector(1)", set()),
        ("hour() > 6", set()),
        ("info(sum by (node) (x))", None),
        ("summary_metric > 1", None),
    ],
)
def test_labels_that_a_result_keeps(promql: str, labels: set[str] | None) -> None:
    assert read_promql(promql).labels == (None if labels is None else frozenset(labels))


@pytest.mark.parametrize(
    ("promql", "selective"),
    [
        ("x", False),
        ('x{err_code="79"}', True),
        ('{__name__="x", err_code="79"}', True),
        ('x{a="b" or c="d"}', True),
        ("x{}", False),
        ('{__name__="x"}', False),
        ('kube_node_status_condition{condition="Ready", status="false"}', False),
        ('up{job="node"}', False),
        ("gpu:xid79:nodes", True),
        ("x == 79", True),
        ("79 == x", True),
        ("x > bool 90", False),
        ("x > 80 > bool 90", True),
        ("sum by (node) (x > bool 90)", False),
        ("sum by (node) (x == 79)", True),
        ("increase(x[5m])", False),
        ("increase(x[5m]) > 0", True),
        ("(x == 79) * 2 + y", True),
        ("x + y", False),
        ("x and on(node) y", True),
        ("x and on(node) y == 1", True),
        ("x unless on(node) y", True),
        ("x == 1 or y == 1", True),
        ("x == 1 or y", False),
        ("(x == 1) + fill(0) y", False),
        ("topk(1, x)", False),
        ("absent(x)", True),
        ('ALERTS{alertstate="firing"}', True),
        ('{__name__="ALERTS"}', True),
        ("max_over_time((x == 1)[5m:])", True),
    ],
)
def test_what_the_value_decides(promql: str, *, selective: bool) -> None:
    assert read_promql(promql).selective is selective


@pytest.mark.parametrize(
    ("promql", "kind"),
    [
        ("x", Kind.SERIES),
        ("x[5m]", Kind.RANGES),
        ("x[5m:1m]", Kind.RANGES),
        ("scalar(x)", Kind.NUMBER),
        ("1 + time()", Kind.NUMBER),
        ("-1", Kind.NUMBER),
        ('"x"', Kind.TEXT),
    ],
)
def test_what_an_expression_gives(promql: str, kind: Kind) -> None:
    assert read_promql(promql).kind is kind


@pytest.mark.parametrize(
    "promql", ["", "sum(x", "rate(x)", "x{", "no_such(x)", "1 > 2", 'x{node=~"("}', "x y"]
)
def test_what_is_no_promql_is_said(promql: str) -> None:
    with pytest.raises(PromQLError, match=r"\w"):
        read_promql(promql)


@pytest.mark.parametrize("inner", ["(x", "-x", "abs(x", "sum(x", "x + (x", "x == (x"])
@pytest.mark.parametrize("depth", [50, MAX_PROMQL])
def test_a_query_that_nests_is_read_or_refused(inner: str, depth: int) -> None:
    opening = inner.removesuffix("x")
    depth = min(depth, MAX_PROMQL // (len(opening) + 1))
    promql = opening * depth + "x" + ")" * depth * opening.count("(")
    if depth == 50:
        assert read_promql(promql).kind is Kind.SERIES
    else:
        with pytest.raises(PromQLError, match="too deeply"):
            read_promql(promql)


TOKENS = st.sampled_from([*"(){}[],=~!<>+-*/^@:\"'\\ \n#01xé", "5m", "sum", "by", "bool", "offset"])


@pytest.mark.fuzz
@given(st.one_of(st.text(max_size=60), st.lists(TOKENS, max_size=30).map("".join)))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        shape = read_promql(text)
    except PromQLError:
        return
    assert isinstance(shape, Shape)
