"""All else that is written, with its line in the audit log: pods, objects, conditions, calls.

The same classes as the plain ones, so that who uses them need not know. Of what a write is for
(node, policy, session, step), the task that does it says in the log's context, see
:func:`remediator.act.work.context_of`.

What is our own book-keeping has no line: the Lease, our ConfigMaps, Events, records, the status of
policies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from remediator.kube.dynamic import Json, Kind, ObjectApi
from remediator.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    NotFound,
    ServerError,
    Unreachable,
)
from remediator.kube.lease import NotLeading
from remediator.kube.node_status import NodeConditions
from remediator.kube.objects import Condition, Node
from remediator.kube.pods import ApiPods, Pod
from remediator.record.audit import WriteResult, audit_other


NODE_ANNOTATION: Final = "gpu-remediator.io/node"
CUT_OFF: Final = "called off before it was answered"


class AuditedPods(ApiPods):
    """Evicts and deletes pods, each with its line."""

    async def evict(self, pod: Pod, *, grace: float | None = None) -> None:
        """See `ApiPods.evict`."""
        with _line("evict", **_of_pod(pod, "eviction accepted", grace)):
            await super().evict(pod, grace=grace)

    async def delete(self, pod: Pod, *, grace: float | None = None) -> None:
        """See `ApiPods.delete`."""
        with _line("delete", **_of_pod(pod, "deleted", grace)):
            await super().delete(pod, grace=grace)


class AuditedObjects(ObjectApi):
    """Creates and deletes objects, each with its line."""

    async def create(self, obj: Json) -> Json:
        """See `ObjectApi.create`."""
        metadata = obj["metadata"]
        what = _named(Kind(obj["apiVersion"], obj["kind"]), metadata.get("namespace"), metadata)
        node = (metadata.get("annotations") or {}).get(NODE_ANNOTATION, "")
        after = {"exists": True, "labels": metadata.get("labels") or {}}  # a spec may hold secrets
        with _line("create", object=what, node=node, before=None, after=after) as said:
            made = await super().create(obj)
            said["object_uid"] = (made.get("metadata") or {}).get("uid", "")
        return made

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        """See `ObjectApi.delete`."""
        what = _named(kind, namespace, {"name": name})
        with _line("delete", object=what, object_uid=uid, before={"exists": True}, after=None):
            await super().delete(kind, namespace, name, uid=uid)


class AuditedConditions(NodeConditions):
    """Writes conditions of nodes, each time with a line."""

    async def write(self, node: Node, wanted: Mapping[str, Condition | None], now: float) -> None:
        """See `NodeConditions.write`."""
        before = {kind: _condition(node.condition(kind)) for kind in wanted}
        after = {kind: _condition(one) for kind, one in wanted.items()}
        who = {"node": node.name, "uid": node.uid, "object": f"Node {node.name}"}
        with _line("condition", **who, before=before, after=after):
            await super().write(node, wanted, now)


def audit_call(endpoint: str, taken: bool | None, said: str) -> None:  # noqa: FBT001 - as Called
    """Write the line of one call of a step ``webhook``; ``taken`` None: nobody knows."""
    result = {True: WriteResult.DONE, False: WriteResult.FAILED, None: WriteResult.UNKNOWN}[taken]
    reason = "" if taken else said
    after = {"answer": said} if taken is not None else None
    what = f"endpoint {endpoint}"
    audit_other("webhook", result=result, reason=reason, object=what, before=None, after=after)


@contextmanager
def audited(action: str, **fields: Any) -> Iterator[dict[str, Any]]:
    """Write a line for what is done within. What is put into the result stands in it, too."""
    with _line(action, **fields) as said:
        yield said


def result_of(error: ApiError | NotLeading) -> WriteResult:
    """Return what became of a write that was answered with an error."""
    match error:
        case AlreadyExists():
            return WriteResult.FAILED
        case NotFound():
            return WriteResult.GONE
        case Conflict():
            return WriteResult.CONFLICT
        case Unreachable() | ServerError():
            return WriteResult.UNKNOWN
        case _:
            return WriteResult.FAILED


@contextmanager
def _line(action: str, **fields: Any) -> Iterator[dict[str, Any]]:
    said = dict(fields)
    try:
        yield said
    except (ApiError, NotLeading) as error:
        audit_other(action, result=result_of(error), reason=str(error), **said)
        raise
    except asyncio.CancelledError:
        audit_other(action, result=WriteResult.UNKNOWN, reason=CUT_OFF, **said)
        raise
    audit_other(action, result=WriteResult.DONE, **said)


def _of_pod(pod: Pod, done: str, grace: float | None) -> dict[str, Any]:
    """Return what a line says of a pod."""
    now = "terminating" if pod.terminating else pod.phase
    asked = {} if grace is None else {"grace_seconds": grace}
    return {
        "node": pod.node,
        "object": f"Pod {pod.name}",
        "object_uid": pod.uid,
        "before": {"pod": now},
        "after": {"pod": done, **asked},
    }


def _named(kind: Kind, namespace: str | None, metadata: Mapping[str, Any]) -> str:
    place = f"{namespace}/" if namespace else ""
    return f"{kind.kind} {place}{metadata['name']}"


def _condition(one: Condition | None) -> str | None:
    return None if one is None else f"{one.status}, {one.reason}: {one.message}"
