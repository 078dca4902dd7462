"""Small builders for facts and policies, so that a test says only what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from node_agent.contract import Fault, FaultKind, Severity
from remediator.decide.candidate import ActivePolicy
from remediator.decide.core import Policies, World, decide
from remediator.decide.decision import (
    UNSET,
    Decision,
    Outcome,
    PatchNode,
    SendMessage,
    Work,
    WriteEvent,
)
from remediator.decide.facts import (
    AlertFact,
    ClusterFacts,
    ConditionFact,
    NodeFacts,
    QueryFact,
    SourceFact,
    out_of_service,
)
from remediator.decide.ledger import Ledger
from remediator.decide.session import History, Session
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy


START = 1_000_000.0
SEEN = datetime(2026, 1, 1, tzinfo=UTC)
GPU = {"nvidia.com/gpu.present": "true"}


def policy(name: str = "bus", **spec: Any) -> RemediationPolicy:
    """Return an enforcing Xid 79 policy that cordons, changed by ``spec``."""
    base = {"mode": "Enforce", "when": [{"xid": {"codes": [79]}}], "steps": [{"cordon": {}}]}
    return RemediationPolicy.model_validate(
        {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediationPolicy",
            "metadata": {"name": name},
            "spec": base | spec,
        },
    )


def policies(*given: RemediationPolicy, loaded_at: float = 0.0) -> Policies:
    return Policies({one.name: ActivePolicy(one, loaded_at) for one in given})


def cluster(**spec: Any) -> ClusterSpec:
    """Return an enforcing cluster without settling time, changed by ``spec``."""
    return ClusterSpec.model_validate({"mode": "Enforce", "settling": "0s"} | spec)


def ledger(started: float = 0.0, **spec: Any) -> Ledger:
    return Ledger(cluster=cluster(**spec), started=started)


def xid(code: int = 79, pci: str = "0000:9b:00.0", severity: Severity = Severity.FATAL) -> Fault:
    return Fault(
        kind=FaultKind.XID,
        severity=severity,
        first_seen=SEEN,
        last_seen=SEEN,
        pci=pci,
        code=code,
        boot_id="boot-1",
    )


def condition(
    kind: str, status: str, *, now: float = START, reason: str = "Xid79"
) -> ConditionFact:
    return ConditionFact(kind, status, reason, "", since=now, seen=now)


def alert(
    name: str = "GpuFell", *, since: float = START, source: str = "main", **more: Any
) -> AlertFact:
    """Return a firing alert; what is no field of it is a label."""
    known = {key: more.pop(key) for key in ("suppressed",) if key in more}
    starts_at = more.pop("starts_at", since)
    labels = {"gpu": "0", "severity": "critical"} | more
    return AlertFact(
        source=source,
        name=name,
        labels=labels,
        since=since,
        seen=since,
        starts_at=starts_at,
        **known,
    )


def alive(source: str = "main", *, alive: bool = True, **more: Any) -> ClusterFacts:
    """Return what is known of a cluster with one Alertmanager, which works."""
    fact = SourceFact(ok=True, since=0.0, alive=alive)
    return ClusterFacts(sources={f"alertmanager/{source}": fact}, **more)


def query_fact(*, holds: bool, since: float = START, **more: Any) -> QueryFact:
    """Return a query's answer that stays fresh for a while."""
    return QueryFact(holds=holds, since=since, seen=since, fresh_until=since + 90.0, **more)


def node(
    name: str = "n1", *, faults: tuple[Fault, ...] = (), now: float = START, **more: Any
) -> NodeFacts:
    """Return a healthy GPU node, or one with these faults."""
    status = "True" if faults else "False"
    given: dict[str, Any] = {
        "name": name,
        "uid": f"uid-{name}",
        "resource_version": "1",
        "labels": GPU,
        "boot_id": "boot-1",
        "faults_boot_id": "boot-1",
        "conditions": {"GPUXidError": condition("GPUXidError", status, now=now)},
        "faults": faults,
    }
    return NodeFacts(**(given | more))


def patch_of(decision: Decision) -> PatchNode | None:
    return next((one for one in decision.effects if isinstance(one, PatchNode)), None)


def merged(values: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {key: one for key, one in {**values, **changes}.items() if one is not None}


def written(facts: NodeFacts, patch: PatchNode | None, now: float = START) -> NodeFacts:
    """Return the node as the API server and the watch give it back after a patch."""
    if patch is None:
        return facts
    cordoned = facts.unschedulable if patch.unschedulable is None else patch.unschedulable
    session = facts.session if patch.session is UNSET else patch.session
    history = facts.history if patch.history is UNSET else (patch.history or History())
    taints = tuple(one for one in facts.taints if one not in patch.untaint) + patch.taint
    unavailable = out_of_service(taints, unschedulable=cordoned) or not facts.ready
    return replace(
        facts,
        resource_version=str(int(facts.resource_version) + 1),
        unschedulable=cordoned,
        taints=taints,
        session=session,
        history=history,
        request=None if patch.remove_request else facts.request,
        labels=merged(facts.labels, patch.labels),
        annotations=merged(facts.annotations, patch.annotations),
        approvals=facts.approvals if patch.approvals is UNSET else patch.approvals,
        unavailable_since=(facts.unavailable_since or now) if unavailable else None,
    )


class Bench:
    """One node or more under decide(), with virtual time and an API server that obeys."""

    def __init__(self, *given: RemediationPolicy, guards: Ledger | None = None) -> None:
        self.policies = policies(*given)
        self.ledger = guards or ledger(budgets=[{"maxUnavailable": "100%", "per": "cluster"}])
        self.nodes: dict[str, NodeFacts] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.now = START
        self.sent: dict[str, SendMessage | WriteEvent] = {}
        self.works: dict[str, Work] = {}
        """Wanted by the last decision, by action."""
        self.world = World.REAL
        self.known = ClusterFacts()

    def see(self, *facts: NodeFacts) -> None:
        for one in facts:
            self.nodes[one.name] = one
            self.ledger.observe(one, self.now)

    def change(self, name: str = "n1", **fields: Any) -> None:
        self.see(replace(self.nodes[name], **fields))

    def decide(self, *, write: bool = True) -> list[Decision]:
        """Decide once about all nodes, and do what comes out."""
        decisions = decide(
            list(self.nodes.values()),
            policies=self.policies,
            ledger=self.ledger,
            outcomes=self.outcomes,
            world=self.world,
            now=self.now,
            cluster_facts=self.known,
        )
        self.works = {
            effect.action: effect
            for one in decisions
            for effect in one.effects
            if isinstance(effect, Work)
        }
        for one in decisions:
            if write:
                self.see(written(self.nodes[one.node], patch_of(one), self.now))
            for effect in one.effects:
                if isinstance(effect, SendMessage | WriteEvent):
                    self.sent.setdefault(effect.key, effect)
        return decisions

    def one(self, **later: float) -> Decision:
        """Decide about the only node, ``seconds`` later."""
        self.now += later.get("seconds", 0.0)
        (decision,) = self.decide()
        return decision

    def fault(self, *faults: Fault, name: str = "n1", status: str | None = None) -> None:
        """Have the agent report these faults, or none, at this moment."""
        known = self.nodes[name].conditions["GPUXidError"]
        status = status or ("True" if faults else "False")
        since = known.since if known.status == status else self.now
        fresh = ConditionFact("GPUXidError", status, "", "", since=since, seen=self.now)
        self.change(name, faults=faults, conditions={"GPUXidError": fresh})

    def cordoned(self, name: str = "n1") -> bool:
        return self.nodes[name].unschedulable

    def session(self, name: str = "n1") -> Session:
        found = self.nodes[name].session
        assert isinstance(found, Session)
        return found

    def texts(self) -> str:
        """All that was told, as one text to search in."""
        return "\n".join(f"{key}: {said}" for key, said in self.sent.items())
