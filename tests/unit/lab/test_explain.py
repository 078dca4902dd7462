"""Why a policy matches a node, in words: also where a session outlives the selector."""

from __future__ import annotations

from node_agent.contract import FaultKind, Severity
from remediator.decide.facts import NOTHING_KNOWN
from remediator.lab import nodes as on
from remediator.lab.explain import explain
from remediator.lab.run import Lab
from remediator.lab.simulate import simulate
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from remediator.record.state import STATE_KEY, Loaded, decode_states


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


def test_many_silent_agents_are_believed_as_little_as_by_the_controller() -> None:
    """By the times on the nodes themselves: a new disruptive step does not rest on them."""
    now, cluster = START + 3600, ClusterSpec.model_validate({"mode": "Enforce"})
    nodes = [on.well_node(f"n{at}", now=START, labels=LABELS) for at in range(5)]
    fault = on.fault(
        FaultKind.XID, 79, severity=Severity.FATAL, pci="0000:9b:00.0", boot_id="b", now=now
    )
    faulty = on.with_fault(on.well_node("bad", now=now, labels=LABELS), fault, now=now)
    found = simulate([*nodes, faulty], policies=[POLICY], cluster=cluster, now=now)
    assert found.around.sources["agents"].why == "5 of 6 are silent, 2 are believable"
    (row,) = [one for one in found.rows if one.decision.node == "bad"]
    assert (row.steps, [hold.guard for hold in row.decision.holds]) == ((), ["sources"])
    awake = [on.beaten(one, now=now) for one in nodes]
    found = simulate([*awake, faulty], policies=[POLICY], cluster=cluster, now=now)
    assert found.around.sources["agents"].ok
    (row,) = found.rows
    assert row.steps == ("cordon (p)",)


def test_a_memory_that_is_lost_counts_every_rate_as_used_up_as_it_does_for_the_controller() -> None:
    fault = on.fault(
        FaultKind.XID, 79, severity=Severity.FATAL, pci="0000:9b:00.0", boot_id="b", now=START
    )
    faulty = on.with_fault(on.well_node("bad", now=START, labels=LABELS), fault, now=START)
    cluster = ClusterSpec.model_validate(
        {"mode": "Enforce", "budgets": [{"maxUnavailable": "100%", "per": "cluster"}]}
    )
    for loaded, guards in (
        (Loaded(None), []),
        (decode_states({STATE_KEY: "{"}), ["rate"]),
        (decode_states({STATE_KEY: '{"version": 99}'}), ["rate"]),
    ):
        found = simulate([faulty], policies=[POLICY], cluster=cluster, now=START, loaded=loaded)
        (row,) = found.rows
        assert [hold.guard for hold in row.decision.holds] == guards
        assert bool(row.steps) is not bool(guards)
