"""Every request that changes something asks, right before it is sent, whether we still lead.

A lease may be lost while a request waits for its turn, for a template or for the answer to
another one: the answer must not be older than the last thing that was waited for.
"""

from __future__ import annotations

import ast
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from remediator import kube
from remediator.kube.access import access_of
from remediator.kube.configmap import ConfigMaps
from remediator.kube.custom import CustomObjects
from remediator.kube.dynamic import Kind, ObjectApi
from remediator.kube.endpoint import point_to
from remediator.kube.errors import AlreadyExists
from remediator.kube.events import EventRecorder
from remediator.kube.node_status import NodeConditions
from remediator.kube.objects import ConfigMap
from remediator.kube.patch import ApiNodeWriter, NodePatch
from remediator.kube.pods import ApiPods, Pod
from remediator.kube.tenure import NotLeading
from tests.unit.kube.build import bare_node


WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
WITHOUT: Final = {"lease.Elector._create", "lease.Elector._patch"}
"""Who takes the lease does not lead yet; whoever held it before is told by the server."""

JOB: Final = Kind("batch/v1", "Job")
BODY: Final = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a", "namespace": "b"}}
MAP: Final = ConfigMap("a", "b", "u", "1", {})
POD: Final = Pod(name="b/a", uid="u")

Write = Callable[[Any, Callable[[], None]], Awaitable[object]]


async def event(api: Any, check: Callable[[], None]) -> None:
    recorder = EventRecorder(api=api, check=check)
    recorder.record(node="n1", uid="u1", kind="Normal", reason="Cordoned", message="m")
    await recorder.flush(1)
    if recorder.dropped:
        raise NotLeading("it was dropped")


async def event_again(api: Any, check: Callable[[], None]) -> None:
    """Count an Event that turned out to be there; `check` is asked from then on."""
    api.there = True

    def once_known() -> None:
        if api.said:
            api.said.clear()
            check()

    await event(api, once_known)


TABLE: Final[dict[str, tuple[str, Write]]] = {
    "configmap.ConfigMaps.write": (
        "POST",
        lambda api, check: ConfigMaps(api=api, namespace="b", check=check).write(
            "a", {}, known=None
        ),
    ),
    "configmap.ConfigMaps.write/known": (
        "PATCH",
        lambda api, check: ConfigMaps(api=api, namespace="b", check=check).write(
            "a", {}, known=MAP
        ),
    ),
    "custom.CustomObjects.create": (
        "POST",
        lambda api, check: CustomObjects(api=api, namespace="b", plural="as", check=check).create(
            {}
        ),
    ),
    "custom.CustomObjects.write_status": (
        "PATCH",
        lambda api, check: CustomObjects(
            api=api, namespace="b", plural="as", check=check
        ).write_status("a", {}),
    ),
    "custom.CustomObjects.delete": (
        "DELETE",
        lambda api, check: CustomObjects(api=api, namespace="b", plural="as", check=check).delete(
            "a"
        ),
    ),
    "dynamic.ObjectApi.create": (
        "POST",
        lambda api, check: ObjectApi(api=api, check=check).create(BODY),
    ),
    "dynamic.ObjectApi.delete": (
        "DELETE",
        lambda api, check: ObjectApi(api=api, check=check).delete(JOB, "b", "a", uid="u"),
    ),
    "endpoint.point_to": (
        "PATCH",
        lambda api, check: point_to(api, namespace="b", ip="10.0.0.1", port=1, check=check),
    ),
    "events.EventRecorder._create": ("POST", event),
    "events.EventRecorder._patch": ("PATCH", event_again),
    "node_status.NodeConditions.write": (
        "PATCH",
        lambda api, check: NodeConditions(api=api, check=check).write(bare_node(), {}, 0.0),
    ),
    "patch.ApiNodeWriter.patch_node": (
        "PATCH",
        lambda api, check: ApiNodeWriter(api=api, check=check).patch_node(
            NodePatch.of(bare_node(), unschedulable=True)
        ),
    ),
    "pods.ApiPods.evict": ("POST", lambda api, check: ApiPods(api=api, check=check).evict(POD)),
    "pods.ApiPods.delete": ("DELETE", lambda api, check: ApiPods(api=api, check=check).delete(POD)),
}


class Server:
    """Knows Jobs, and answers everything else with one object.

    `said`: what was asked of it; `there`: what is to be created.
    """

    def __init__(self) -> None:
        self.said: list[str] = []
        self.there = False

    async def request(self, method: str, target: str, *_body: object, **_options: object) -> bytes:
        self.said.append(method)
        if method == "POST" and self.there:
            raise AlreadyExists(access_of(method, target))
        metadata = {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "2"}
        jobs = [{"name": "jobs", "kind": "Job", "namespaced": True}]
        return msgspec.json.encode({"metadata": metadata, "resources": jobs, "count": 1})


@pytest.mark.parametrize("name", TABLE)
async def test_a_write_is_sent_right_after_the_question_whether_we_lead(name: str) -> None:
    method, write = TABLE[name]
    server = Server()
    await write(server, lambda: server.said.append("do we lead?"))
    assert server.said[-2:] == ["do we lead?", method]
    assert WRITES.isdisjoint(server.said[:-1])


@pytest.mark.parametrize("name", TABLE)
async def test_who_does_not_lead_sends_no_write(name: str) -> None:
    _, write = TABLE[name]
    server = Server()

    def check() -> None:
        raise NotLeading("the lease is not ours")

    with pytest.raises(NotLeading):
        await write(server, check)
    assert WRITES.isdisjoint(server.said)


def test_there_is_no_other_way_to_write() -> None:
    """Someone adds one: name it above, too."""
    known = {name.partition("/")[0] for name in TABLE}
    assert set(_writers()) == known | WITHOUT


def _writers() -> Iterator[str]:
    """Name the functions of `remediator.kube` that send a request which changes something."""
    for path in sorted(Path(kube.__path__[0]).glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        yield from (f"{path.stem}.{name}" for name in _within(tree, ""))


def _within(tree: ast.AST, inside: str) -> Iterator[str]:
    for one in ast.iter_child_nodes(tree):
        named = isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        name = ".".join(filter(None, (inside, one.name))) if named else inside  # type: ignore[attr-defined]
        if isinstance(one, ast.Call) and _changes(one):
            yield name
        yield from _within(one, name)


def _changes(call: ast.Call) -> bool:
    first = call.args[0] if call.args else None
    asked = isinstance(call.func, ast.Attribute) and call.func.attr == "request"
    return asked and isinstance(first, ast.Constant) and first.value in WRITES
