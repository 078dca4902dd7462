"""Taints on the real API server: they come with the session and go, and others stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest


if TYPE_CHECKING:
    from testbed.api import Json
    from tests.integration.controller.conftest import Replica, Site, Succession

pytestmark = pytest.mark.cluster

KEY = "gpu-remediator.io/unhealthy"
OURS = {"key": KEY, "effect": "NoSchedule"}
STAMPED = {
    "key": "example.com/draining",
    "value": "a",
    "effect": "NoExecute",
    "timeAdded": "2026-01-01T00:00:00Z",
}
DEDICATED = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
STEPS = [{"taint": {}}, {"event": {"message": "faulty"}}, {"notify": {"to": ["log"]}}]


def taints(site: Site, node: str) -> list[Json]:
    """The node's taints but those that the node lifecycle controller adds and removes."""
    found = site.cluster.node(node)["spec"].get("taints", [])
    return [one for one in found if not one["key"].startswith("node.kubernetes.io/")]


def test_a_taint_comes_and_goes_and_others_stay_to_the_letter(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.policy(steps=STEPS)
    node = site.node(spec={"taints": [STAMPED, DEDICATED]})
    run()
    site.says(node, 79)
    site.wait(lambda: OURS in taints(site, node), "taint")
    assert taints(site, node) == [STAMPED, DEDICATED, OURS]
    assert not site.cordoned(node)
    session = site.wait(lambda: site.session(node), "session")
    assert session["added"] == {"taints": [OURS]}
    (first,) = [one for one in site.writes_to(node) if one["requestObject"].get("spec")]
    assert first["requestObject"]["metadata"]["resourceVersion"]
    assert "gpu-remediator.io/session" in first["requestObject"]["metadata"]["annotations"]

    site.says(node)
    site.wait(lambda: site.session(node) is None, "end of the session")
    assert taints(site, node) == [STAMPED, DEDICATED]


def test_a_taint_of_that_key_from_before_stays(site: Site, run: Callable[..., Replica]) -> None:
    site.policy(steps=STEPS)
    theirs = {**OURS, "value": "theirs"}
    node = site.node(spec={"taints": [theirs]})
    site.says(node, 79)
    run()
    site.wait(lambda: site.session(node), "session")
    site.says(node)
    site.wait(lambda: site.session(node) is None, "end of the session")
    assert taints(site, node) == [theirs]
    assert not any(one["requestObject"].get("spec") for one in site.writes_to(node))


def test_a_taint_removed_by_hand_is_not_added_again(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.policy(steps=[{"cordon": {}}, *STEPS])
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: OURS in taints(site, node), "taint")
    site.cluster.patch_node(node, {"spec": {"taints": None}})
    site.wait(lambda: site.session(node) is None, "cancelled session")
    assert [waiver["policy"] for waiver in site.history(node)["waivers"]] == ["xid-79"]
    other = site.node()
    site.says(other, 79)
    site.wait(lambda: OURS in taints(site, other), "taint of another node")  # time has passed
    assert taints(site, node) == []
    assert site.cordoned(node)


@pytest.mark.parametrize("writes", range(1, 7))
def test_a_crash_after_any_write_changes_nothing(
    site: Site, succession: Callable[[int], Succession], writes: int
) -> None:
    site.policy(steps=STEPS)
    controllers = succession(writes)
    nodes: list[str] = []
    while not controllers.crashed and len(nodes) < writes:
        nodes.append(node := site.node(spec={"taints": [DEDICATED]}))
        site.says(node)
        controllers.reach(lambda: OURS in taints(site, nodes[-1]), "taint", node, 79)
        controllers.reach(lambda: OURS not in taints(site, nodes[-1]), "end of the taint", node)
        controllers.reach(lambda: site.session(nodes[-1]) is None, "end of the session", node)

    assert controllers.crashed
    for node in nodes:
        assert taints(site, node) == [DEDICATED]
        assert len(site.history(node)["attempts"]) == 1
        changes = [
            OURS in one["requestObject"]["spec"]["taints"]
            for one in site.writes_to(node)
            if one["requestObject"].get("spec")
        ]
        assert len(changes) == len(set(changes)), changes


def test_dry_run_taints_nothing(site: Site, run: Callable[..., Replica]) -> None:
    site.config(budgets=[{"maxUnavailable": 1, "per": "cluster"}])
    site.policy(mode="DryRun", steps=STEPS)
    nodes = [site.node() for _ in range(2)]
    run()
    for node in nodes:
        site.says(node, 79)

    def phases() -> list[str]:
        return sorted(one["phase"] for one in site.status().get("nodes", []))

    site.wait(lambda: phases() == ["in-session", "matched"], "one of two, virtually")
    assert not any(site.writes_to(node) for node in nodes)
    assert not any(taints(site, node) for node in nodes)
