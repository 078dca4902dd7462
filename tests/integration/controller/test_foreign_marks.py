"""Marks that people set, change or take away, before and amid a session: theirs stay theirs.

On the real API server. Each case is what happens before the fault, once our marks are set, and
after the fault is over; all run beside each other under one controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pytest

from remediator.decide.session import HISTORY_ANNOTATION, SESSION_ANNOTATION
from tests.integration.controller.test_taint import OURS, taints


if TYPE_CHECKING:
    from testbed.api import Json
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster

STATE: Final = "example.com/state"
NEW: Final = "example.com/new"
NOTE: Final = "example.com/note"
THEIRS: Final = {**OURS, "value": "theirs"}
STEPS: Final[list[Json]] = [
    {"cordon": {}},
    {"taint": {}},
    {"label": {"set": {STATE: "bad", NEW: "bad"}}},
    {"annotate": {"set": {NOTE: "bad"}}},
]
Case = Iterator[str]
"""Yields the node first, before its fault; then once when the fault is to be over."""


def metadata(site: Site, node: str) -> Json:
    return dict(site.cluster.node(node)["metadata"])


def undone(site: Site, node: str) -> None:
    """Nothing of ours is left, and what was there before is there."""
    found = metadata(site, node)
    assert not site.cordoned(node)
    assert taints(site, node) == []
    assert found["labels"][STATE] == "good"
    assert NEW not in found["labels"]
    assert NOTE not in found["annotations"]


def untouched(site: Site) -> Case:
    node = site.node(labels={STATE: "good"})
    yield node
    yield node
    undone(site, node)


def the_same_before(site: Site) -> Case:
    """All of it was so before us: done, and nothing of it is ours."""
    node = site.node(
        labels={STATE: "bad", NEW: "bad"},
        annotations={NOTE: "bad"},
        spec={"unschedulable": True, "taints": [OURS]},
    )
    yield node
    assert (site.session(node) or {})["added"] == {}
    yield node
    assert site.cordoned(node)
    assert taints(site, node) == [OURS]
    found = metadata(site, node)
    assert (found["labels"][STATE], found["labels"][NEW]) == ("bad", "bad")
    assert found["annotations"][NOTE] == "bad"


def another_value_amid(site: Site) -> Case:
    """Who changes our taint has taken the node over: no more steps, and nothing is undone."""
    node = site.node(labels={STATE: "good"})
    yield node
    site.cluster.patch_node(node, {"spec": {"taints": [THEIRS]}})
    site.wait(lambda: site.session(node) is None, "cancelled session")
    assert site.history(node)["waivers"]
    yield node
    assert taints(site, node) == [THEIRS]


def another_effect_amid(site: Site) -> Case:
    """Beside ours: theirs stays, ours goes."""
    node = site.node(labels={STATE: "good"})
    yield node
    theirs = {**OURS, "effect": "PreferNoSchedule"}
    site.cluster.patch_node(node, {"spec": {"taints": [*all_taints(site, node), theirs]}})
    yield node
    assert taints(site, node) == [theirs]


def all_taints(site: Site, node: str) -> list[Json]:
    return list(site.cluster.node(node)["spec"]["taints"])


def texts_changed_and_removed(site: Site) -> Case:
    node = site.node(labels={STATE: "good"})
    yield node
    site.cluster.label(node, {STATE: "mine", NEW: None})
    site.cluster.annotate(node, {NOTE: None})
    yield node
    found = metadata(site, node)
    assert found["labels"][STATE] == "mine"
    assert NEW not in found["labels"]
    assert NOTE not in found["annotations"]
    assert not site.cordoned(node)


def cordoned_before_and_uncordoned_amid(site: Site) -> Case:
    """Theirs was taken away by themselves: the fault is there still, so now it is ours."""
    node = site.node(labels={STATE: "good"}, spec={"unschedulable": True})
    yield node
    site.cluster.uncordon(node)
    site.wait(lambda: site.cordoned(node), "a cordon of ours")
    assert (site.session(node) or {})["added"]["cordoned"] is True
    yield node
    undone(site, node)


def cordoned_once_more(site: Site) -> Case:
    """It is cordoned already, so that it changes nothing; the server tells nobody of it."""
    node = site.node(labels={STATE: "good"})
    yield node
    site.cluster.cordon(node)
    yield node
    undone(site, node)


def without_its_session(site: Site) -> Case:
    """Whose the marks are can no longer be known: they stay."""
    node = site.node(labels={STATE: "good"})
    yield node
    before = site.session(node)
    site.cluster.annotate(node, {SESSION_ANNOTATION: None})
    again = site.wait(lambda: done(site, node) and site.session(node), "another session")
    assert before is not None
    assert again["id"] != before["id"]
    assert again["added"] == {}
    yield node
    assert site.cordoned(node)
    assert taints(site, node) == [OURS]
    assert metadata(site, node)["labels"][STATE] == "bad"


def without_its_history(site: Site) -> Case:
    """People took the node over; without a word of that, its fault is one as any."""
    node = site.node(labels={STATE: "good"})
    yield node
    site.cluster.uncordon(node)
    site.wait(lambda: site.session(node) is None, "cancelled session")
    site.cluster.annotate(node, {HISTORY_ANNOTATION: None})
    site.wait(lambda: site.cordoned(node), "another cordon")
    yield node
    assert not site.cordoned(node)


CASES: tuple[Callable[[Site], Case], ...] = (
    untouched,
    the_same_before,
    another_value_amid,
    another_effect_amid,
    texts_changed_and_removed,
    cordoned_before_and_uncordoned_amid,
    cordoned_once_more,
    without_its_session,
    without_its_history,
)


def done(site: Site, node: str) -> bool:
    session = site.session(node)
    return session is not None and session["holds"][0].get("state") == "done"


def test_marks_of_people_stay_and_ours_go(site: Site, run: Callable[..., Replica]) -> None:
    site.policy(steps=STEPS)
    cases = [one(site) for one in CASES]
    run()
    nodes = [next(case) for case in cases]
    for node in nodes:
        site.says(node, 79)
    site.wait(lambda: all(done(site, node) for node in nodes), "the end of all steps")
    for case in cases:
        next(case)

    def ended() -> bool:
        for node in nodes:
            site.says(node)
        return not any(site.session(node) for node in nodes)

    site.wait(ended, "the end of all sessions")
    for one, case in zip(CASES, cases, strict=True):
        assert next(case, "over") == "over", one.__name__
