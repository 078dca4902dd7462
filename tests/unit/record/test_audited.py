"""Each kind of write that is no patch of a node has its line, whatever becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from remediator.kube.access import access_of
from remediator.kube.dynamic import Kind
from remediator.kube.errors import (
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    ServerError,
    Throttled,
    TimedOut,
)
from remediator.kube.objects import Condition
from remediator.kube.pods import Pod
from remediator.kube.tenure import NotLeading
from remediator.record.audited import (
    AuditedConditions,
    AuditedObjects,
    AuditedPods,
    audit_call,
    audited,
)
from tests.unit.kube.build import bare_node


JOB = Kind("batch/v1", "Job")
POD = Pod(name="team/train-0", uid="u-pod", node="n1", phase="Running")
ANSWER = {"metadata": {"name": "reset-1", "uid": "u-job"}, "resources": [
    {"name": "jobs", "kind": "Job", "namespaced": True}
]}  # fmt: skip
MANIFEST = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {
        "name": "reset-1",
        "namespace": "gpu",
        "labels": {"team": "gpu"},
        "annotations": {"gpu-remediator.io/node": "n1"},
    },
    "spec": {"env": [{"name": "PASS", "value": "hidden"}]},
}


class Api:
    """Answers everything alike; writes with an error, if it is told one."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    async def request(self, method: str, _target: str, *_: Any, **__: Any) -> bytes:
        if method != "GET" and self.error is not None:
            raise self.error
        return json.dumps(ANSWER).encode()


def made(kind: type[Any], error: BaseException | None = None) -> Any:
    return kind(api=Api(error), check=lambda: None)


async def line(write: Awaitable[Any]) -> dict[str, Any]:
    trouble = (ApiError, NotLeading, asyncio.CancelledError)
    with capture_logs() as logs, contextlib.suppress(*trouble):
        await write
    (only,) = [one for one in logs if one["event"] == "write"]
    return dict(only)


async def test_an_eviction() -> None:
    assert await line(made(AuditedPods).evict(POD, grace=30.0)) == {
        "event": "write", "log_level": "info", "action": "evict", "mode": "enforce",
        "result": "done", "node": "n1", "object": "Pod team/train-0", "object_uid": "u-pod",
        "before": {"pod": "Running"},
        "after": {"pod": "eviction accepted", "grace_seconds": 30.0},
    }  # fmt: skip


async def test_a_deletion_of_a_pod() -> None:
    said = await line(made(AuditedPods).delete(POD))
    assert (said["action"], said["before"], said["after"]) == (
        *("delete", {"pod": "Running"}),
        {"pod": "deleted"},
    )


async def test_a_created_object_without_what_may_be_secret() -> None:
    said = await line(made(AuditedObjects).create(MANIFEST))
    assert said["object"] == "Job gpu/reset-1"
    assert (said["node"], said["object_uid"]) == ("n1", "u-job")
    assert said["before"] is None
    assert said["after"] == {"exists": True, "labels": {"team": "gpu"}}
    assert "hidden" not in str(said)


async def test_a_deleted_object() -> None:
    said = await line(made(AuditedObjects).delete(JOB, "gpu", "reset-1", uid="u-job"))
    assert (said["action"], said["object"]) == ("delete", "Job gpu/reset-1")
    assert (said["before"], said["after"]) == ({"exists": True}, None)


async def test_conditions_of_a_node() -> None:
    there = Condition("Drained", "False", "AdminRequested", "0 of 3 pods gone")
    node = bare_node(
        conditions=(there,),
    )
    wanted = {"Drained": Condition("Drained", "True", "DrainCompleted", "3 pods"), "Other": None}
    said = await line(made(AuditedConditions).write(node, wanted, 1_000_000.0))
    assert (said["action"], said["node"], said["uid"]) == ("condition", "n1", "u1")
    assert said["before"] == {"Drained": "False, AdminRequested: 0 of 3 pods gone", "Other": None}
    assert said["after"] == {"Drained": "True, DrainCompleted: 3 pods", "Other": None}


async def test_anything_else() -> None:
    async def announce() -> None:
        with audited("announce", object="EndpointSlice", before=None, after={"leads": "a"}):
            pass

    said = await line(announce())
    assert (said["action"], said["result"], said["after"]) == ("announce", "done", {"leads": "a"})


@pytest.mark.parametrize(
    ("taken", "result"), [(True, "done"), (False, "failed"), (None, "unknown")]
)
async def test_a_call_of_a_webhook(taken: bool | None, result: str) -> None:  # noqa: FBT001
    async def call() -> None:
        audit_call("reset", taken, "HTTP 200")

    said = await line(call())
    assert (said["action"], said["object"], said["result"]) == ("webhook", "endpoint reset", result)


WRITES: dict[str, Callable[[BaseException], Awaitable[Any]]] = {
    "evict": lambda error: made(AuditedPods, error).evict(POD),
    "create": lambda error: made(AuditedObjects, error).create(MANIFEST),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("error", "result"),
    [
        (Forbidden, "failed"),
        (Throttled, "failed"),
        (Conflict, "conflict"),
        (NotFound, "gone"),
        (ServerError, "unknown"),
        (TimedOut, "unknown"),
    ],
)
async def test_what_was_not_done_says_so(write: str, error: type[ApiError], result: str) -> None:
    said = await line(WRITES[write](error(access_of("POST", "/api/v1/pods"))))
    assert (said["result"], said["log_level"]) == (result, "warning")
    assert said["reason"]


async def test_what_was_cut_off_may_have_been_done() -> None:
    said = await line(WRITES["evict"](asyncio.CancelledError()))
    assert said["result"] == "unknown"


async def test_who_wants_it_is_said_by_the_task() -> None:
    with (
        capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs,
        structlog.contextvars.bound_contextvars(policy="bus", session="s1", node="other"),
    ):
        await made(AuditedPods).evict(POD)
    assert (logs[0]["policy"], logs[0]["session"], logs[0]["node"]) == ("bus", "s1", "n1")
