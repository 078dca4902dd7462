"""Small builders for facts and policies, so that a test says only what it is about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from node_agent.contract import Fault, FaultKind, Severity
from remediator.decide.candidate import ActivePolicy
from remediator.decide.core import Policies
from remediator.decide.decision import UNSET, Decision, PatchNode
from remediator.decide.facts import ConditionFact, NodeFacts
from remediator.decide.ledger import Ledger
from remediator.decide.session import Session
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


def session_after(facts: NodeFacts, patch: PatchNode) -> Session | None:
    return facts.session if patch.session is UNSET else patch.session  # type: ignore[return-value]
