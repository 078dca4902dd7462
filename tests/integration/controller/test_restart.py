"""The controller dies right after each of its writes; the next one goes on to the same end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site, Succession

pytestmark = pytest.mark.cluster

STEPS = [{"cordon": {}}, {"event": {"message": "faulty"}}, {"notify": {"to": ["log"]}}]


@pytest.mark.parametrize("writes", range(1, 8))
def test_a_crash_after_any_write_changes_nothing(
    site: Site, succession: Callable[[int], Succession], writes: int
) -> None:
    site.policy(steps=STEPS)
    controllers = succession(writes)
    nodes: list[str] = []
    while not controllers.crashed and len(nodes) < writes:
        nodes.append(node := site.node())
        site.says(node)
        controllers.reach(lambda: site.cordoned(nodes[-1]), "cordon", node, 79)
        controllers.reach(lambda: not site.cordoned(nodes[-1]), "uncordon", node)
        controllers.reach(lambda: site.session(nodes[-1]) is None, "end of the session", node)

    assert controllers.crashed
    for node in nodes:
        assert_each_change_once(site, node)


def assert_each_change_once(site: Site, node: str) -> None:
    """One cordon, one uncordon.

    A death in the middle of a write cuts off its answer: that one, and only that one, the API
    server may have carried out and logged as an error all the same.
    """
    changes = [
        (entry["requestObject"]["spec"]["unschedulable"], entry["responseStatus"]["code"])
        for entry in site.attempts_on(node)
        if entry["requestObject"].get("spec")
    ]
    done = [change for change, code in changes if code < 300]
    cut_off = [change for change, code in changes if code >= 499]
    assert len(cut_off) <= 1, changes
    assert sorted({*done, *cut_off}, key=str) == [None, True], changes
    assert len(done) == len(set(done)), changes
    assert len(site.history(node)["attempts"]) == 1
    assert not site.session(node)


def test_a_fault_of_before_the_start_is_acted_on_once(
    site: Site, run: Callable[..., Replica]
) -> None:
    node = site.node()
    site.says(node, 79)
    first = run()
    site.wait(lambda: site.cordoned(node), "cordon")
    first.stop()
    before = site.cluster.resource_versions()
    run()
    other = site.node()
    site.says(other, 79)
    site.wait(lambda: site.cordoned(other), "cordon of another node")  # time has passed

    after = site.cluster.resource_versions()
    assert after[f"Node/{node}"] == before[f"Node/{node}"]


def _of_another(site: Site, started: float | None) -> bool:
    """Tell whether the status is of another leader than the one that began then."""
    return bool(site.status().get("started") != started)


@pytest.mark.parametrize("mode", ["Enforce", "DryRun"])
def test_a_restart_in_a_storm_does_not_hide_it(
    site: Site, run: Callable[..., Replica], mode: str
) -> None:
    site.config(breaker={"minNodes": 1, "percent": 1})
    site.policy(mode=mode)
    nodes = [site.node() for _ in range(2)]
    for node in nodes:
        site.says(node)
    for node in nodes:
        before = site.status().get("started")
        one = run()
        site.wait(partial(_of_another, site, before), "its first status")
        site.says(node, 79)
        site.wait(partial(site.status_of, node), "the fault in the status")
        one.stop()
    run()

    def opened() -> list[str]:
        return [one["source"] for one in site.status().get("breakers", ()) if one["open"]]

    site.wait(lambda: opened() == ["xid-79"], "the breaker, after another restart")
    assert not site.cordoned(nodes[1])


def test_rates_survive_a_restart(site: Site, run: Callable[..., Replica]) -> None:
    site.config(rates={"cordon": "1/10m"})
    first, second = site.node(), site.node()
    one = run()
    site.says(first, 79)
    site.wait(lambda: site.cordoned(first), "cordon of the first")
    one.stop()
    run()
    site.says(second, 79)
    shown = site.wait(
        lambda: (found := site.status_of(second)) and found.get("holds") and found, "hold"
    )
    assert shown["holds"][0]["guard"] == "rate"
    assert not site.cordoned(second)
