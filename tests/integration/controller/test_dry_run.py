"""Dry-run goes all the way and writes nothing to nodes."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("cluster_mode", "policy_mode", "node_mode"),
    [("DryRun", "Enforce", ""), ("Enforce", "DryRun", ""), ("Enforce", "Enforce", "dry-run")],
    ids=["cluster", "policy", "node"],
)
def test_dry_run_writes_nothing_to_nodes(
    site: Site, run: Callable[..., Replica], cluster_mode: str, policy_mode: str, node_mode: str
) -> None:
    site.config(cluster_mode)
    site.policy(
        mode=policy_mode,
        steps=[{"cordon": {}}, {"event": {"message": "faulty"}}, {"notify": {"to": ["log"]}}],
    )
    annotations = {"gpu-remediator.io/mode": node_mode} if node_mode else {}
    nodes = [site.node(annotations=annotations) for _ in range(3)]
    for node in nodes:
        site.says(node)
    run()
    for node in nodes:
        site.says(node, 79)
    before = site.cluster.resource_versions()

    def decided() -> bool:
        shown = [site.status_of(node) for node in nodes]
        return all(one and one["dryRun"] and one["phase"] == "in-session" for one in shown)

    site.wait(decided, "virtual sessions of all three nodes")
    assert site.cluster.resource_versions() == before

    for node in nodes:
        site.says(node)
    before = site.cluster.resource_versions()
    site.wait(lambda: not any(site.status_of(node) for node in nodes), "virtual recovery")
    assert site.cluster.resource_versions() == before
    assert not any(site.writes_to(node) for node in nodes)
    assert not any(site.events(node) for node in nodes)


def test_dry_run_respects_its_budget(site: Site, run: Callable[..., Replica]) -> None:
    site.config("DryRun", budgets=[{"maxUnavailable": 1, "per": "cluster"}])
    nodes = [site.node() for _ in range(3)]
    replica = run()
    for node in nodes:
        site.says(node, 79)

    def phases() -> list[str]:
        return sorted(one["phase"] for one in site.status().get("nodes", []))

    site.wait(lambda: phases() == ["in-session", "matched", "matched"], "one of three")
    held = next(one for one in site.status()["nodes"] if one["phase"] == "matched")
    assert held["holds"][0]["guard"] == "budget"

    def page() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{replica.port}/metrics", timeout=5) as got:
            return str(got.read(), "utf-8")

    one = 'remediation_sessions{mode="dry_run",policy="xid-79",state="done"} 1.0'
    site.wait(lambda: one in page(), "the virtual session in the metrics")
    assert 'remediation_budget_used{mode="dry_run",scope="cluster"} 1.0' in page()
    assert 'remediation_budget_used{mode="enforce",scope="cluster"} 0.0' in page()
