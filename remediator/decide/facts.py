"""Facts: what is known of a node, as levels with a time. The input of every decision.

Times are seconds since the epoch on the *controller's* clock (monotonic within
a process). ``since`` and ``seen`` are when the controller saw a change, never
what a node's clock said: ages are never computed across two clocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from node_agent.contract import STALE_AFTER_SECONDS, ConditionType, Fault, Past
from remediator.decide.requests import Approval, Request
from remediator.decide.session import OWN_PREFIX, History, Session, Taint


OWN_CONDITIONS = frozenset(ConditionType)
"""Types whose heartbeat we know, so that we can tell a silent agent from a well node."""


MAX_ANNOTATION: Final = 256
"""Characters of an annotation of others that we can put back; a longer one we never replace."""


class NodeMode(StrEnum):
    """What a node's own annotation or label allows (``gpu-remediator.io/mode``)."""

    FULL = ""
    DRY_RUN = "dry-run"
    NOTIFY_ONLY = "notify-only"
    DISABLED = "disabled"


class Malformed(NamedTuple):
    """A session annotation that cannot be trusted: the node is frozen."""

    why: str


@dataclass(frozen=True, slots=True)
class ConditionFact:
    """One node condition. ``since``: this status began; ``seen``: its heartbeat last changed.

    ``reasons``: when each reason was first seen under this status, once it has changed. They
    may alternate, and a clause that waits for some of them must not begin anew each time.
    ``earlier``: what it was before, oldest first, each until the next one's ``since``; bounded.
    """

    type: str
    status: str
    reason: str
    message: str
    since: float
    seen: float
    reasons: Mapping[str, float] = field(default_factory=dict)
    earlier: tuple[ConditionFact, ...] = ()

    def since_of(self, reasons: Collection[str]) -> float:
        """Return when the first of these reasons was seen under this status; of none, any."""
        known = [at for reason, at in self.reasons.items() if reason in reasons]
        return min(known, default=self.since)

    def lasting(self, reasons: Collection[str], *, clear_for: float) -> float:
        """Return since when it has had its status, for any of these reasons.

        What interrupted that for less than ``clear_for`` seconds does not count.
        """
        since, began = max(self.since, self.since_of(reasons)), self.since
        broken = began
        for one in reversed(self.earlier):
            if one.status != self.status:
                broken = one.since
                continue
            if began - broken >= clear_for:
                break
            began = broken = one.since
            if not reasons or {one.reason, *one.reasons}.intersection(reasons):
                since = max(one.since, one.since_of(reasons))
        return since

    def fresh(self, now: float) -> bool:
        """Tell whether its writer is alive. Of foreign types we do not know the heartbeat."""
        return self.type not in OWN_CONDITIONS or now < self.fresh_until

    @property
    def fresh_until(self) -> float:
        """When it becomes stale unless a heartbeat is seen."""
        return self.seen + STALE_AFTER_SECONDS


CHURN: Final = frozenset(
    {"instance", "pod", "exported_pod", "pod_name", "container", "endpoint", "uid"}
    | {"prometheus", "prometheus_replica", "replica"}
)
"""Labels of an alert that change when a *scraper* or its pod is replaced, and not the fault."""
_IDENTITY_CHARACTERS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFact:
    """One alert that names this node or, in :class:`ClusterFacts`, any firing alert.

    ``source``: the Alertmanager, by its name in RemediatorConfig; its state is
    ``ClusterFacts.sources["alertmanager/<source>"]``. ``since``: first seen by us; ``seen``:
    when it was last seen to change, no decision rests on it; ``starts_at``: its own
    ``startsAt``, by another clock. ``suppressed``: silenced or inhibited on any peer. The node
    is then frozen if any policy names it: no step, and no undo.
    """

    source: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    since: float
    seen: float
    starts_at: float
    suppressed: bool = False

    @property
    def instance(self) -> str:
        """Return its name as a fault instance: the same whichever scraper saw it.

        A restarted exporter changes ``instance`` and ``pod``, and so the fingerprint:
        those labels (:data:`CHURN`) are left out.
        """
        lasting = sorted(one for one in self.labels.items() if one[0] not in CHURN)
        digest = hashlib.sha256(repr(lasting).encode()).hexdigest()[:_IDENTITY_CHARACTERS]
        return f"alert:{self.source}/{self.name}:{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFact:
    """One query's answer about this node: in its result, or in that of ``clearedBy``.

    ``holds`` False needs ``clearedBy``: to be absent from a result says nothing.
    ``source``: the Prometheus that answered, by its name in RemediatorConfig.
    """

    holds: bool
    since: float
    seen: float
    fresh_until: float
    value: float = 0.0
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFact:
    """Whether a source can be trusted now.

    ``ok``: it answers, and what it has to prove (a watchdog that is configured) is proven.
    ``alive``: its watchdog alert fires, so that the absence of an alert is evidence.
    ``since``: when it became so. ``why``: for people, when it is not ok.
    """

    ok: bool
    since: float
    why: str = ""
    alive: bool = False


AGENTS: Final = "agents"
WATCH: Final = "watch"
"""Names of sources in :class:`ClusterFacts` that are not configured ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What is known beside the nodes.

    ``alerts``: every firing alert, for ``unless``. ``sources``: ``alertmanager/<name>``,
    ``prometheus/<name>``, :data:`AGENTS` and :data:`WATCH`. ``queries``: whether a query of
    ``unless`` has a result, by its key; absent: not known. ``heard``: when each Alertmanager
    (by its source's name) and each query (by ``query:<key>``) gave its first good answer.
    """

    alerts: tuple[AlertFact, ...] = ()
    sources: Mapping[str, SourceFact] = field(default_factory=dict)
    queries: Mapping[str, bool] = field(default_factory=dict)
    heard: Mapping[str, float] = field(default_factory=dict)


NOTHING_KNOWN: Final = ClusterFacts()
"""No Alertmanager, no Prometheus, and nothing said of agents and watch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Everything a decision about one node may use.

    ``pool`` and ``zone`` are the names of its groups ("" for nodes without the label).
    ``faults_note`` says why the annotation's details are not used, if they are not.
    ``faults_truncated``: faults of severity warning are missing from ``faults``;
    ``info_truncated``: informational ones are. ``past``: times of faults that are over, for counts
    alone; ``past_truncated``: some are missing.
    ``unavailable_since``: when it was first seen out of service or not Ready; None if available.
    ``uncordoned``: it was seen schedulable although its session had cordoned it, or somebody
    else is known to have cordoned it since. If it is cordoned now, that is theirs.
    ``untainted``: the same of a taint, as far as we saw it.
    ``annotations``: of others, each cut off behind :data:`MAX_ANNOTATION` characters.
    ``alerts``: those that name this node. ``queries``: what queries say of it, by their keys.
    """

    name: str
    uid: str
    resource_version: str
    created: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    gpu: bool = True
    control_plane: bool = False
    pool: str = ""
    zone: str = ""
    deleting: bool = False
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    boot_id: str = ""
    conditions: Mapping[str, ConditionFact] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    faults_boot_id: str = ""
    faults_note: str = ""
    faults_truncated: bool = False
    info_truncated: bool = False
    past: tuple[Past, ...] = ()
    past_truncated: bool = False
    mode: NodeMode = NodeMode.FULL
    mode_note: str = ""
    session: Session | Malformed | None = None
    history: History = field(default_factory=History)
    request: Request | None = None
    unavailable_since: float | None = None
    uncordoned: bool = False
    untainted: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    approvals: tuple[Approval, ...] = ()
    alerts: tuple[AlertFact, ...] = ()
    queries: Mapping[str, QueryFact] = field(default_factory=dict)

    @property
    def out_of_service(self) -> bool:
        """Tell whether new pods are kept away: by a cordon of anyone, or by a taint of ours.

        Taints of others mostly say what a node is for, and take no capacity away.
        """
        return out_of_service(self.taints, unschedulable=self.unschedulable)


def out_of_service(taints: tuple[Taint, ...], *, unschedulable: bool) -> bool:
    """Say it of a node in the making; see :attr:`NodeFacts.out_of_service`."""
    return unschedulable or any(
        taint.keeps_away and taint.key.startswith(OWN_PREFIX) for taint in taints
    )


def untainted_since(
    before: NodeFacts | None, session: Session | Malformed | None, taints: tuple[Taint, ...]
) -> bool:
    """Tell whether somebody took away, or changed, a taint of the session: as of a cordon."""
    if not isinstance(session, Session) or not session.added.taints:
        return False
    if not set(taints).issuperset(session.added.taints):
        return True
    known = before.session if before is not None and before.untainted else None
    return isinstance(known, Session) and known.id == session.id


def uncordoned_since(
    before: NodeFacts | None, session: Session | Malformed | None, *, unschedulable: bool
) -> bool:
    """Tell whether somebody took away the cordon of the session that the node has now.

    Remembered for as long as that session is there: what is cordoned after that, perhaps
    before we could act on it, is theirs. We never cordon twice for one session.
    """
    if not isinstance(session, Session) or not session.added.cordoned:
        return False
    if not unschedulable:
        return True
    known = before.session if before is not None and before.uncordoned else None
    return isinstance(known, Session) and known.id == session.id
