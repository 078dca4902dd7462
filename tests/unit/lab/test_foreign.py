"""What others did to a node of a recording is told from what our controller did there."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import pytest

from node_agent.contract import FaultKind, Severity
from remediator.kube.objects import Node, Taint
from remediator.lab import nodes as on
from remediator.lab.foreign import carried_over, cleaned
from remediator.lab.run import Lab
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy


START: Final = 1_000_000.0
OURS: Final = "gpu-remediator.io/unhealthy"
LABELS: Final = {"nvidia.com/gpu.present": "true", "state": "good"}
POLICY: Final = RemediationPolicy.model_validate(
    {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": "p"},
        "spec": {
            "mode": "Enforce",
            "when": [{"xid": {"codes": [48]}}],
            "steps": [
                {"cordon": {}},
                {"taint": {}},
                {"label": {"set": {"state": "bad", "new": "bad"}}},
                {"annotate": {"set": {"note": "bad"}}},
            ],
            "recover": {"for": "20s"},
        },
    }
)


@pytest.fixture
def versions() -> list[Node]:
    """Every version of a node, from before its fault until after its remediation."""
    found: list[Node] = []
    lab = Lab(
        policies=[POLICY], cluster=ClusterSpec.model_validate({"mode": "Enforce"}), start=START
    )
    lab.on_version = lambda _old, new: found.append(new) if new is not None else None
    lab.put(on.well_node("n", now=START, labels=LABELS))
    lab.run(START + 400)
    fault = on.fault(
        FaultKind.XID,
        48,
        severity=Severity.FATAL,
        pci="0000:9b:00.0",
        boot_id=lab.node("n").boot_id,
        now=lab.now,
    )
    lab.put(on.with_fault(lab.node("n"), fault, now=lab.now))
    lab.run(START + 500)
    lab.put(on.cleared(lab.node("n"), now=lab.now))
    lab.run(START + 600)
    return found


def marks_of(node: Node) -> object:
    texts = {key: text for key, text in node.annotations.items() if key in {"note", "theirs"}}
    return node.unschedulable, node.taints, node.labels, texts


def marked(versions: list[Node]) -> Node:
    """The version with all that we set."""
    return next(one for one in versions if "note" in one.annotations)


def test_what_we_did_is_taken_out_and_what_was_there_is_put_back(versions: list[Node]) -> None:
    ours = marked(versions)
    assert marks_of(ours) != marks_of(versions[0])
    assert marks_of(cleaned(ours)) == marks_of(versions[0])
    onto = versions[0]
    for old, new in pairwise(versions):
        onto = carried_over(old, new, onto)
        assert marks_of(onto) == marks_of(versions[0])


@pytest.mark.parametrize("with_ours", [True, False])
def test_what_people_made_of_it_is_theirs(versions: list[Node], *, with_ours: bool) -> None:
    """Under our policy as in the cluster, and under one that would have done nothing."""
    ours = marked(versions)
    theirs = on.with_texts(
        on.with_taint(ours, OURS, "NoSchedule", value="theirs"),
        labels={"state": "mine", "new": None},
        annotations={"note": "mine"},
    )
    onto = carried_over(ours, theirs, ours if with_ours else versions[0])
    assert onto.taints == (Taint(key=OURS, effect="NoSchedule", value="theirs"),)
    assert onto.labels == {**LABELS, "state": "mine"}
    assert onto.annotations["note"] == "mine"
    begun_amid = cleaned(theirs)
    assert begun_amid.taints == onto.taints
    assert begun_amid.labels == onto.labels
    assert begun_amid.annotations["note"] == "mine"


def test_a_taint_of_ours_that_people_took_away_is_gone(versions: list[Node]) -> None:
    ours = marked(versions)
    theirs = on.without_taint(ours, OURS)
    assert carried_over(ours, theirs, ours).taints == ()
