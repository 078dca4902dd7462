"""Golden bodies of patches, and the node they make."""

from __future__ import annotations

import json
from typing import Any

import pytest

from remediator.act.patch import node_patch, patched
from remediator.decide.decision import PatchNode
from remediator.decide.session import Added, Before, History, Session
from remediator.kube.objects import Node


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
NODE = Node(
    name="n1",
    uid="u1",
    resource_version="7",
    labels={"a": "b"},
    annotations={"gpu-remediator.io/request": "{}", "gpu-remediator.io/mode": "dry-run"},
    dropped_annotations=0,
    created=None,
    deleted=None,
    unschedulable=False,
    taints=(),
    conditions=(),
    addresses=(),
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
                        "gpu-remediator.io/history": '{"last":"recovered"}',
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
    assert json.loads(node_patch(given).body()) == body


def test_the_node_after_a_patch() -> None:
    after = patched(NODE, node_patch(effect(unschedulable=True, remove_request=True)), "8")
    assert after.unschedulable
    assert after.resource_version == "8"
    assert after.annotations == {"gpu-remediator.io/mode": "dry-run"}
    assert after.labels is NODE.labels
    assert "gpu-remediator.io/request" in NODE.annotations


def test_what_a_patch_does_not_name_stays() -> None:
    cordoned = patched(NODE, node_patch(effect(unschedulable=True)), "8")
    assert patched(cordoned, node_patch(effect(session=SESSION)), "9").unschedulable
