"""What has begun goes on as it began, on the real API server: edited policies, changed labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from remediator.decide.requests import (
    APPROVAL_ANNOTATION,
    REQUEST_ANNOTATION,
    Approval,
    Request,
    Verb,
    encode_approvals,
)
from remediator.decide.session import encode


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster

TIER = "example.com/tier"
NOTE = "example.com/note"
LAST: dict[str, Any] = {"annotate": {"set": {NOTE: "reached"}}}


def first_hold(site: Site, node: str) -> dict[str, Any]:
    session = site.session(node)
    return {} if session is None else dict(session["holds"][0])


def metadata(site: Site, node: str) -> dict[str, Any]:
    return dict(site.cluster.node(node)["metadata"])


def is_held_by(site: Site, node: str, guard: str) -> bool:
    shown = site.status_of(node) or {}
    return guard in {one["guard"] for one in shown.get("holds", [])}


@pytest.mark.parametrize(
    "edit",
    [
        {"when": [{"xid": {"codes": [48]}}]},
        {"when": [{"xid": {"codes": [79]}, "condition": {"type": "GPULost"}}]},
        {"nodes": {"selector": {"matchLabels": {TIER: "none"}}}},
    ],
    ids=["when", "one more key", "selector"],
)
def test_an_edit_stops_no_session_that_has_begun(
    site: Site, run: Callable[..., Replica], edit: dict[str, Any]
) -> None:
    steps = [{"cordon": {}}, {"approve": {}}, {"taint": {}}, LAST]
    site.policy(steps=steps)
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: is_held_by(site, node, "approval"), "the wait for a person")
    site.policy(steps=steps, **edit)

    def marked() -> bool:
        shown: list[str] = (site.status_of(node) or {}).get("steps", [])
        return shown == ["xid-79: 2/4 approve, begun before its edit"]

    site.wait(marked, "the edit in the status")
    approve(site, node)
    site.wait(lambda: first_hold(site, node).get("state") == "done", "end of the steps")
    assert metadata(site, node)["annotations"][NOTE] == "reached"
    assert site.cluster.node(node)["spec"]["taints"]
    site.says(node)
    site.wait(lambda: site.session(node) is None, "recovery")
    assert not site.cordoned(node)
    assert NOTE not in metadata(site, node)["annotations"]


def approve(site: Site, node: str) -> None:
    """Say yes to the step that waits, as `remediator approve` does."""
    hold, session = first_hold(site, node), site.session(node)
    assert session is not None
    given = Approval(
        session=session["id"],
        policy=hold["policy"],
        step=hold["step"],
        by="ann",
        at="now",
        expires="2999-01-01T00:00:00Z",
    )
    site.cluster.annotate(node, {APPROVAL_ANNOTATION: encode_approvals([given])})


def test_a_label_step_that_leaves_the_policys_own_selector_stops_nothing(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.policy(
        nodes={"selector": {"matchLabels": {TIER: "a"}}},
        steps=[{"label": {"set": {TIER: "broken"}}}, {"cordon": {}}, {"wait": {"for": "1s"}}, LAST],
    )
    node = site.node(labels={TIER: "a"})
    run()
    site.says(node, 79)
    site.wait(lambda: first_hold(site, node).get("state") == "done", "end of the steps")
    assert metadata(site, node)["labels"][TIER] == "broken"
    assert metadata(site, node)["annotations"][NOTE] == "reached"
    site.says(node)
    site.wait(lambda: site.session(node) is None, "recovery")
    assert metadata(site, node)["labels"][TIER] == "a"
    assert not site.cordoned(node)


def test_what_dry_run_leaves_behind_keeps_its_place_until_people_cancel(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.config("DryRun", budgets=[{"maxUnavailable": 1, "per": "cluster"}])
    site.policy(recover={"when": "never", "for": "0s"})
    first, second = site.node(), site.node()
    run()
    site.says(first, 79)
    site.wait(lambda: (site.status_of(first) or {}).get("phase") == "in-session", "a session")
    site.says(first)
    site.wait(lambda: (site.status_of(first) or {}).get("phase") != "in-session", "its end")
    site.says(second, 79)
    site.wait(lambda: is_held_by(site, second, "budget"), "the place that is taken")
    request = Request(verb=Verb.CANCEL, by="ann", at="now")
    site.cluster.annotate(first, {REQUEST_ANNOTATION: encode(request)})
    site.wait(lambda: (site.status_of(second) or {}).get("phase") == "in-session", "the free place")
    assert not site.cordoned(first)
    assert not site.cordoned(second)
