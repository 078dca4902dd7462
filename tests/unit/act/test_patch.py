"""Golden bodies of patches, and the node they make."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from remediator.act.patch import node_patch, patched
from remediator.decide.decision import PatchNode
from remediator.decide.session import Added, Before, History, Session
from remediator.decide.session import Taint as OurTaint
from remediator.kube.objects import Taint
from tests.unit.kube.build import bare_node


SESSION = Session(
    version=1,
    id="s1",
    node_uid="u1",
    boot_id="b1",
    started=1.0,
    before=Before(),
    added=Added(cordoned=True),
    holds=(),
)
NODE = bare_node(
    resource_version="7",
    labels={"a": "b"},
    annotations={"gpu-remediator.io/request": "{}", "gpu-remediator.io/mode": "dry-run"},
    boot_id="b1",
)
PRECONDITIONS = {"resourceVersion": "7", "uid": "u1"}


def effect(**changes: Any) -> PatchNode:
    return PatchNode(name="n1", uid="u1", resource_version="7", **changes)


@pytest.mark.parametrize(
    ("given", "body"),
    [
        (
            effect(unschedulable=True, session=SESSION),
            {
                "metadata": {
                    **PRECONDITIONS,
                    "annotations": {
                        "gpu-remediator.io/session": '{"version":1,"id":"s1","nodeUid":"u1",'
                        '"bootId":"b1","started":1.0,"before":{},"added":{"cordoned":true},'
                        '"holds":[]}'
                    },
                },
                "spec": {"unschedulable": True},
            },
        ),
        (
            effect(unschedulable=False, session=None, history=History(last="recovered")),
            {
                "metadata": {
                    **PRECONDITIONS,
                    "annotations": {
                        "gpu-remediator.io/session": None,
                        "gpu-remediator.io/history": '{"last":"recovered","uid":"u1"}',
                    },
                },
                "spec": {"unschedulable": None},
            },
        ),
        (
            effect(remove_request=True),
            {"metadata": {**PRECONDITIONS, "annotations": {"gpu-remediator.io/request": None}}},
        ),
    ],
    ids=["cordon", "uncordon", "answer"],
)
def test_the_body_says_only_what_changes(given: PatchNode, body: Any) -> None:
    assert json.loads(node_patch(given, NODE).body()) == body


def test_the_node_after_a_patch() -> None:
    after = patched(NODE, node_patch(effect(unschedulable=True, remove_request=True), NODE), "8")
    assert after.unschedulable
    assert after.resource_version == "8"
    assert after.annotations == {"gpu-remediator.io/mode": "dry-run"}
    assert after.labels is NODE.labels
    assert "gpu-remediator.io/request" in NODE.annotations


def test_what_a_patch_does_not_name_stays() -> None:
    cordoned = patched(NODE, node_patch(effect(unschedulable=True), NODE), "8")
    assert patched(cordoned, node_patch(effect(session=SESSION), NODE), "9").unschedulable


def test_taints_are_changed_in_the_list_of_that_version() -> None:
    foreign = Taint(key="a", value="1", effect="NoExecute", time_added="2026-01-01T00:00:00Z")
    base = msgspec.structs.replace(NODE, taints=(foreign, Taint(key="k", effect="NoSchedule")))
    ours, old = (
        OurTaint(key="n", effect="NoExecute", value="v"),
        OurTaint(key="k", effect="NoSchedule"),
    )
    patch = node_patch(effect(taint=(ours,), untaint=(old,)), base)
    assert json.loads(patch.body())["spec"]["taints"] == [
        {
            "key": "a",
            "value": "1",
            "effect": "NoExecute",
            "timeAdded": "2026-01-01T00:00:00Z",
        },
        {"key": "n", "value": "v", "effect": "NoExecute"},
    ]
    assert [one.key for one in patched(base, patch, "8").taints] == ["a", "n"]
    assert node_patch(effect(unschedulable=True), base).taints is None
    changed = OurTaint(key="k", effect="NoSchedule", value="changed")
    kept = node_patch(effect(untaint=(changed,)), base).taints
    assert kept == base.taints
    same = OurTaint(key="k", effect="NoSchedule", value="other")
    assert node_patch(effect(taint=(same,)), base).taints == base.taints
