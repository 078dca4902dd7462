"""The world of dry-run: what the nodes would be, had dry-run acted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from remediator.act.overlay import Overlay
from remediator.decide.decision import PatchNode
from remediator.decide.facts import NodeFacts
from remediator.decide.ledger import is_unavailable
from remediator.decide.requests import Request, Verb
from remediator.decide.session import Added, Before, History, PolicyHold, Session, Taint


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


# -- what a session leaves behind -----------------------------------------------------------


LABELLED: dict[str, Any] = {"labels": {"tier": "broken"}, "annotations": {"why": "Xid 79"}}


@pytest.fixture
def left() -> Overlay:
    """A node whose session has ended, and nothing of it was undone."""
    overlay = Overlay()
    begun = patch(unschedulable=True, taint=(TAINT,), session=SESSION, **LABELLED)
    overlay.apply(begun, FACTS, now=10.0)
    assert overlay.apply(patch(session=None, history=History(last="released")), FACTS, now=20.0)
    return overlay


def test_what_a_session_leaves_stays_and_takes_its_place(left: Overlay) -> None:
    seen = left.view(FACTS)
    assert (seen.session, seen.unschedulable, seen.taints) == (None, True, (TAINT,))
    assert (seen.labels, seen.annotations) == ({"tier": "broken"}, {"why": "Xid 79"})
    assert seen.unavailable_since == 10.0
    assert is_unavailable(seen)
    assert not left.in_session(FACTS)


def test_the_next_session_finds_it_as_another_had_made_it(left: Overlay) -> None:
    again = msgspec.structs.replace(SESSION, id="s2", before=Before(cordoned=True), added=Added())
    left.apply(patch(session=again), FACTS, now=30.0)
    assert left.view(FACTS).unavailable_since == 10.0
    left.apply(patch(session=None), FACTS, now=40.0)
    assert left.view(FACTS).unschedulable


@pytest.mark.parametrize(
    "change",
    [
        {"unschedulable": True},
        {"taints": (TAINT,)},
        {"request": Request(verb=Verb.CANCEL, by="ann", at="noon")},
    ],
)
def test_people_take_it_over_and_then_it_is_as_they_say(left: Overlay, change: Any) -> None:
    left.view(replace(FACTS, **change))
    seen = left.view(FACTS)
    assert (seen.unschedulable, seen.taints, seen.labels) == (False, (), {})
    assert seen.history.last == "released"


def test_another_request_takes_nothing_away(left: Overlay) -> None:
    left.view(replace(FACTS, request=Request(verb=Verb.RETRY, by="ann", at="noon")))
    assert left.view(FACTS).unschedulable


def test_a_policy_that_left_dry_run_takes_along_what_it_left(left: Overlay) -> None:
    assert not left.expire("u1", {"p", "q"})
    assert left.expire("u1", {"q"})
    assert left.view(FACTS) is FACTS


def test_a_mark_that_a_policy_gives_up_stays_while_another_holds_the_node() -> None:
    overlay, other = Overlay(), msgspec.structs.replace(HOLD, policy="q")
    both = msgspec.structs.replace(SESSION, holds=(HOLD, other))
    overlay.apply(patch(session=both, **LABELLED), FACTS, now=10.0)
    one = msgspec.structs.replace(SESSION, holds=(other,), let_go={"p": 1})
    overlay.apply(patch(session=one), FACTS, now=20.0)
    assert overlay.view(FACTS).labels == {"tier": "broken"}
    overlay.apply(patch(session=None), FACTS, now=30.0)
    assert overlay.expire("u1", {"q"}), "it is p that left the label"


def test_a_label_that_is_put_back_is_the_real_one_again() -> None:
    overlay, facts = Overlay(), replace(FACTS, labels={"tier": "a", "zone": "z"})
    overlay.apply(patch(session=SESSION, labels={"tier": "broken", "new": "1"}), facts, now=10.0)
    assert overlay.view(facts).labels == {"tier": "broken", "zone": "z", "new": "1"}
    overlay.apply(patch(session=SESSION, labels={"zone": None}), facts, now=15.0)
    assert overlay.view(facts).labels == {"tier": "broken", "new": "1"}
    gone = patch(session=None, labels={"tier": "a", "new": None, "zone": "z"})
    overlay.apply(gone, facts, now=20.0)
    assert overlay.view(facts).labels == facts.labels
    assert not overlay.expire("u1", set()), "nothing is left of it"
