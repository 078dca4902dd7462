"""Whose cordon it is: only what we added is undone, and a human's action wins."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from remediator.decide.requests import REQUEST_ANNOTATION


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster


def test_a_cordon_from_before_stays(site: Site, run: Callable[..., Replica]) -> None:
    node = site.node(spec={"unschedulable": True})
    site.says(node, 79)
    run()
    session = site.wait(lambda: site.session(node), "session")
    assert session["before"]["cordoned"] is True
    assert session["added"] == {}

    site.says(node)
    site.wait(lambda: site.session(node) is None, "end of the session")

    assert site.cordoned(node)
    assert all(
        "unschedulable" not in entry["requestObject"].get("spec", {})
        for entry in site.writes_to(node)
    )


def test_an_uncordon_by_hand_wins_until_the_fault_returns(
    site: Site, run: Callable[..., Replica]
) -> None:
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon")

    site.cluster.uncordon(node)
    site.wait(lambda: site.session(node) is None, "cancelled session")
    assert [waiver["policy"] for waiver in site.history(node)["waivers"]] == ["xid-79"]
    site.says(node, 79)  # still there: a heartbeat with another message
    other = site.node()
    site.says(other, 79)
    site.wait(lambda: site.cordoned(other), "cordon of another node")  # time has passed
    assert not site.cordoned(node)

    site.says(node)
    site.wait(lambda: not site.history(node).get("waivers"), "end of the waiver")
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon after the fault returned")


def test_a_cordon_that_follows_an_uncordon_at_once_stays(
    site: Site, run: Callable[..., Replica]
) -> None:
    """However soon, and even while nothing may be written."""
    nodes = [site.node() for _ in range(4)]
    run()
    for node in nodes:
        site.says(node, 79)
    site.wait(lambda: all(map(site.cordoned, nodes)), "cordons")
    site.wait(lambda: all(map(site.session, nodes)), "sessions")
    for node in nodes:
        site.cluster.uncordon(node)
        site.cluster.cordon(node)
    site.wait(lambda: not any(map(site.session, nodes)), "end of the sessions")
    for node in nodes:
        site.says(node)
    site.wait(lambda: not any(site.history(n).get("waivers") for n in nodes), "ends of waivers")
    assert all(map(site.cordoned, nodes))


@pytest.mark.parametrize("cleared", [True, False], ids=["cleared", "still there"])
def test_a_cordon_that_was_made_anew_while_nobody_watched_stays(
    site: Site, run: Callable[..., Replica], *, cleared: bool
) -> None:
    """The next controller finds the same node and session; who cordoned it, the server knows."""
    node, kept = site.node(), site.node()
    first = run()
    for one in (node, kept):
        site.says(one, 79)
        site.wait(partial(site.cordoned, one), "cordon")
    first.stop()
    site.cluster.uncordon(node)
    site.cluster.cordon(node)
    site.cluster.cordon(kept)  # changes nothing: it is cordoned already
    run()
    codes = () if cleared else (79,)

    def ended() -> bool:
        site.says(node, *codes)
        site.says(kept)
        return site.session(node) is None and not site.cordoned(kept)

    site.wait(ended, "end of the session, and an uncordon of what is ours all the same")
    assert site.cordoned(node)
    site.wait(lambda: bool(site.history(node).get("waivers")) is not cleared, "waivers")


def test_the_last_policy_that_lets_go_uncordons(site: Site, run: Callable[..., Replica]) -> None:
    site.policy(
        "lost-gpu",
        when=[{"condition": {"type": "TestGPULost", "status": "True"}}],
    )
    node = site.node()
    run()
    site.says(node, 79)
    site.cluster.set_condition(node, "TestGPULost", "True")
    site.wait(lambda: len((site.session(node) or {"holds": ()})["holds"]) == 2, "two holds")
    assert site.cordoned(node)

    site.says(node)
    session = site.wait(
        lambda: (one := site.session(node)) and len(one["holds"]) == 1 and one, "one hold"
    )
    assert [hold["policy"] for hold in session["holds"]] == ["lost-gpu"]
    assert site.cordoned(node)

    site.cluster.set_condition(node, "TestGPULost", "False")
    site.wait(lambda: not site.cordoned(node), "uncordon by the last one")
    assert site.session(node) is None


def test_cancel_undoes_and_release_keeps(site: Site, run: Callable[..., Replica]) -> None:
    cancelled, released = site.node(), site.node()
    run()
    for node in (cancelled, released):
        site.says(node, 79)
    site.wait(lambda: site.cordoned(cancelled) and site.cordoned(released), "cordons")
    for node, verb in ((cancelled, "cancel"), (released, "release")):
        request = {"verb": verb, "by": "alice", "at": "2026-01-01T00:00:00Z"}
        site.cluster.annotate(node, {REQUEST_ANNOTATION: json.dumps(request)})
    site.wait(
        lambda: site.session(cancelled) is None and site.session(released) is None,
        "end of the sessions",
    )

    for node in (cancelled, released):
        assert REQUEST_ANNOTATION not in site.cluster.node(node)["metadata"]["annotations"]
    assert not site.cordoned(cancelled)
    assert site.cordoned(released)
