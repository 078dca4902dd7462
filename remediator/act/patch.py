"""A decided change of a node as the patch that is sent, and as the node it makes.

Both are pure. The second is how a write is seen before the watch tells of it: the
next decision about that node then rests on what we just did, and cannot do it twice
(the resourceVersion is the second belt).
"""

from __future__ import annotations

import msgspec

from remediator.decide.decision import PatchNode, Unset
from remediator.decide.session import (
    HISTORY_ANNOTATION,
    REQUEST_ANNOTATION,
    SESSION_ANNOTATION,
    encode,
)
from remediator.kube.objects import Node
from remediator.kube.patch import NodePatch


def node_patch(effect: PatchNode) -> NodePatch:
    """Return the minimal merge patch: what the effect does not name stays as it is."""
    return NodePatch(
        name=effect.name,
        uid=effect.uid,
        resource_version=effect.resource_version,
        unschedulable=effect.unschedulable,
        annotations=_annotations(effect),
    )


def patched(node: Node, patch: NodePatch, resource_version: str) -> Node:
    """Return the node as it is after ``patch`` succeeded and gave it this version.

    What the server adds by itself (the taint of a cordoned node) comes by the watch.
    """
    annotations = dict(node.annotations)
    for key, value in patch.annotations.items():
        if value is None:
            annotations.pop(key, None)
        else:
            annotations[key] = value
    unschedulable = node.unschedulable if patch.unschedulable is None else patch.unschedulable
    return msgspec.structs.replace(
        node,
        resource_version=resource_version,
        unschedulable=unschedulable,
        annotations=annotations,
    )


def _annotations(effect: PatchNode) -> dict[str, str | None]:
    """Return key to new text, or to None for a key to remove."""
    texts: dict[str, str | None] = {}
    for key, value in (
        (SESSION_ANNOTATION, effect.session),
        (HISTORY_ANNOTATION, effect.history),
    ):
        if not isinstance(value, Unset):
            texts[key] = None if value is None else encode(value)
    if effect.remove_request:
        texts[REQUEST_ANNOTATION] = None
    return texts
