"""The cost of deciding: one changed node under a hundred policies, and the whole fleet.

The policies are of every kind of clause, with selectors, windows and `unless`; the nodes carry
every condition of the agent and some of others; one in a hundred has a fault. Nothing is
written: the time is that of `decide` alone, guards and ledger included.

Goals: one node event under 100 policies <= 1 ms; all 5,000 nodes <= 2 s.

    python -m tests.bench.decide
"""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime
from typing import Any, Final

from node_agent.contract import ConditionType, Fault, FaultKind, Severity
from remediator.decide.candidate import ActivePolicy
from remediator.decide.core import Policies, World, decide
from remediator.decide.facts import ClusterFacts, ConditionFact, NodeFacts, SourceFact
from remediator.decide.ledger import Ledger
from remediator.engine import BATCH
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from tests.bench.figures import finish, percentile, say, say_machine


POLICIES: Final = 100
NODES: Final = 5_000
FAULTY: Final = 100
"""One node in so many."""
ROUNDS: Final = 3
NOW: Final = 1_800_000_000.0
BOOT: Final = "3b0f2a1c-8d5e-4f6a-9b7c-0d1e2f3a4b5c"
SEEN: Final = datetime(2026, 1, 1, tzinfo=UTC)

WHENS: Final[tuple[list[dict[str, Any]], ...]] = (
    [{"xid": {"codes": [79]}}, {"condition": {"type": "GPULost"}}],
    [{"xid": {"codes": [48, 63, 64, 92, 94, 95]}}],
    [{"condition": {"type": "GPUOverheating", "for": "5m"}}],
    [{"condition": {"type": "AcceleratedHardwareReady", "status": "False", "for": "10m"}}],
    [{"count": {"xid": [94], "atLeast": 3, "within": "24h"}}],
    [{"alert": {"name": "GpuFellOffTheBus", "labels": {"severity": "critical"}}}],
    [{"all": [{"condition": {"type": "GPUXidError"}}, {"any": [{"xid": {"codes": [74]}}]}]}],
    [{"sxid": {"codes": [20034, 22013]}}],
)
MORE: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"nodes": {"selector": {"matchLabels": {"node.kubernetes.io/instance-type": "h200-8"}}}},
    {"windows": [{"start": "22:00", "end": "06:00", "timeZone": "Europe/Berlin"}]},
    {"unless": [{"alert": {"name": "ClusterMaintenance"}}]},
)
STEPS: Final = [{"cordon": {}}, {"notify": {"to": ["log"]}}, {"drain": {}, "timeout": "30m"}]


def main() -> None:
    """Print the figures."""
    say_machine()
    fleet = [node(number) for number in range(NODES)]
    loaded = hundred()
    known = ClusterFacts(sources={"alertmanager/main": SourceFact(ok=True, since=0.0, alive=True)})
    faulty = [node(number * FAULTY) for number in range(NODES // FAULTY)]
    per_event: list[float] = []
    per_faulty: list[float] = []
    per_fleet: list[float] = []
    for at in range(ROUNDS):
        ledger = Ledger(cluster=ClusterSpec(mode="Enforce"), started=NOW - 3600.0)
        for facts in fleet:
            ledger.observe(facts, NOW)
        whole = seconds_of(fleet, loaded, ledger, known, batch=BATCH)
        per_fleet.append(sum(whole))
        single = seconds_of(fleet[:1_000], loaded, ledger, known, batch=1)
        per_event += single
        per_faulty += seconds_of(faulty, loaded, ledger, known, batch=1)
        say(f"round {at + 1}: {sum(whole):.2f} s for all, {sum(single) * 1e3 / 1_000:.3f} ms each")
    finish(
        {
            "per_event_ms": statistics.fmean(per_event) * 1e3,
            "per_event_p99_ms": percentile(per_event, 99) * 1e3,
            "per_faulty_event_ms": statistics.median(per_faulty) * 1e3,
            "all_nodes_s": statistics.median(per_fleet),
            "policies": POLICIES,
            "nodes": NODES,
        }
    )


def seconds_of(
    fleet: list[NodeFacts], loaded: Policies, ledger: Ledger, known: ClusterFacts, *, batch: int
) -> list[float]:
    """Decide about nodes in batches; return the seconds of each."""
    taken = []
    for start in range(0, len(fleet), batch):
        nodes = fleet[start : start + batch]
        since = time.perf_counter()
        decide(
            nodes,
            policies=loaded,
            ledger=ledger,
            outcomes={},
            world=World.REAL,
            now=NOW + 1.0,
            cluster_facts=known,
        )
        taken.append(time.perf_counter() - since)
    return taken


def hundred() -> Policies:
    """Policies of every kind, in turn."""
    active = {}
    for number in range(POLICIES):
        spec = {
            "mode": "Enforce",
            "when": WHENS[number % len(WHENS)],
            "steps": STEPS,
            **MORE[number // len(WHENS) % len(MORE)],
        }
        policy = RemediationPolicy.model_validate(
            {
                "apiVersion": "gpu-remediator.io/v1alpha1",
                "kind": "RemediationPolicy",
                "metadata": {"name": f"policy-{number}"},
                "spec": spec,
            }
        )
        active[policy.name] = ActivePolicy(policy, NOW - 3600.0)
    return Policies(active)


def node(number: int) -> NodeFacts:
    """A node with what a node has: labels, conditions, and sometimes a fault."""
    bad = number % FAULTY == 0
    name = f"gpu-{number:05}"
    conditions = {
        kind.value: ConditionFact(
            kind.value, "False", "AsExpected", "", since=NOW - 9e4, seen=NOW - number % 300
        )
        for kind in ConditionType
    }
    for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready"):
        status = "True" if kind == "Ready" else "False"
        conditions[kind] = ConditionFact(kind, status, "", "", since=NOW - 9e4, seen=NOW)
    faults: tuple[Fault, ...] = ()
    if bad:
        xid = ConditionType.XID_ERROR.value
        conditions[xid] = ConditionFact(xid, "True", "Xid79", "", since=NOW, seen=NOW)
        faults = (
            Fault(
                kind=FaultKind.XID,
                severity=Severity.FATAL,
                first_seen=SEEN,
                last_seen=SEEN,
                pci="0000:9b:00.0",
                code=79,
                boot_id=BOOT,
            ),
        )
    return NodeFacts(
        name=name,
        uid=f"uid-{name}",
        resource_version=str(number),
        labels={
            "nvidia.com/gpu.present": "true",
            "kubernetes.io/hostname": name,
            "node.kubernetes.io/instance-type": "h200-8",
        },
        pool=f"pool-{number % 20}",
        zone=f"zone-{number % 3}",
        boot_id=BOOT,
        faults_boot_id=BOOT,
        conditions=conditions,
        faults=faults,
    )


if __name__ == "__main__":
    main()
