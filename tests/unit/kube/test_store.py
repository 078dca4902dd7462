"""The store: who is told of what, and what the indexes find."""

from typing import Any

import msgspec
import pytest

from remediator.kube.objects import Address, Condition, Node
from remediator.kube.store import BY_ADDRESS, BY_HOSTNAME, BY_POOL, Store, node_store


def node(name: str = "n1", version: str = "1", **changes: Any) -> Node:
    made = Node(
        name=name,
        uid=f"uid-{name}",
        resource_version=version,
        labels={"kubernetes.io/hostname": f"host-{name}", "pool": "a"},
        annotations={},
        dropped_annotations=0,
        created=None,
        deleted=None,
        unschedulable=False,
        taints=(),
        conditions=(
            Condition("Ready", "True", "ok", "fine", "t1", "t0"),
            Condition("GPULost", "False", "", "", "t1", "t0"),
        ),
        addresses=(Address("InternalIP", f"ip-{name}"), Address("Hostname", name)),
        boot_id="b1",
    )
    return msgspec.structs.replace(made, **changes)


@pytest.fixture
def store() -> Store[Node]:
    return node_store(["missing", "pool"])


@pytest.fixture
def told(store: Store[Node]) -> list[tuple[str | None, str | None]]:
    """What the handler of significant changes heard, as versions."""
    heard: list[tuple[str | None, str | None]] = []

    def version(of: Node | None) -> str | None:
        return f"{of.name}/{of.resource_version}" if of else None

    store.on_change(lambda old, new: heard.append((version(old), version(new))))
    return heard


def test_handlers_hear_of_appearing_changing_and_going(
    store: Store[Node], told: list[tuple[str | None, str | None]]
) -> None:
    store.upsert(node())
    store.upsert(node(version="2", unschedulable=True))
    store.remove("n1")
    store.remove("n1")

    assert told == [(None, "n1/1"), ("n1/1", "n1/2"), ("n1/2", None)]


def test_same_version_again_is_silent(
    store: Store[Node], told: list[tuple[str | None, str | None]]
) -> None:
    store.upsert(node())
    store.upsert(node())

    assert told == [(None, "n1/1")]


def test_node_of_the_same_name_is_another_node(
    store: Store[Node], told: list[tuple[str | None, str | None]]
) -> None:
    store.upsert(node())
    store.upsert(node(version="9", uid="another"))

    assert told == [(None, "n1/1"), ("n1/1", None), (None, "n1/9")]


HEARTBEAT = (
    Condition("Ready", "True", "ok", "fine", "t2", "t0"),
    Condition("GPULost", "False", "", "", "t2", "t0"),
)


@pytest.mark.parametrize(
    ("changes", "significant"),
    [
        pytest.param({}, False, id="only-the-version"),
        pytest.param({"conditions": HEARTBEAT}, False, id="heartbeat"),
        pytest.param({"conditions": HEARTBEAT[::-1]}, False, id="other-order"),
        pytest.param({"conditions": HEARTBEAT[:1]}, True, id="condition-gone"),
        pytest.param(
            {"conditions": (HEARTBEAT[0], Condition("GPULost", "True", "", "", "t2", "t0"))},
            True,
            id="condition-status",
        ),
        pytest.param(
            {"conditions": (HEARTBEAT[0], Condition("GPULost", "False", "Xid", "", "t2", "t0"))},
            True,
            id="condition-reason",
        ),
        pytest.param({"unschedulable": True}, True, id="cordon"),
        pytest.param({"annotations": {"a": "b"}}, True, id="annotation"),
        pytest.param({"labels": {"pool": "b"}}, True, id="label"),
        pytest.param({"boot_id": "b2"}, True, id="reboot"),
        pytest.param({"deleted": "t"}, True, id="deletion-begun"),
        pytest.param({"addresses": ()}, True, id="address"),
    ],
)
def test_heartbeats_reach_only_who_asks_for_every_event(
    store: Store[Node], changes: dict[str, Any], *, significant: bool
) -> None:
    every: list[object] = []
    important: list[object] = []
    store.upsert(node())
    store.on_event(lambda _old, new: every.append(new))
    store.on_change(lambda _old, new: important.append(new))

    store.upsert(node(version="2", **changes))

    assert len(every) == 1
    assert bool(important) is significant


def test_indexes_follow_the_objects(store: Store[Node]) -> None:
    store.upsert(node("a"))
    store.upsert(node("b"))

    assert [n.name for n in store.by(BY_ADDRESS, "ip-a")] == ["a"]
    assert [n.name for n in store.by(BY_HOSTNAME, "host-b")] == ["b"]
    assert {n.name for n in store.by(BY_POOL, "a")} == {"a", "b"}

    store.upsert(node("a", version="2", labels={}, addresses=()))
    store.remove("b")

    assert store.by(BY_ADDRESS, "ip-a") == ()
    assert store.by(BY_HOSTNAME, "host-b") == ()
    assert store.keys(BY_POOL) == ("",)
    assert [n.resource_version for n in store.by(BY_POOL, "")] == ["2"]


def test_failing_handler_is_counted_and_silences_nobody(store: Store[Node]) -> None:
    heard: list[Node | None] = []

    def fail(_old: Node | None, _new: Node | None) -> None:
        raise ValueError("bug")

    store.on_change(fail)
    store.on_change(lambda _old, new: heard.append(new))

    store.upsert(node())

    assert len(heard) == 1
    assert store.handler_errors == 1
    assert "n1" in store
