"""The one write of a decision, field by field; and what is known of a node that people touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from remediator.decide.decision import UNSET, Outcome
from remediator.decide.facts import out_of_service, uncordoned_since, untainted_since
from remediator.decide.guards import GUARD_NAMES
from remediator.decide.session import Added, Session, Taint
from tests.unit.decide.build import START, Bench, node, patch_of, policy, xid


OURS = Taint("gpu-remediator.io/unhealthy", "NoSchedule")
SOFT = Taint("gpu-remediator.io/unhealthy", "PreferNoSchedule")
THEIRS = Taint("nvidia.com/gpu", "NoSchedule", "present")


def bench(*steps: dict[str, Any]) -> Bench:
    made = Bench(policy(steps=list(steps)))
    made.see(node(faults=(xid(),)))
    return made


def test_what_begins_a_session_is_one_patch_on_the_version_that_was_seen() -> None:
    made = bench({"cordon": {}}, {"taint": {}})
    made.change(resource_version="77")
    decision = made.one()
    patch = patch_of(decision)
    assert patch is not None
    assert (patch.name, patch.uid, patch.resource_version) == ("n1", "uid-n1", "77")
    assert (patch.unschedulable, patch.taint, patch.untaint) == (True, (OURS,), ())
    assert (patch.policy, patch.action, patch.at) == ("bus", "cordon", START)
    assert patch.disruptive
    assert patch.allowed_by == GUARD_NAMES
    assert patch.history is UNSET
    assert not patch.remove_request
    assert patch.changes == (("bus", 0), ("bus", 1))
    assert decision.reasons == ("Xid 79 on 0000:9b:00.0",)
    assert (decision.ended, decision.left) == (None, ())


@pytest.mark.parametrize(
    ("step", "field", "value"),
    [
        ({"label": {"set": {"example.com/a": "x"}}}, "labels", {"example.com/a": "x"}),
        ({"annotate": {"set": {"example.com/a": "x"}}}, "annotations", {"example.com/a": "x"}),
        ({"taint": {"effect": "PreferNoSchedule"}}, "taint", (SOFT,)),
    ],
)
def test_each_kind_of_change_is_enough_for_a_patch(
    step: dict[str, Any], field: str, value: object
) -> None:
    made = bench(step)
    patch = patch_of(made.one())
    assert patch is not None
    assert getattr(patch, field) == value
    assert not patch.disruptive
    assert patch.allowed_by == ()


def test_the_end_of_a_session_is_in_its_decision_with_what_it_did() -> None:
    made = bench({"cordon": {}}, {"label": {"set": {"example.com/a": "x"}}})
    made.one()
    before = made.session()
    made.now += 1.0
    made.fault()
    made.one()
    made.now += 3600.0
    made.fault()
    decision = made.one()
    patch = patch_of(decision)
    assert patch is not None
    assert (patch.session, patch.unschedulable) == (None, False)
    assert patch.labels == {"example.com/a": None}
    assert not patch.disruptive
    assert decision.ended is not None
    assert decision.ended.id == before.id
    assert [one.action for one in decision.ended.holds[0].results] == ["cordon", "label"]


def test_a_policy_that_lets_go_while_another_holds_is_in_the_decision() -> None:
    made = Bench(
        policy("a", steps=[{"cordon": {}}]),
        policy("b", when=[{"xid": {"codes": [48]}}], steps=[{"cordon": {}}]),
    )
    made.see(node(faults=(xid(), xid(48))))
    made.one()
    made.now += 1.0
    made.fault(xid(48), status="True")
    made.one()
    made.now += 3600.0
    made.fault(xid(48), status="True")
    decision = made.one()
    assert [one.policy for one in decision.left] == ["a"]
    assert made.cordoned()
    assert decision.ended is None


def test_nothing_is_written_where_nothing_changes() -> None:
    made = bench({"cordon": {}}, {"notify": {"to": ["log"]}})
    made.one()
    for key in list(made.sent):
        made.outcomes[key] = Outcome(key=key, delivered=True)
    made.one(seconds=1.0)
    assert patch_of(made.one(seconds=1.0)) is None


# -- what people took away ------------------------------------------------------------------------


def session(**added: Any) -> Session:
    made = bench({"cordon": {}}, {"taint": {}})
    made.one()
    return made.session() if not added else change(made.session(), **added)


def change(known: Session, **added: Any) -> Session:
    return changed(known, added=Added(**added))


def test_a_cordon_that_is_gone_stays_so_for_its_session_even_if_it_comes_back() -> None:
    ours = session()
    cordoned = node(session=ours, unschedulable=True)
    assert not uncordoned_since(None, ours, unschedulable=True)
    assert uncordoned_since(cordoned, ours, unschedulable=False)
    robbed = replace(cordoned, uncordoned=True)
    assert uncordoned_since(robbed, ours, unschedulable=True)
    assert not uncordoned_since(cordoned, ours, unschedulable=True)
    assert not uncordoned_since(robbed, None, unschedulable=False)
    assert not uncordoned_since(robbed, change(ours, cordoned=False), unschedulable=False)
    other = replace(robbed, session=None)
    assert not uncordoned_since(other, ours, unschedulable=True), "that was another session's"


def test_a_taint_that_is_gone_stays_so_for_its_session_even_if_it_comes_back() -> None:
    ours = session()
    tainted = node(session=ours, taints=(OURS, THEIRS))
    assert not untainted_since(None, ours, (OURS, THEIRS))
    assert untainted_since(tainted, ours, (THEIRS,))
    robbed = replace(tainted, untainted=True)
    assert untainted_since(robbed, ours, (OURS,))
    assert not untainted_since(tainted, ours, (OURS,))
    assert not untainted_since(robbed, None, ())
    assert not untainted_since(robbed, change(ours, cordoned=True), ())
    assert not untainted_since(replace(robbed, session=None), ours, (OURS,))


@pytest.mark.parametrize(
    ("taints", "cordoned", "out"),
    [
        ((), False, False),
        ((), True, True),
        ((THEIRS,), False, False),
        ((OURS,), False, True),
        ((Taint(OURS.key, "PreferNoSchedule"),), False, False),
        ((THEIRS, Taint(OURS.key, "NoExecute")), False, True),
    ],
)
def test_out_of_service_by_a_cordon_or_by_a_taint_of_ours(
    taints: tuple[Taint, ...], *, cordoned: bool, out: bool
) -> None:
    assert out_of_service(taints, unschedulable=cordoned) is out
    assert node(taints=taints, unschedulable=cordoned).out_of_service is out
