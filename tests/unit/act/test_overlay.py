"""The world of dry-run: what the nodes would be, had dry-run acted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from remediator.act.overlay import Overlay
from remediator.decide.decision import PatchNode
from remediator.decide.facts import NodeFacts
from remediator.decide.session import (
    Added,
    Before,
    History,
    PolicyHold,
    Request,
    Session,
    Taint,
    Verb,
)


FACTS = NodeFacts(name="n1", uid="u1", resource_version="1")
HOLD = PolicyHold(
    policy="p", version="v", plan="{}", reasons=(), instances=(), since=1.0, step_since=1.0
)
SESSION = Session(
    version=1,
    id="s",
    node_uid="u1",
    boot_id="",
    started=1.0,
    before=Before(),
    added=Added(cordoned=True),
    holds=(HOLD,),
)


def patch(**changes: Any) -> PatchNode:
    return PatchNode(name="n1", uid="u1", resource_version="1", **changes)


@pytest.fixture
def cordoned() -> Overlay:
    overlay = Overlay()
    assert overlay.apply(patch(unschedulable=True, session=SESSION), FACTS, now=10.0)
    return overlay


def test_untouched_nodes_are_the_real_ones() -> None:
    assert Overlay().view(FACTS) is FACTS


def test_a_virtual_cordon_is_seen(cordoned: Overlay) -> None:
    seen = cordoned.view(FACTS)
    assert (seen.unschedulable, seen.session, seen.unavailable_since) == (True, SESSION, 10.0)
    assert not FACTS.unschedulable


def test_a_patch_without_effect_is_none(cordoned: Overlay) -> None:
    assert not cordoned.apply(patch(unschedulable=True, session=SESSION), FACTS, now=20.0)


def test_a_virtual_recovery_leaves_only_the_history(cordoned: Overlay) -> None:
    history = History(attempts=(1.0,), last="recovered")
    cordoned.apply(patch(unschedulable=False, session=None, history=history), FACTS, now=20.0)
    seen = cordoned.view(FACTS)
    assert (seen.unschedulable, seen.session, seen.history) == (False, None, history)
    assert seen.unavailable_since is None


def test_a_real_cordon_ends_the_virtual_session(cordoned: Overlay) -> None:
    really = replace(FACTS, unschedulable=True, unavailable_since=15.0)
    seen = cordoned.view(really)
    assert (seen.unschedulable, seen.session, seen.unavailable_since) == (True, None, 15.0)
    assert cordoned.view(FACTS).session is None


def test_real_sessions_are_hidden_and_requests_are_not() -> None:
    request = Request(verb=Verb.CANCEL, by="a", at="b")
    seen = Overlay().view(replace(FACTS, session=SESSION, request=request, unschedulable=True))
    assert (seen.session, seen.request, seen.unschedulable) == (None, request, True)


def test_an_uncordon_of_a_real_session_is_not_one_of_the_virtual(cordoned: Overlay) -> None:
    facts = replace(FACTS, session=SESSION, uncordoned=True)
    assert not Overlay().view(facts).uncordoned
    assert not cordoned.view(facts).uncordoned


TAINT = Taint(key="gpu-remediator.io/unhealthy", effect="NoSchedule")
TAINTED = msgspec.structs.replace(SESSION, added=Added(taints=(TAINT,)))


def test_a_virtual_taint_is_seen_and_goes_with_its_session() -> None:
    overlay = Overlay()
    overlay.apply(patch(taint=(TAINT,), session=TAINTED), FACTS, now=10.0)
    seen = overlay.view(FACTS)
    assert (seen.taints, seen.unavailable_since, seen.untainted) == ((TAINT,), 10.0, False)
    assert FACTS.taints == ()
    overlay.apply(patch(untaint=(TAINT,), session=None), FACTS, now=20.0)
    seen = overlay.view(FACTS)
    assert (seen.taints, seen.unavailable_since) == ((), None)


def test_the_same_taint_made_by_somebody_ends_the_virtual_session() -> None:
    overlay = Overlay()
    overlay.apply(patch(taint=(TAINT,), session=TAINTED), FACTS, now=10.0)
    seen = overlay.view(replace(FACTS, taints=(TAINT,)))
    assert (seen.session, seen.taints) == (None, (TAINT,))


def test_heartbeats_do_not_disturb(cordoned: Overlay) -> None:
    assert cordoned.view(replace(FACTS, resource_version="99")).session is SESSION


def test_a_policy_that_left_dry_run_takes_its_session_along(cordoned: Overlay) -> None:
    assert not cordoned.expire("u1", {"p", "q"})
    assert cordoned.expire("u1", {"q"})
    assert cordoned.view(FACTS) is FACTS
    assert not cordoned.expire("u1", {"q"})


def test_a_node_that_is_gone_is_forgotten(cordoned: Overlay) -> None:
    cordoned.forget("u1")
    assert len(cordoned) == 0
