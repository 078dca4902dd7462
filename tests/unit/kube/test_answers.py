"""What comes back and is none of the API server's: a failure, and never a defect or a success."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import web

from remediator.act.writes import Verdict, write
from remediator.decide.decision import PatchNode
from remediator.kube.access import access_of
from remediator.kube.budgets import list_budgets
from remediator.kube.client import ApiClient, connect
from remediator.kube.config import ApiConfig
from remediator.kube.configmap import ConfigMaps
from remediator.kube.custom import CustomObjects
from remediator.kube.dynamic import Kind, ObjectApi
from remediator.kube.errors import (
    LONGEST_RETRY_AFTER,
    ServerError,
    Throttled,
    Unreachable,
    from_status,
)
from remediator.kube.objects import ConfigMap, Status, StatusDetails
from remediator.kube.patch import ApiNodeWriter, NodePatch
from remediator.kube.pods import ApiPods
from remediator.kube.read import ApiNodeReader
from tests.unit.kube.build import bare_node


KNOWN = ConfigMap("cm", "ns", "u", "1", {})
JOB = Kind("batch/v1", "Job")
MANIFEST = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
PATCH = NodePatch(name="n1", uid="u1", resource_version="1", unschedulable=True)
Call = Callable[[ApiClient], Awaitable[Any]]


def maps(api: ApiClient) -> ConfigMaps:
    return ConfigMaps(api=api, namespace="ns")


def objects(api: ApiClient) -> ObjectApi:
    return ObjectApi(api=api, check=lambda: None)


CALLS: dict[str, Call] = {
    "read a ConfigMap": lambda api: maps(api).read("cm"),
    "create a ConfigMap": lambda api: maps(api).write("cm", {"k": "v"}, known=None),
    "patch a ConfigMap": lambda api: maps(api).write("cm", {"k": "v"}, known=KNOWN),
    "patch a node": lambda api: ApiNodeWriter(api=api, check=lambda: None).patch_node(PATCH),
    "read a node": lambda api: ApiNodeReader(api=api).read_node("n1"),
    "list nodes": lambda api: ApiNodeReader(api=api).list_nodes(),
    "list pods": lambda api: ApiPods(api=api).list_pods("n1"),
    "list budgets": list_budgets,
    "look a kind up": lambda api: objects(api).namespaced(JOB),
    "list records": lambda api: CustomObjects(
        api=api, namespace="ns", plural="remediations"
    ).read_all(),
}


class Says:
    """Stands for the transport, and for something in between that answers 200 to everything."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)

    async def request(self, *_: Any, **__: Any) -> bytes:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def says(*answers: bytes) -> ApiClient:
    return cast("ApiClient", Says(*answers))


@pytest.mark.parametrize("answer", [b"", b"<html>log in</html>", b'"ok"', b"[1]", b"{"], ids=str)
@pytest.mark.parametrize("name", CALLS)
async def test_a_text_of_somebody_else_is_trouble_for_a_while(name: str, answer: bytes) -> None:
    with pytest.raises(ServerError, match="the answer cannot be read"):
        await CALLS[name](says(answer))


async def test_whether_an_object_was_made_is_unknown_if_the_answer_is_none() -> None:
    """Not refused: the caller looks whether it is there."""
    discovery = b'{"resources":[{"name":"jobs","kind":"Job","namespaced":true}]}'
    with pytest.raises(ServerError):
        await objects(says(discovery, b"<html>")).create(MANIFEST)


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b'{"status":"ok"}'], ids=str)
async def test_a_write_to_a_node_is_doubtful_then_and_not_taken_for_done(answer: bytes) -> None:
    effect = PatchNode(name="n1", uid="u1", resource_version="1", unschedulable=True)
    writer = ApiNodeWriter(api=says(answer), check=lambda: None)
    written = await write(effect, base=bare_node(), writer=writer)
    assert (written.verdict, written.node) == (Verdict.DOUBTFUL, None)


@asynccontextmanager
async def gateway(status: int) -> AsyncIterator[ApiClient]:
    """Something before the API server that sends everybody elsewhere."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": "http://login.example.com/"})

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with connect(ApiConfig(f"http://127.0.0.1:{port}")) as api:
            yield api
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [301, 302, 303, 304, 307, 308])
async def test_a_redirect_is_no_success(status: int) -> None:
    async with gateway(status) as api:
        with pytest.raises(ServerError, match=f"redirected .HTTP {status}"):
            await api.request("POST", "/api/v1/namespaces/a/pods/b/eviction", b"{}")
        with pytest.raises(ServerError, match="redirected"):
            async with api.stream("/api/v1/nodes?watch=1", read_timeout=1):
                pass


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("said", ["header", "body"])
async def test_nobody_is_waited_for_longer_than_a_minute(status: int, said: str) -> None:
    """Of a page of maintenance that asks for an hour: the cluster is there again sooner."""
    body = Status(details=StatusDetails(retry_after_seconds=0 if said == "header" else 3600))
    header = 3600.0 if said == "header" else 0.0
    error = from_status(access_of("GET", "/api/v1/nodes"), status, body, retry_after=header)
    assert isinstance(error, Throttled | ServerError)
    assert error.retry_after == LONGEST_RETRY_AFTER


async def test_a_server_whose_name_can_be_none_is_not_reached() -> None:
    async with connect(ApiConfig("http://a..example:6443")) as api:
        with pytest.raises(Unreachable, match="idna"):
            await api.request("GET", "/version")
        with pytest.raises(Unreachable, match="idna"):
            async with api.stream("/api/v1/nodes?watch=1", read_timeout=1):
                pass
