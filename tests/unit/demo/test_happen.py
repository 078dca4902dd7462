"""What a timeline's entry writes on a Node: the right subresource, and nothing but the change."""

from __future__ import annotations

import pytest

from demo.sandbox.happen import Patch, SandboxError, checked, patches, read
from node_agent.contract import FAULTS_ANNOTATION, decode_report
from remediator.kube.objects import Node, Taint
from remediator.lab.nodes import booted, cleared, well_node
from remediator.lab.outside import CHANGES


def node() -> Node:
    return well_node("gpu-1", now=1e9, labels={"zone": "a"})


def after(text: str, before: Node) -> list[Patch]:
    entry = read(text)
    return list(patches(before, CHANGES[entry.what](before, entry.given, 1e9 + 5)))


def test_an_xid_is_written_as_the_agent_writes_it_in_one_patch() -> None:
    (patch,) = after("xid: {code: 79}", node())

    assert patch.subresource == "/status"
    assert {(one["type"], one["status"]) for one in patch.body["status"]["conditions"]} == {
        ("GPUXidError", "True"),
        ("GPULost", "True"),
    }
    assert patch.body["metadata"]["resourceVersion"] == "1"
    (fault,) = decode_report(patch.body["metadata"]["annotations"][FAULTS_ANNOTATION]).faults
    assert fault.code == 79


def test_what_people_do_is_no_part_of_the_status() -> None:
    (cordon,) = after("cordon: {}", node())
    assert cordon == (
        "",
        "application/merge-patch+json",
        {"metadata": {"resourceVersion": "1"}, "spec": {"unschedulable": True}},
    )
    (labels,) = after("labels: {zone: '', rack: r1}", node())
    assert labels.body["metadata"]["labels"] == {"zone": None, "rack": "r1"}
    assert labels.body["spec"] == {}


def test_a_taint_leaves_those_of_others() -> None:
    before = CHANGES["taint"](node(), read("taint: {key: theirs}").given, 0.0)
    (patch,) = after("taint: {key: another}", before)
    assert [one["key"] for one in patch.body["spec"]["taints"]] == ["theirs", "another"]
    assert before.taints == (Taint("theirs", "", "NoSchedule"),)


def test_a_restart_and_its_evidence_are_one_write() -> None:
    broken = CHANGES["xid"](node(), read("xid: {code: 79}").given, 1e9)
    (patch,) = patches(broken, cleared(booted(broken, now=2e9), now=2e9))
    assert patch.body["status"]["nodeInfo"]["bootID"] == "gpu-1-boot-2"
    assert {one["status"] for one in patch.body["status"]["conditions"]} == {"False", "True"}
    report = decode_report(patch.body["metadata"]["annotations"][FAULTS_ANNOTATION])
    assert (report.faults, report.boot_id) == ((), "gpu-1-boot-2")


def test_only_the_first_of_two_patches_is_bound_to_a_version() -> None:
    before = node()
    change = CHANGES["cordon"](
        CHANGES["xid"](before, read("xid: {code: 79}").given, 1e9), read("cordon: {}").given, 1e9
    )
    first, second = patches(before, change)
    assert "resourceVersion" in first.body["metadata"]
    assert "resourceVersion" not in second.body["metadata"]


def test_no_change_is_no_patch() -> None:
    assert list(patches(node(), node())) == []


def test_an_agent_begins_with_everything_well() -> None:
    bare = well_node("gpu-1", now=1e9, labels={}, agent=False)
    first = checked(bare, 1e9)
    assert {one.status for one in first.conditions if one.type != "Ready"} == {"False"}
    assert decode_report(first.annotations[FAULTS_ANNOTATION]).faults == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("xid: 79", "no entry of a timeline, such as 'xid: {code: 79}'"),
        ("xyd: {code: 79}", "no entry of a timeline"),
        ("79", "no entry of a timeline"),
        ("", "no entry of a timeline"),
        ("xid: {", "entry:1:7: error: this is not YAML"),
        ("[xid]", "write one as 'xid: {code: 79}'"),
        ("xid: {kode: 79}", "entry:1:7: error: xid.kode: unknown key kode in xid"),
        ("xid: {kode: 79}", "fix: did you mean code?"),
        ("kubelet: off", "off is a boolean to YAML 1.1 readers"),
        ("reboot: {takes: 5}", "fix: write a number with its unit"),
        ("alert: {name: Hot}", "'alert' cannot happen on a sandbox's node; these can: "),
        ("pause: {}", "remediator policy test"),
    ],
)
def test_what_cannot_happen_is_refused_in_words(text: str, says: str) -> None:
    with pytest.raises(SandboxError) as refused:
        read(text)
    assert says in str(refused.value)
    assert "pydantic" not in str(refused.value)
