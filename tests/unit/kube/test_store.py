"""The store: who is told of what."""

from typing import Any

import msgspec
import pytest

from remediator.kube.objects import Address, Condition, Node
from remediator.kube.store import Store
from tests.unit.kube.build import bare_node


def node(name: str = "n1", version: str = "1", **changes: Any) -> Node:
    made = bare_node(
        name=name,
        uid=f"uid-{name}",
        resource_version=version,
        labels={"kubernetes.io/hostname": f"host-{name}", "pool": "a"},
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
    return Store()


@pytest.fixture
def told(store: Store[Node]) -> list[tuple[str | None, str | None]]:
    """What the handler heard, as versions."""
    heard: list[tuple[str | None, str | None]] = []

    def version(of: Node | None) -> str | None:
        return f"{of.name}/{of.resource_version}" if of else None

    store.on_event(lambda old, new: heard.append((version(old), version(new))))
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


def test_failing_handler_is_told_and_silences_nobody() -> None:
    failures: list[None] = []
    store: Store[Node] = Store(failed=lambda: failures.append(None))
    heard: list[Node | None] = []

    def fail(_old: Node | None, _new: Node | None) -> None:
        raise ValueError("bug")

    store.on_event(fail)
    store.on_event(lambda _old, new: heard.append(new))

    store.upsert(node())

    assert len(heard) == 1
    assert len(failures) == 1
    assert "n1" in store
