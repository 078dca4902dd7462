"""What rules can tell of PromQL without a parser."""

from __future__ import annotations

import pytest

from remediator.policy.lint.queries import clears_what_it_finds, kept_labels, takes_all


@pytest.mark.parametrize(
    ("promql", "kept"),
    [
        ("sum(x)", set()),
        ("sum by (node, gpu) (x) > 1", {"node", "gpu"}),
        ("sum(x) by (gpu)", {"gpu"}),
        ("max without (gpu) (x)", None),
        ("x == 79", None),
        ("rate(x[5m]) > 1", None),
        ("sum(x) * on(node) group_left y", None),
        ("summary_metric > 1", None),
    ],
)
def test_labels_that_an_aggregation_keeps(promql: str, kept: set[str] | None) -> None:
    found_labels = kept_labels(promql)
    assert found_labels == (None if kept is None else frozenset(kept))


@pytest.mark.parametrize(
    ("promql", "why"),
    [
        ("DCGM_FI_DEV_XID_ERRORS", "nothing"),
        ("max by (node) (DCGM_FI_DEV_XID_ERRORS)", "nothing"),
        ("rate(node_vmstat_oom_kill[5m])", "nothing"),
        ("vector(1)", "nothing"),
        ("X == bool 79", "bool"),
        ("X{gpu='0'} >bool 79", "bool"),
        ('X{why="a > b"}', ""),
        ("X # > 1", "nothing"),
        ("X == 79", ""),
        ("sum by (node) (X == bool 79) > 0", ""),
        ("X unless Y", ""),
        ("topk(3, X)", ""),
        ("absent(X)", ""),
        ("ALERTS", ""),
        ("gpu:xid79:nodes", ""),
        ('kube_node_spec_taint{key="maintenance"}', ""),
        ("X{}", "nothing"),
    ],
)
def test_queries_that_have_every_series(promql: str, why: str) -> None:
    found = takes_all(promql)
    assert found.rpartition(" ")[2] == why


@pytest.mark.parametrize(
    ("promql", "cleared_by", "same"),
    [
        ("x == 79", "x==79", True),
        ("T > 90", "T > 80", True),
        ("T >= 90", "T > 80", True),
        ("T > 90", "T < 80", False),
        ("T > 90", "U > 80", False),
        ("x == 79", "x == 0", False),
        ("x > 0", "up == 1", False),
    ],
)
def test_a_query_that_clears_what_another_finds(
    promql: str, cleared_by: str, *, same: bool
) -> None:
    assert clears_what_it_finds(promql, cleared_by) is same
