"""Which node an alert is about: by explicit rules, and otherwise refused with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from remediator.kube.objects import Address, Node
from remediator.policy.sources import ALERT_NODE_LABELS, EXPORTER_JOBS, SCRAPER_JOBS
from remediator.signals.resolve import (
    Answer,
    Found,
    NodeIndex,
    PodKey,
    PodPlace,
    Reason,
    Refused,
    Rules,
    Subject,
    Wanted,
    resolve,
)
from tests.unit.kube.build import bare_node


RULES = Rules(ALERT_NODE_LABELS, EXPORTER_JOBS, SCRAPER_JOBS)
KSM = "kube-state-metrics"
OF_KSM = {"job": KSM, "instance": "10.1.0.9:8080"}
DCGM = {"job": "dcgm-exporter"}


def node(
    name: str,
    *,
    ip: str = "",
    hostname: str = "",
    created: str = "2026-01-01T00:00:00Z",
    labels: Mapping[str, str] | None = None,
) -> Node:
    return bare_node(
        name=name,
        uid=f"uid-{name}-{created}",
        labels={**({"kubernetes.io/hostname": hostname} if hostname else {}), **(labels or {})},
        created=created,
        addresses=(Address(type="InternalIP", address=ip),) if ip else (),
    )


@pytest.fixture
def index() -> NodeIndex:
    made = NodeIndex()
    for one in (
        node("gpu-1", ip="10.0.0.1", hostname="rack1-gpu-1"),
        node("gpu-2", ip="10.0.0.2"),
        node("gpu-3.dc.example.com", ip="fd00::3"),
        node("twin.a.example.com"),
        node("twin.b.example.com"),
    ):
        made.on_event(None, one)
    return made


def ask(index: NodeIndex, labels: dict[str, str], **options: Any) -> Answer:
    pods = options.pop("pods", {})
    return resolve(Subject(labels, **options), RULES, index, pods)


def named(answer: Answer) -> str:
    assert isinstance(answer, Found), answer
    return answer.node


def refused(answer: Answer) -> Reason:
    assert isinstance(answer, Refused), answer
    assert answer.why
    return answer.reason


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param({"node": "gpu-1"}, "gpu-1", id="name"),
        pytest.param({"node": "GPU-1 "}, "gpu-1", id="case and space"),
        pytest.param({"node": "rack1-gpu-1"}, "gpu-1", id="hostname label"),
        pytest.param({"node": "gpu-3"}, "gpu-3.dc.example.com", id="short of a full name"),
        pytest.param({"node": "gpu-1.dc.example.com"}, "gpu-1", id="full of a short name"),
        pytest.param({"node": "10.0.0.2"}, "gpu-2", id="internal address"),
        pytest.param({"instance": "10.0.0.2:9100"}, "gpu-2", id="instance with port"),
        pytest.param({"instance": "[fd00:0::3]:9100"}, "gpu-3.dc.example.com", id="IPv6"),
        pytest.param({"instance": "gpu-2:9100"}, "gpu-2", id="instance by name"),
        pytest.param({"kubernetes_node": "gpu-2"}, "gpu-2", id="kubernetes_node"),
        pytest.param({"nodename": "gpu-2"}, "gpu-2", id="nodename"),
        pytest.param({"Hostname": "gpu-2"}, "gpu-2", id="Hostname of DCGM Exporter"),
        pytest.param({"hostname": "gpu-2"}, "gpu-2", id="hostname since its release 4.6"),
        pytest.param(
            {"exported_node": "gpu-1", "node": "gpu-2"}, "gpu-1", id="exported_node before node"
        ),
        pytest.param(
            {"Hostname": "dcgm-exporter-x7k2p", "node": "gpu-1"}, "gpu-1", id="Hostname of a pod"
        ),
        pytest.param(
            {"node": "gpu-1", "instance": "10.0.0.2:9400"}, "gpu-1", id="node before instance"
        ),
        pytest.param({"node": "gpu-1", "Hostname": "gpu-1"}, "gpu-1", id="two that agree"),
        pytest.param({"node": "", "instance": "gpu-2"}, "gpu-2", id="an empty label is none"),
    ],
)
def test_it_is_named(index: NodeIndex, labels: dict[str, str], expected: str) -> None:
    assert named(ask(index, labels)) == expected


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        pytest.param({"alertname": "X"}, Reason.NO_LABEL, id="nothing"),
        pytest.param({"node": "gpu-9"}, Reason.UNKNOWN_NODE, id="unknown"),
        pytest.param(
            {"node": "gone", "instance": "10.0.0.2:1"}, Reason.UNKNOWN_NODE, id="address reused"
        ),
        pytest.param(
            {"exported_node": "gone", "node": "gpu-1"}, Reason.UNKNOWN_NODE, id="scraper's node"
        ),
        pytest.param({"node": "twin"}, Reason.AMBIGUOUS, id="two of a short name"),
        pytest.param({"node": "gpu-1", "Hostname": "gpu-2"}, Reason.CONFLICT, id="two nodes"),
        pytest.param({"instance": "10.5.5.5:9400"}, Reason.NO_LABEL, id="a pod of no exporter"),
        pytest.param(
            {"job": KSM, "instance": "10.0.0.1:8080"}, Reason.NO_LABEL, id="instance of KSM"
        ),
        pytest.param(
            {"job": KSM, "namespace": "m", "pod": "ksm-0"}, Reason.NO_LABEL, id="pod of KSM"
        ),
        pytest.param({"job": "blackbox", "instance": "10.0.0.1"}, Reason.NO_LABEL, id="blackbox"),
    ],
)
def test_it_is_refused(index: NodeIndex, labels: dict[str, str], reason: Reason) -> None:
    assert refused(ask(index, labels)) is reason


def test_two_nodes_of_one_address_are_ambiguous(index: NodeIndex) -> None:
    index.on_event(None, node("other", ip="10.0.0.2"))
    assert refused(ask(index, {"instance": "10.0.0.2:9100"})) is Reason.AMBIGUOUS


def test_an_exporters_pod_stands_for_its_node(index: NodeIndex) -> None:
    labels = {**DCGM, "namespace": "gpu", "pod": "dcgm-x", "instance": "10.244.0.7:9400"}
    key = PodKey("gpu", "dcgm-x")
    assert ask(index, labels) == Wanted(key)
    assert named(ask(index, labels, pods={key: PodPlace("gpu-2")})) == "gpu-2"
    assert refused(ask(index, labels, pods={key: PodPlace()})) is Reason.POD


def test_an_exporters_pod_is_found_by_its_address(index: NodeIndex) -> None:
    labels = {**DCGM, "instance": "10.244.0.7:9400"}
    key = PodKey(ip="10.244.0.7")
    assert ask(index, labels) == Wanted(key)
    assert named(ask(index, labels, pods={key: PodPlace("gpu-2")})) == "gpu-2"


def test_a_pod_younger_than_the_alert_is_another_pod(index: NodeIndex) -> None:
    labels, key = {**DCGM, "instance": "10.244.0.7:9400"}, PodKey(ip="10.244.0.7")
    place = {key: PodPlace("gpu-2", created=2e9 + 1000.0)}
    assert refused(ask(index, labels, pods=place, starts_at=2e9)) is Reason.POD


@pytest.mark.parametrize("place", [PodPlace("gpu-1"), PodPlace()], ids=["there", "not known"])
def test_the_node_of_kube_state_metrics_itself_is_refused(
    index: NodeIndex, place: PodPlace
) -> None:
    """Relabelling overwrote ``node``: every fault would be one of the node it runs on."""
    labels = {**OF_KSM, "node": "gpu-1"}
    pods = {PodKey(ip="10.1.0.9"): place}
    one = frozenset({"gpu-1"})
    assert ask(index, labels, speaks_of=one) == Wanted(PodKey(ip="10.1.0.9"))
    assert refused(ask(index, labels, speaks_of=one, pods=pods)) is Reason.SCRAPER


def test_kube_state_metrics_that_keeps_its_labels_is_believed(index: NodeIndex) -> None:
    labels = {**OF_KSM, "node": "gpu-1"}
    elsewhere = {PodKey(ip="10.1.0.9"): PodPlace("gpu-2")}
    assert named(ask(index, labels, speaks_of=frozenset({"gpu-1"}), pods=elsewhere)) == "gpu-1"
    assert named(ask(index, labels, speaks_of=frozenset({"gpu-1", "gpu-2"}))) == "gpu-1"
    assert named(ask(index, {**OF_KSM, "exported_node": "gpu-1", "node": "gpu-2"})) == "gpu-1"


def test_an_alert_older_than_its_node_is_about_another_of_that_name(index: NodeIndex) -> None:
    index.on_event(node("gpu-1"), None)
    index.on_event(None, node("gpu-1", created="2026-06-01T12:00:00Z"))
    noon = 1780315200.0
    assert refused(ask(index, {"node": "gpu-1"}, starts_at=noon - 3600)) is Reason.OLDER
    assert named(ask(index, {"node": "gpu-1"}, starts_at=noon - 30)) == "gpu-1"  # skew
    assert named(ask(index, {"node": "gpu-1"}, starts_at=noon + 3600)) == "gpu-1"


@pytest.mark.parametrize(
    ("after", "taken"), [(None, False), (30.0, False), (359.0, False), (361.0, True)]
)
def test_an_alert_that_was_sent_since_is_about_the_present_node(
    index: NodeIndex, after: float | None, *, taken: bool
) -> None:
    noon = 1780315200.0
    index.on_event(node("gpu-1"), None)
    index.on_event(None, node("gpu-1", created="2026-06-01T12:00:00Z"))
    sent = 0.0 if after is None else noon + after
    answer = ask(index, {"node": "gpu-1"}, starts_at=noon - 3600, updated_at=sent)
    assert isinstance(answer, Found) is taken


def test_the_index_follows_the_nodes(index: NodeIndex) -> None:
    old = node("gpu-2", ip="10.0.0.2")
    before = index.version
    index.on_event(old, node("gpu-2", ip="10.0.0.2"))
    assert index.version == before, "a heartbeat is no change"
    index.on_event(old, node("gpu-2", ip="10.0.0.22"))
    assert refused(ask(index, {"instance": "10.0.0.2:1"})) is Reason.NO_LABEL
    assert named(ask(index, {"instance": "10.0.0.22:1"})) == "gpu-2"
    index.on_event(node("gpu-2", ip="10.0.0.22"), None)
    assert refused(ask(index, {"node": "gpu-2"})) is Reason.UNKNOWN_NODE
