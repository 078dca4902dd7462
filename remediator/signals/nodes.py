"""Node objects to facts: a pure fold over the versions of one node.

    Observation(node, facts)  +  next version of the node  +  now  ->  Observation

Ages are ours: ``since`` is when *we* saw a status begin, ``seen`` when we saw its
heartbeat last change, so that two clocks never meet. A changed reason does not
restart ``since`` (a flapping reason must not defeat ``for:``).

What cannot be read is never guessed: a session becomes :class:`Malformed` (the node
is frozen), a mode we do not know is read as ``disabled``, and a history we cannot
read, which may hold what people took over, permits no new session.

Most versions of a node are heartbeats. The codec lets them share all other parts
with the version before, so identity tells what need not be looked at again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Final, NamedTuple

from node_agent.contract import (
    FAULTS_ANNOTATION,
    HEARTBEAT_SECONDS,
    STALE_AFTER_SECONDS,
    ContractError,
    decode_report,
)
from remediator.decide.facts import OWN_CONDITIONS, ConditionFact, Malformed, NodeFacts, NodeMode
from remediator.decide.session import (
    HISTORY_ANNOTATION,
    MODE_KEY,
    REQUEST_ANNOTATION,
    SESSION_ANNOTATION,
    AnnotationError,
    History,
    Session,
    Taint,
    decode_history,
    decode_request,
    decode_session,
)
from remediator.kube.objects import Condition, Node, epoch_seconds
from remediator.policy.cluster import ClusterSpec
from remediator.policy.selector import selector_matches


READY: Final = "Ready"
CONTROL_PLANE_LABELS: Final = (
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
)
FIRST_SIGHT_AGE: Final = STALE_AFTER_SECONDS - 1.5 * HEARTBEAT_SECONDS
"""Age of a heartbeat that was there when we first looked: its writer may be long dead.

It stays fresh for one and a half heartbeats, so that a writer that lives shows it in time,
and one that does not is found out before a recovery (10 minutes by default) rests on it.
"""
_CAREFUL: Final = {
    mode: rank
    for rank, mode in enumerate(
        (NodeMode.FULL, NodeMode.DRY_RUN, NodeMode.NOTIFY_ONLY, NodeMode.DISABLED)
    )
}
_LEVELS = attrgetter(
    *(f.name for f in fields(NodeFacts) if f.name not in {"resource_version", "conditions"})
)
"""All facts but those that change with every heartbeat."""


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
    same_labels = node.labels is old.labels or node.labels == old.labels
    same_annotations = node.annotations is old.annotations or node.annotations == old.annotations
    conditions = _conditions(facts.conditions, node, old, now)
    ready = _ready(conditions)
    unavailable = node.unschedulable or not ready
    facts = replace(
        facts,
        resource_version=node.resource_version,
        conditions=conditions,
        ready=ready,
        unschedulable=node.unschedulable,
        deleting=node.deleted is not None,
        boot_id=node.boot_id,
        taints=facts.taints if node.taints == old.taints else _taints(node),
        unavailable_since=(facts.unavailable_since or now) if unavailable else None,
    )
    if same_labels and same_annotations:
        return Observation(node, facts, previous.problem)
    if not same_labels:
        facts = _with_membership(facts, node, cluster)
    facts, problem = _with_annotations(facts, node, old)
    return Observation(node, facts, problem)


def significant(before: Observation | None, after: Observation, *, now: float) -> bool:
    """Tell whether a decision could come out differently: more than heartbeats and versions.

    A heartbeat counts when it ends a silence: the fact was stale, and is not any more.
    """
    if before is None:
        return True
    old, new = before.facts, after.facts
    return (
        old.conditions is not new.conditions and _changed(old.conditions, new.conditions, now)
    ) or bool(_LEVELS(old) != _LEVELS(new))


def restart_ages(facts: NodeFacts, *, now: float, blind_since: float) -> NodeFacts:
    """Begin all ages anew after a gap of our own watch, in which we saw nothing.

    A fact that was stale when the gap began stays so: that silence was not ours.
    """
    conditions = {
        kind: replace(fact, since=now, seen=now if _fresh(fact, blind_since) else fact.seen)
        for kind, fact in facts.conditions.items()
    }
    since = None if facts.unavailable_since is None else now
    return replace(facts, conditions=conditions, unavailable_since=since)


def _first(node: Node, cluster: ClusterSpec, now: float) -> Observation:
    seen = now - FIRST_SIGHT_AGE
    conditions = {c.type: _condition(None, c, seen=seen, now=now) for c in node.conditions}
    ready = _ready(conditions)
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
        taints=_taints(node),
        unavailable_since=now if node.unschedulable or not ready else None,
    )
    facts, problem = _with_annotations(_with_membership(facts, node, cluster), node, None)
    return Observation(node, facts, problem)


def _taints(node: Node) -> tuple[Taint, ...]:
    return tuple(Taint(key=t.key, effect=t.effect, value=t.value) for t in node.taints)


def _with_membership(facts: NodeFacts, node: Node, cluster: ClusterSpec) -> NodeFacts:
    """Take in the labels: which groups the node belongs to."""
    labels = node.labels
    return replace(
        facts,
        labels=labels,
        gpu=selector_matches(cluster.gpu_nodes, labels),
        control_plane=any(key in labels for key in CONTROL_PLANE_LABELS),
        pool=next((labels[key] for key in cluster.pools.labels if key in labels), ""),
        zone=labels.get(cluster.zones.label, ""),
    )


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
    return ConditionFact(
        type=condition.type,
        status=condition.status,
        reason=condition.reason,
        message=condition.message,
        since=known.since if same and known is not None else now,
        seen=seen,
    )


def _ready(conditions: Mapping[str, ConditionFact]) -> bool:
    """Only a kubelet that says so makes a node ready; no word is no readiness."""
    fact = conditions.get(READY)
    return fact is not None and fact.status == "True"


def _changed(
    old: Mapping[str, ConditionFact], new: Mapping[str, ConditionFact], now: float
) -> bool:
    if len(old) != len(new):
        return True
    for kind, fact in new.items():
        was = old.get(kind)
        if was is fact:
            continue
        if was is None or was.status != fact.status or was.reason != fact.reason:
            return True
        if kind in OWN_CONDITIONS and fact.seen != was.seen and not _fresh(was, now):
            return True
    return False


def _fresh(fact: ConditionFact, at: float) -> bool:
    return at < fact.seen + STALE_AFTER_SECONDS


# -- annotations ---------------------------------------------------------------------------


def _with_annotations(facts: NodeFacts, node: Node, old: Node | None) -> tuple[NodeFacts, str]:
    """Take in our annotations; an unchanged text keeps the object that was read from it."""

    def changed(key: str) -> bool:
        return old is None or node.annotations.get(key) != old.annotations.get(key)

    facts = _with_mode(facts, node)
    if changed(FAULTS_ANNOTATION):
        facts = _with_faults(facts, node.annotations.get(FAULTS_ANNOTATION))
    if changed(SESSION_ANNOTATION):
        text = node.annotations.get(SESSION_ANNOTATION)
        facts = replace(facts, session=None if text is None else _session(text, node.uid))
    facts, history_problem = _with_history(facts, node.annotations.get(HISTORY_ANNOTATION))
    facts, request_problem = _with_request(facts, node.annotations.get(REQUEST_ANNOTATION))
    return facts, "; ".join(filter(None, (history_problem, request_problem)))


def _with_faults(facts: NodeFacts, text: str | None) -> NodeFacts:
    if text is None:
        return replace(facts, faults=(), faults_boot_id="", faults_note="", faults_truncated=False)
    try:
        report = decode_report(text)
    except ContractError as error:
        return replace(
            facts, faults=(), faults_boot_id="", faults_note=str(error), faults_truncated=False
        )
    return replace(
        facts,
        faults=report.faults,
        faults_boot_id=report.boot_id,
        faults_note="",
        faults_truncated=report.truncated is not None and report.truncated.warning > 0,
    )


def _session(text: str, uid: str) -> Session | Malformed:
    try:
        return decode_session(text, node_uid=uid)
    except AnnotationError as error:
        return Malformed(str(error))


def _with_history(facts: NodeFacts, text: str | None) -> tuple[NodeFacts, str]:
    """An unreadable history may hold waivers: no new session, while recovery goes on."""
    if text is None:
        return replace(facts, history=History()), ""
    try:
        return replace(facts, history=decode_history(text)), ""
    except AnnotationError as error:
        mode = max(facts.mode, NodeMode.NOTIFY_ONLY, key=_CAREFUL.__getitem__)
        note = facts.mode_note or f"read as {mode.value}: {error}"
        return replace(facts, history=History(), mode=mode, mode_note=note), str(error)


def _with_request(facts: NodeFacts, text: str | None) -> tuple[NodeFacts, str]:
    if text is None:
        return replace(facts, request=None), ""
    try:
        return replace(facts, request=decode_request(text)), ""
    except AnnotationError as error:
        return replace(facts, request=None), str(error)


def _with_mode(facts: NodeFacts, node: Node) -> NodeFacts:
    """The stricter of annotation and label; a value that we do not know is an opt-out."""
    mode, note = NodeMode.FULL, ""
    for kind, values in (("annotation", node.annotations), ("label", node.labels)):
        text = values.get(MODE_KEY)
        if text is None:
            continue
        try:
            found, why = NodeMode(text), ""
        except ValueError:
            found = NodeMode.DISABLED
            known = ", ".join(one.value for one in NodeMode if one.value)
            why = f"{kind} {MODE_KEY} is {text!r}, read as disabled: use one of {known}"
        if _CAREFUL[found] > _CAREFUL[mode]:
            mode, note = found, why
    return replace(facts, mode=mode, mode_note=note)
