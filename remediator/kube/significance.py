"""Which changes of a node can change a decision.

Each node is written every few seconds to minutes by the kubelet and by agents,
nearly always with a new `lastHeartbeatTime` and nothing else. At 5,000 nodes that
would be the bulk of all work, so such changes never reach the work queue; who
measures the age of a fact gets them straight from the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from remediator.kube.objects import Condition, Node


def node_changed(old: Node, new: Node) -> bool:
    """Whether anything but heartbeat times and the resourceVersion differs.

    The first comparison of each pair is by identity, because the codec lets a
    node share its unchanged parts with its previous version.
    """
    return (
        old.uid != new.uid
        or old.unschedulable != new.unschedulable
        or old.cordoned_by_others != new.cordoned_by_others
        or old.deleted != new.deleted
        or old.boot_id != new.boot_id
        or (old.annotations is not new.annotations and old.annotations != new.annotations)
        or (old.labels is not new.labels and old.labels != new.labels)
        or (old.taints is not new.taints and old.taints != new.taints)
        or (old.addresses is not new.addresses and old.addresses != new.addresses)
        or (old.conditions is not new.conditions and _conditions_changed(old, new))
    )


def _conditions_changed(old: Node, new: Node) -> bool:
    before, after = old.conditions, new.conditions
    if len(before) != len(after):
        return True
    if all(map(_same_but_heartbeat, before, after)):
        return False
    # The list is a map keyed by type: another order alone says nothing.
    by_type = {condition.type: condition for condition in before}
    return any(
        (known := by_type.get(condition.type)) is None or not _same_but_heartbeat(known, condition)
        for condition in after
    )


def _same_but_heartbeat(a: Condition, b: Condition) -> bool:
    return (
        a.type == b.type
        and a.status == b.status
        and a.reason == b.reason
        and a.message == b.message
        and a.last_transition_time == b.last_transition_time
    )
