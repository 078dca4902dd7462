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
from typing import Any, Final, NamedTuple

from node_agent.contract import (
    FAULTS_ANNOTATION,
    HEARTBEAT_SECONDS,
    STALE_AFTER_SECONDS,
    VERSION,
    ConditionStatus,
    ContractError,
    FaultReport,
    decode_report,
)
from remediator.decide.facts import (
    OWN_CONDITIONS,
    ConditionFact,
    Malformed,
    NodeFacts,
    NodeMode,
    out_of_service,
    uncordoned_since,
    untainted_since,
)
from remediator.decide.requests import (
    APPROVAL_ANNOTATION,
    REQUEST_ANNOTATION,
    Approval,
    decode_approvals,
    decode_request,
)
from remediator.decide.session import (
    HISTORY_ANNOTATION,
    MODE_KEY,
    SESSION_ANNOTATION,
    AnnotationError,
    History,
    Session,
    Taint,
    decode_history,
    decode_session,
)
from remediator.kube.objects import Condition, Node, epoch_seconds
from remediator.policy.cluster import ClusterSpec
from remediator.policy.selector import selector_matches


READY: Final = "Ready"
MAX_REASONS: Final = 16
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
_CAREFUL: Final = {
    mode: rank
    for rank, mode in enumerate(
        (NodeMode.FULL, NodeMode.DRY_RUN, NodeMode.NOTIFY_ONLY, NodeMode.DISABLED)
    )
}
_SMALL: Final = (MODE_KEY, HISTORY_ANNOTATION, REQUEST_ANNOTATION, APPROVAL_ANNOTATION)
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
        read, problem = _annotations(node, old, problem, now)
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
            fact, since=now, seen=now if _fresh(fact, blind_since) else fact.seen, reasons={}
        )
        for kind, fact in facts.conditions.items()
    }
    since = None if facts.unavailable_since is None else now
    return replace(facts, conditions=conditions, unavailable_since=since)


def _first(node: Node, cluster: ClusterSpec, now: float) -> Observation:
    seen = now - FIRST_SIGHT_AGE
    conditions = {c.type: _condition(None, c, seen=seen, now=now) for c in node.conditions}
    ready = _ready(conditions)
    read, problem = _annotations(node, None, "", now)
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
    )


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


# -- annotations ---------------------------------------------------------------------------


def _annotations(
    node: Node, old: Node | None, problem: str, now: float
) -> tuple[dict[str, Any], str]:
    """Return the facts that our annotations changed, and which of them could not be read.

    An unchanged text is not read again: it keeps the object that was read from it. What
    is from a later time than now was written by another clock, and counts as of now.
    """
    texts, before = node.annotations, {} if old is None else old.annotations

    def changed(key: str) -> bool:
        return old is None or texts.get(key) != before.get(key)

    facts: dict[str, Any] = {"annotations": texts}
    if changed(FAULTS_ANNOTATION):
        facts |= _faults(texts.get(FAULTS_ANNOTATION))
    if changed(SESSION_ANNOTATION):
        text = texts.get(SESSION_ANNOTATION)
        facts["session"] = None if text is None else _session(text, node.uid, now)
    mode_label = None if old is None else old.labels.get(MODE_KEY)
    if any(map(changed, _SMALL)) or node.labels.get(MODE_KEY) != mode_label:
        small, problem = _small(node, now)
        facts |= small
    return facts, problem


def _faults(text: str | None) -> dict[str, Any]:
    report, note = FaultReport(version=VERSION), ""
    if text is not None:
        try:
            report = decode_report(text)
        except ContractError as error:
            note = str(error)
    return {
        "faults": report.faults,
        "faults_boot_id": report.boot_id,
        "faults_note": note,
        "faults_truncated": report.truncated is not None and report.truncated.warning > 0,
        "info_truncated": report.truncated is not None and report.truncated.info > 0,
        "past": report.past,
        "past_truncated": report.truncated is not None and report.truncated.past > 0,
    }


def _session(text: str, uid: str, now: float) -> Session | Malformed:
    try:
        return decode_session(text, node_uid=uid).not_after(now)
    except AnnotationError as error:
        return Malformed(str(error))


def _small(node: Node, now: float) -> tuple[dict[str, Any], str]:
    """Read mode, history and request: seldom there, and the history has a say in the mode.

    An unreadable history may hold waivers: it permits no new session, while recovery goes on.
    """
    problems = []
    history, request = History(), None
    mode, note = _mode(node)
    try:
        if (text := node.annotations.get(HISTORY_ANNOTATION)) is not None:
            history = decode_history(text).not_after(now)
    except AnnotationError as error:
        problems.append(str(error))
        if _CAREFUL[mode] < _CAREFUL[NodeMode.NOTIFY_ONLY]:
            mode, note = NodeMode.NOTIFY_ONLY, f"read as {NodeMode.NOTIFY_ONLY}: {error}"
    try:
        if (text := node.annotations.get(REQUEST_ANNOTATION)) is not None:
            request = decode_request(text)
    except AnnotationError as error:
        problems.append(str(error))
    approvals: tuple[Approval, ...] = ()
    try:
        if (text := node.annotations.get(APPROVAL_ANNOTATION)) is not None:
            approvals = decode_approvals(text)
    except AnnotationError as error:
        problems.append(str(error))
    facts = {
        "mode": mode,
        "mode_note": note,
        "history": history,
        "request": request,
        "approvals": approvals,
    }
    return facts, "; ".join(problems)


def _mode(node: Node) -> tuple[NodeMode, str]:
    """Return the stricter of annotation and label; a value that we do not know is an opt-out."""
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
    return mode, note
