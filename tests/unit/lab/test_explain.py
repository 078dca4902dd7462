"""Why a policy matches a node, in words: also where a session outlives the selector."""

from __future__ import annotations

from node_agent.contract import FaultKind, Severity
from remediator.decide.facts import NOTHING_KNOWN
from remediator.lab import nodes as on
from remediator.lab.explain import explain
from remediator.lab.run import Lab
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy


START = 1_000_000.0
LABELS = {"nvidia.com/gpu.present": "true", "tier": "batch"}
POLICY = RemediationPolicy.model_validate(
    {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": "p"},
        "spec": {
            "mode": "Enforce",
            "nodes": {"selector": {"matchLabels": {"tier": "batch"}}},
            "when": [{"xid": {"codes": [79]}}],
            "steps": [{"cordon": {}}],
        },
    }
)


def test_a_session_goes_on_whatever_the_labels_and_is_explained() -> None:
    cluster = ClusterSpec.model_validate({"mode": "Enforce", "settling": "0s"})
    lab = Lab(policies=[POLICY], cluster=cluster, start=START)
    fault = on.fault(
        FaultKind.XID, 79, severity=Severity.FATAL, pci="0000:9b:00.0", boot_id="b", now=START
    )
    lab.put(on.with_fault(on.well_node("n", now=START, labels=LABELS), fault, now=START))
    lab.run(START + 1)
    lab.put(on.with_texts(lab.node("n"), labels={"tier": None}))
    facts = lab.facts("n")
    assert facts is not None
    assert facts.unschedulable
    told = explain(POLICY, facts, NOTHING_KNOWN, lab.now)
    assert told.not_asked == "the node's labels are not those of nodes.selector"
    assert told.holding

    lab.put(on.well_node("other", now=START, labels={"nvidia.com/gpu.present": "true"}))
    other = lab.facts("other")
    assert other is not None
    again = explain(POLICY, other, NOTHING_KNOWN, lab.now)
    assert (bool(again.not_asked), again.holding) == (True, False)
