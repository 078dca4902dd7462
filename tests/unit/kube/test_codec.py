"""Bytes to objects: tolerant of the incomplete, loud about the odd, thrifty with memory."""

import json
from typing import Any

import pytest

from remediator.kube.codec import (
    Codec,
    DecodeError,
    NodeNarrower,
    StringPool,
    WireNode,
    decode_status,
)
from remediator.kube.objects import Node, epoch_seconds


def node_json(name: str = "n1", **changes: Any) -> dict[str, Any]:
    node: dict[str, Any] = {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "labels": {"pool": "a"},
            "annotations": {"gpu-remediator.io/session": "{}", "other.io/x": "y", "z": "z"},
            "managedFields": [{"manager": "kubelet"}],
        },
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": True},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "t1"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {"bootID": "b1", "kernelVersion": "6"},
            "images": [{"names": ["a"]}],
        },
    }
    node.update(changes)
    return node


def managed(*managers: str) -> list[dict[str, Any]]:
    """Return managed fields as the server writes them: these set `unschedulable` last."""
    others: dict[str, Any] = {
        "manager": "kubelet",
        "operation": "Update",
        "fieldsV1": {"f:status": {"f:x": {}}},
    }
    ours: dict[str, Any] = {"f:spec": {"f:unschedulable": {}}}
    return [others, *({"manager": one, "fieldsV1": ours} for one in managers)]


@pytest.fixture
def codec() -> Codec[WireNode, Node]:
    return Codec(WireNode, NodeNarrower())


def page_of(*items: Any, **meta: str) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "9", **meta}, "items": items}).encode()


def event_of(kind: str, item: Any) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode()


def test_node_keeps_what_decisions_rest_on(codec: Codec[WireNode, Node]) -> None:
    node = codec.one(json.dumps(node_json()).encode())

    assert node.name == "n1"
    assert node.unschedulable
    assert node.boot_id == "b1"
    assert node.annotations == {"gpu-remediator.io/session": "{}"}
    assert node.dropped_annotations == 2
    assert [t.key for t in node.taints] == ["k"]
    ready = node.condition("Ready")
    assert ready is not None
    assert ready.status == "True"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"spec": {}}, id="no-spec-fields"),
        pytest.param({"spec": None, "status": None}, id="null-spec-and-status"),
        pytest.param({"status": {"conditions": [{"type": "Ready"}]}}, id="condition-no-status"),
        pytest.param({"spec": {"taints": [{"key": "a"}]}}, id="taint-no-effect"),
        pytest.param({"status": {"conditions": None, "addresses": None}}, id="null-lists"),
        pytest.param({"brandNewField": {"deep": [1]}}, id="unknown-field"),
    ],
)
def test_incomplete_node_is_readable(codec: Codec[WireNode, Node], changes: Any) -> None:
    page = codec.page(page_of(node_json(**changes), node_json("n2")))

    assert page.unreadable == {}
    assert [codec.narrow(item, None).name for item in page.items] == ["n1", "n2"]


def test_what_a_condition_says_has_the_length_that_the_api_allows_elsewhere(
    codec: Codec[WireNode, Node],
) -> None:
    """The API server does not check it of nodes."""
    long = {"type": "A", "status": "True", "reason": "r" * 99_999, "message": "m" * 99_999}
    (item,) = codec.page(page_of(node_json(status={"conditions": [long]}))).items
    (kept,) = codec.narrow(item, None).conditions
    assert (kept.reason, kept.message) == ("r" * 1024, "m" * 32768)


def test_one_odd_node_does_not_hide_the_others(codec: Codec[WireNode, Node]) -> None:
    odd = node_json("odd", spec={"taints": "not a list"})

    page = codec.page(page_of(node_json("n1"), odd, node_json("n3"), **{"continue": "tok"}))

    assert [item.metadata.name for item in page.items] == ["n1", "n3"]
    assert list(page.unreadable) == ["odd"]
    assert "taints" in page.unreadable["odd"]
    assert (page.resource_version, page.continue_token) == ("9", "tok")


@pytest.mark.parametrize("body", [b"", b"{", b"<html>", b'"x"', b'{"items": 3}'])
def test_no_list_is_a_decode_error(codec: Codec[WireNode, Node], body: bytes) -> None:
    with pytest.raises(DecodeError):
        codec.page(body)


def test_error_event_is_read_with_and_without_the_field_status(
    codec: Codec[WireNode, Node],
) -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}

    for body in (status, {**status, "status": "Failure"}):
        event = codec.event(event_of("ERROR", body))

        assert event.error is not None
        assert (event.error.code, event.error.reason) == (410, "Expired")


def test_bookmark_carries_its_version(codec: Codec[WireNode, Node]) -> None:
    event = codec.event(event_of("BOOKMARK", {"metadata": {"resourceVersion": "77"}}))

    assert event.object is not None
    assert event.object.metadata.resource_version == "77"


def test_odd_event_names_its_object(codec: Codec[WireNode, Node]) -> None:
    event = codec.event(event_of("MODIFIED", node_json("odd", status=[1])))

    assert event.unreadable is not None
    assert event.unreadable[0] == "odd"


def test_heartbeat_shares_everything_else_with_the_version_before(
    codec: Codec[WireNode, Node],
) -> None:
    first = codec.narrow(codec.page(page_of(node_json())).items[0], None)
    beat = node_json()
    beat["metadata"]["resourceVersion"] = "8"
    beat["status"]["conditions"][0]["lastHeartbeatTime"] = "t2"

    second = codec.narrow(codec.page(page_of(beat)).items[0], first)

    assert second.resource_version == "8"
    assert second.labels is first.labels
    assert second.annotations is first.annotations
    assert second.taints is first.taints
    assert second.addresses is first.addresses
    assert second.conditions[0].type is first.conditions[0].type
    assert second.conditions[0].last_heartbeat_time == "t2"


def test_strings_are_shared_between_nodes(codec: Codec[WireNode, Node]) -> None:
    one, two = (
        codec.narrow(item, None) for item in codec.page(page_of(node_json(), node_json("b"))).items
    )

    assert one.labels["pool"] is two.labels["pool"]


def test_string_pool_is_bounded() -> None:
    pool = StringPool(limit=3)

    for number in range(100):
        pool(f"text {number}")

    assert len(pool._pool) <= 3


def test_anything_that_is_no_status_becomes_its_message() -> None:
    assert decode_status(b"<html>bad gateway</html>").message == "<html>bad gateway</html>"


def test_times_are_read_and_unreadable_ones_are_nothing() -> None:
    assert epoch_seconds("1970-01-01T00:01:00Z") == 60.0
    assert epoch_seconds("1970-01-01T00:01:00.500000Z") == 60.5
    assert epoch_seconds("yesterday") is None
    assert epoch_seconds(None) is None


@pytest.mark.parametrize(
    ("managers", "cordoned", "others"),
    [
        (["gpu-remediator"], True, False),
        (["kubectl-cordon"], True, True),
        (["kubectl-cordon", "gpu-remediator"], True, False),
        (["kubectl-cordon"], None, False),
        ([], True, False),
    ],
    ids=["us", "somebody", "both", "not cordoned", "nobody knows"],
)
def test_who_cordoned_is_read_from_the_managed_fields(
    codec: Codec[WireNode, Node], managers: list[str], cordoned: object, others: object
) -> None:
    wire = node_json(spec={"unschedulable": cordoned})
    wire["metadata"]["managedFields"] = managed(*managers)
    assert codec.one(json.dumps(wire).encode()).cordoned_by_others is others
