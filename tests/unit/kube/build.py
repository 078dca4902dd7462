"""A node as the controller sees it, with nothing about it that a test does not say."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from remediator.kube.objects import Node


_BARE = Node(
    name="n1",
    uid="u1",
    resource_version="1",
    labels={},
    annotations={},
    dropped_annotations=0,
    created=None,
    deleted=None,
    unschedulable=False,
    taints=(),
    conditions=(),
    addresses=(),
    boot_id="",
)


def bare_node(**changes: Any) -> Node:
    """A schedulable node `n1` of uid `u1`, version 1, but for these fields."""
    return replace(_BARE, **{"labels": {}, "annotations": {}, **changes})
