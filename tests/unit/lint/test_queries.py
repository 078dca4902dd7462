"""Queries that no server reads, that name no node, and that name every node."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.policy.lint import lint
from remediator.policy.lint.queries import clears_what_it_finds
from tests.unit.lint.test_rules import policy, query, when


RULES = {"unreadable-query", "query-names-no-node", "any-value"}
HOT = "DCGM_FI_DEV_GPU_TEMP > 90"


def said(**spec: Any) -> list[tuple[str, str, str]]:
    """Rule, last key of the place, and fix of what is found about queries."""
    found = lint([policy(**spec)])
    return [(one.rule.id, str(one.at[-1]), one.fix) for one in found if one.rule.id in RULES]


@pytest.mark.parametrize(
    ("promql", "rule"),
    [
        ("max by (node (x) > 1", "unreadable-query"),
        ("x[5m]", "unreadable-query"),
        ("scalar(x) > bool 1", "unreadable-query"),
        ("sum(x) > 1", "query-names-no-node"),
        ("max by (gpu) (x) > 1", "query-names-no-node"),
        ("sum by (node) (x) * on(pod) group_left(host) y == 1", ""),
        ("max by (node) (rate(x[5m]))", "any-value"),
        ("x == bool 79", "any-value"),
        ('kube_node_status_condition{condition="Ready", status="false"}', "any-value"),
        ('kube_node_status_condition{condition="Ready", status="false"} == 1', ""),
        ('ALERTS{alertname="GpuHot", alertstate="firing"}', ""),
        ("time() - DCGM_last_seen > 300", ""),
        ("kube_node_info unless on(node) DCGM_FI_DEV_GPU_TEMP", ""),
        (HOT, ""),
    ],
)
def test_a_query_in_when(promql: str, rule: str) -> None:
    assert [one[0] for one in said(**query(promql))] == ([rule] if rule else [])


def test_what_clears_is_read_too_and_may_name_every_node_that_is_not_in_the_query() -> None:
    assert said(**query(HOT, clearedBy="DCGM_FI_DEV_GPU_TEMP")) == []
    assert [one[:2] for one in said(**query(HOT, clearedBy="sum(x) == 0"))] == [
        ("query-names-no-node", "clearedBy")
    ]
    assert [one[:2] for one in said(**query(HOT, clearedBy="sum(x"))] == [
        ("unreadable-query", "clearedBy")
    ]


def test_an_exception_need_not_name_a_node_and_must_end_some_time() -> None:
    def unless(promql: str, **beside: Any) -> list[str]:
        return [one[0] for one in said(unless=[{"query": {"promql": promql}, **beside}])]

    assert unless("sum(deploy_in_progress) > 0") == []
    assert unless("sum(deploy_in_progress)") == ["any-value"]
    assert unless("sum(deploy_in_progress)", alert={"name": "Deploy"}) == []
    assert unless("scalar(deploy_in_progress)") == ["unreadable-query"]


def test_a_query_beside_another_clause_may_say_which_nodes_are_meant() -> None:
    labels = {"promql": "kube_node_info"}
    xid = {"codes": [79]}
    assert said(**when(query=labels, xid=xid)) == []
    assert said(**when(all=[{"query": labels}, {"xid": xid}])) == []
    assert [one[0] for one in said(**when(query=labels, attempts={"atLeast": 1}))] == ["any-value"]
    assert [one[0] for one in said(**when(any=[{"query": labels}, {"xid": xid}]))] == ["any-value"]


@pytest.mark.parametrize("promql", ["DCGM_FI_DEV_GPU_TEMP > bool 90", "x[5m]", "x", "rate(x[5m])"])
def test_the_fix_is_one(promql: str) -> None:
    [(_, _, fix)] = said(**query(promql))
    mended = fix.split(": ", 1)[-1].removeprefix("write ").split(", or ")[0]
    assert said(**query(mended)) == [], mended


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
