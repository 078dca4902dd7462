"""Node objects to facts: a pure fold over the versions of one node.

    Observation(node, facts)  +  next version of the node  +  now  ->  Observation

Ages are ours: ``since`` is when *we* saw a status begin, ``seen`` when we saw its
heartbeat last change, so that two clocks never meet. A changed reason does not
restart ``since`` (a flapping reason must not defeat ``for:``).

What annotations say is `remediator.signals.annotations`.

Most versions of a node are heartbeats. The codec lets them share all other parts
with the version before, so identity tells what need not be looked at again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

from node_agent.contract import HEARTBEAT_SECONDS, STALE_AFTER_SECONDS, ConditionStatus
from remediator.decide.facts import (
    OWN_CONDITIONS,
    ConditionFact,
    NodeFacts,
    out_of_service,
    uncordoned_since,
    untainted_since,
)
from remediator.decide.session import Taint
from remediator.kube.objects import Condition, Node, epoch_seconds
from remediator.policy.cluster import ClusterSpec
from remediator.policy.selector import selector_matches
from remediator.signals.annotations import read_annotations


READY: Final = "Ready"
MAX_REASONS: Final = 16
MAX_EARLIER: Final = 16
"""Of one condition, remembered with when they were first seen."""
CONTROL_PLANE_LABELS: Final = (
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
)
FIRST_SIGHT_AGE: Final = STALE_AFTER_SECONDS - 1.5 * HEARTBEAT_SECONDS
"""Age of a heartbeat that was there when we first looked: its writer may be long dead.

It stays fresh for one and a half heartbeats, so that a writer that lives shows it in time,
and one that does not is found out before a recovery (10 minutes by default) rests on it.
"""
_LEVELS = attrgetter(
    *(
        f.name
        for f in fields(NodeFacts)
        if f.name not in {"resource_version", "conditions", "annotations"}
    )
)
"""All facts but those that change with every heartbeat, and what others write for each other."""


class Observation(NamedTuple):
    """One version of a node and what is known of it. ``problem``: an annotation left aside."""

    node: Node
    facts: NodeFacts
    problem: str = ""


def observe(
    previous: Observation | None, node: Node, *, cluster: ClusterSpec, now: float
) -> Observation:
    """Take in one version of a node.

    Args:
        previous: the observation before; None, or one of another UID, for a new node.
        node: the version, as the store has it.
        cluster: which nodes are GPU nodes, and how they form pools and zones.
        now: the controller's clock, seconds since the epoch.
    """
    if previous is None or previous.node.uid != node.uid:
        return _first(node, cluster, now)
    old, facts = previous.node, previous.facts
    conditions = _conditions(facts.conditions, node, old, now)
    ready = facts.ready if conditions is facts.conditions else _ready(conditions)
    changes: dict[str, Any] = {
        "resource_version": node.resource_version,
        "conditions": conditions,
        "ready": ready,
        "unschedulable": node.unschedulable,
        "deleting": node.deleted is not None,
        "boot_id": node.boot_id,
    }
    if node.taints != old.taints:
        changes["taints"] = _taints(node)
    if node.labels is not old.labels and node.labels != old.labels:
        changes |= _membership(node, cluster)
    problem = previous.problem
    if node.annotations is not old.annotations or "labels" in changes:
        read, problem = read_annotations(node, old, problem, now)
        changes |= read
    session, taints = changes.get("session", facts.session), changes.get("taints", facts.taints)
    changes["uncordoned"] = uncordoned_since(facts, session, unschedulable=node.own_cordon)
    changes["untainted"] = untainted_since(facts, session, taints)
    available = ready and not out_of_service(taints, unschedulable=node.unschedulable)
    changes["unavailable_since"] = None if available else facts.unavailable_since or now
    return Observation(node, replace(facts, **changes), problem)


def significant(
    before: Observation | None, after: Observation, *, now: float, followed: bool = False
) -> bool:
    """Tell whether a decision could come out differently: more than heartbeats and versions.

    A heartbeat counts when it ends a silence (the fact was stale, and is not any more), and
    when it says that a node in session is well: recovery rests on what was said after the
    last step. ``followed``: it is in a session of dry-run, which stands on no node.
    """
    if before is None:
        return True
    old, new = before.facts, after.facts
    if old.conditions is not new.conditions:
        in_session = followed or new.session is not None
        if _changed(old.conditions, new.conditions, now, in_session=in_session):
            return True
    return before.problem != after.problem or bool(_LEVELS(old) != _LEVELS(new))


def restart_ages(facts: NodeFacts, *, now: float, blind_since: float) -> NodeFacts:
    """Begin all ages anew after a gap of our own watch, in which we saw nothing.

    A fact that was stale when the gap began stays so: that silence was not ours.
    """
    conditions = {
        kind: replace(
            fact,
            since=now,
            seen=now if _fresh(fact, blind_since) else fact.seen,
            reasons={},
            earlier=(),
        )
        for kind, fact in facts.conditions.items()
    }
    since = None if facts.unavailable_since is None else now
    return replace(facts, conditions=conditions, unavailable_since=since)


def _first(node: Node, cluster: ClusterSpec, now: float) -> Observation:
    seen = now - FIRST_SIGHT_AGE
    conditions = {c.type: _condition(None, c, seen=seen, now=now) for c in node.conditions}
    ready = _ready(conditions)
    read, problem = read_annotations(node, None, "", now)
    taints = _taints(node)
    available = ready and not out_of_service(taints, unschedulable=node.unschedulable)
    facts = NodeFacts(
        name=node.name,
        uid=node.uid,
        resource_version=node.resource_version,
        created=epoch_seconds(node.created) or 0.0,
        conditions=conditions,
        ready=ready,
        unschedulable=node.unschedulable,
        deleting=node.deleted is not None,
        boot_id=node.boot_id,
        taints=taints,
        unavailable_since=None if available else now,
        uncordoned=uncordoned_since(None, read["session"], unschedulable=node.own_cordon),
        untainted=untainted_since(None, read["session"], taints),
        **_membership(node, cluster),
        **read,
    )
    return Observation(node, facts, problem)


def _taints(node: Node) -> tuple[Taint, ...]:
    return tuple(Taint(key=t.key, effect=t.effect, value=t.value) for t in node.taints)


def _membership(node: Node, cluster: ClusterSpec) -> dict[str, Any]:
    """Return what the labels say: which groups the node belongs to."""
    labels = node.labels
    return {
        "labels": labels,
        "gpu": selector_matches(cluster.gpu_nodes, labels),
        "control_plane": any(key in labels for key in CONTROL_PLANE_LABELS),
        "pool": next((labels[key] for key in cluster.pools.labels if key in labels), ""),
        "zone": labels.get(cluster.zones.label, ""),
    }


# -- conditions ----------------------------------------------------------------------------


def _conditions(
    facts: Mapping[str, ConditionFact], node: Node, old: Node, now: float
) -> Mapping[str, ConditionFact]:
    if node.conditions is old.conditions or node.conditions == old.conditions:
        return facts
    before = {c.type: c for c in old.conditions}
    folded: dict[str, ConditionFact] = {}
    for condition in node.conditions:
        known, was = facts.get(condition.type), before.get(condition.type)
        if known is None or was is None:
            folded[condition.type] = _condition(None, condition, seen=now, now=now)
        elif condition == was:
            folded[condition.type] = known
        else:
            beat = condition.last_heartbeat_time != was.last_heartbeat_time
            beat = beat or condition.status != was.status
            seen = now if beat else known.seen
            folded[condition.type] = _condition(known, condition, seen=seen, now=now)
    return folded


def _condition(
    known: ConditionFact | None, condition: Condition, *, seen: float, now: float
) -> ConditionFact:
    same = known is not None and known.status == condition.status
    reasons = _reasons(known, condition.reason, now) if same and known is not None else {}
    return ConditionFact(
        type=condition.type,
        status=condition.status,
        reason=condition.reason,
        message=condition.message,
        since=known.since if same and known is not None else now,
        seen=seen,
        reasons=reasons,
        earlier=_earlier(known, same=same),
    )


def _earlier(known: ConditionFact | None, *, same: bool) -> tuple[ConditionFact, ...]:
    """Return what a condition was before: one that comes and goes is remembered for a while."""
    if known is None or same:
        return () if known is None else known.earlier
    return (*known.earlier, replace(known, message="", earlier=()))[-MAX_EARLIER:]


def _reasons(known: ConditionFact, reason: str, now: float) -> Mapping[str, float]:
    """Return when each reason was first seen under a status; {} while there was only one."""
    if reason == known.reason or reason in known.reasons:
        return known.reasons
    before = known.reasons or {known.reason: known.since}
    return {**before, reason: now} if len(before) < MAX_REASONS else before


def _ready(conditions: Mapping[str, ConditionFact]) -> bool:
    """Only a kubelet that says so makes a node ready; no word is no readiness."""
    fact = conditions.get(READY)
    return fact is not None and fact.status == "True"


def _changed(
    old: Mapping[str, ConditionFact],
    new: Mapping[str, ConditionFact],
    now: float,
    *,
    in_session: bool,
) -> bool:
    if len(old) != len(new):
        return True
    for kind, fact in new.items():
        was = old.get(kind)
        if was is fact:
            continue
        if was is None or was.status != fact.status or was.reason != fact.reason:
            return True
        if kind in OWN_CONDITIONS and fact.seen != was.seen:
            recovering = in_session and fact.status == ConditionStatus.FALSE
            if recovering or not _fresh(was, now):
                return True
    return False


def _fresh(fact: ConditionFact, at: float) -> bool:
    return at < fact.seen + STALE_AFTER_SECONDS
