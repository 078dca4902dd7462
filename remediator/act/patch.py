"""A decided change of a node as the patch that is sent, and as the node it makes.

Both are pure. The second is how a write is seen before the watch tells of it: the
next decision about that node then rests on what we just did, and cannot do it twice
(the resourceVersion is the second belt).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import structs

from remediator.decide.decision import PatchNode, Unset
from remediator.decide.requests import APPROVAL_ANNOTATION, REQUEST_ANNOTATION, encode_approvals
from remediator.decide.session import HISTORY_ANNOTATION, SESSION_ANNOTATION, History, encode
from remediator.kube.objects import Node, Taint
from remediator.kube.patch import NodePatch


def node_patch(effect: PatchNode, base: Node) -> NodePatch:
    """Return the minimal merge patch: what the effect does not name stays as it is.

    ``base``: the version that the patch rests on. Its list of taints is written back with
    what is added and removed; the resourceVersion makes sure that it is still that list.
    """
    return NodePatch(
        name=effect.name,
        uid=effect.uid,
        resource_version=effect.resource_version,
        unschedulable=effect.unschedulable,
        taints=_taints(effect, base),
        annotations=_annotations(effect),
        labels=effect.labels,
    )


def patched(node: Node, patch: NodePatch, resource_version: str) -> Node:
    """Return the node as it is after ``patch`` succeeded and gave it this version.

    What the server adds by itself (the taint of a cordoned node) comes by the watch.
    """
    annotations = _merged(node.annotations, patch.annotations)
    unschedulable = node.unschedulable if patch.unschedulable is None else patch.unschedulable
    return msgspec.structs.replace(
        node,
        resource_version=resource_version,
        unschedulable=unschedulable,
        cordoned_by_others=node.cordoned_by_others and patch.unschedulable is None,
        taints=node.taints if patch.taints is None else patch.taints,
        annotations=annotations,
        labels=_merged(node.labels, patch.labels) if patch.labels else node.labels,
    )


def _merged(values: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return labels or annotations with these changes; None removes a key."""
    merged = {**values, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def _taints(effect: PatchNode, base: Node) -> tuple[Taint, ...] | None:
    """Return the whole new list, or None where it stays. An entry keeps all its fields."""
    if not effect.taint and not effect.untaint:
        return None
    going = {(one.key, one.effect, one.value) for one in effect.untaint}
    kept = [one for one in base.taints if (one.key, one.effect, one.value) not in going]
    slots = {(one.key, one.effect) for one in kept}
    new = (
        Taint(key=one.key, effect=one.effect, value=one.value)
        for one in effect.taint
        if one.slot not in slots
    )
    return (*kept, *new)


def _annotations(effect: PatchNode) -> dict[str, str | None]:
    """Return key to new text, or to None for a key to remove."""
    texts: dict[str, str | None] = dict(effect.annotations)
    for key, value in (
        (SESSION_ANNOTATION, effect.session),
        (HISTORY_ANNOTATION, effect.history),
    ):
        if not isinstance(value, Unset):
            texts[key] = None if value is None else encode(value)
    if isinstance(effect.history, History):
        texts[HISTORY_ANNOTATION] = encode(structs.replace(effect.history, uid=effect.uid))
    if not isinstance(effect.approvals, Unset):
        left = effect.approvals
        texts[APPROVAL_ANNOTATION] = encode_approvals(left) if left else None
    if effect.remove_request:
        texts[REQUEST_ANNOTATION] = None
    return texts
