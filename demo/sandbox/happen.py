"""What happens on a node, in the words of a policy test's timeline, done to a Node object.

The changes are the laboratory's own (`remediator.lab`), so that a fault here looks as it does in
`remediator policy test`: what the agent, a kubelet or a person would have written. They are
written with the identity of whoever runs the command; nothing here decides anything.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from pydantic import ValidationError

from node_agent.contract import FAULTS_ANNOTATION, ConditionStatus, ConditionType, Reason
from remediator.kube.codec import Codec, NodeNarrower, WireNode
from remediator.kube.objects import Node
from remediator.lab import nodes as on
from remediator.lab.given import Happens, RebootGiven
from remediator.lab.outside import CHANGES
from remediator.policy.explain import explain
from remediator.policy.problems import PolicyError, Problem, render
from remediator.policy.quantities import Duration
from remediator.policy.yaml import read_documents
from testbed.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH, Api, ApiError, Json


Change = Callable[[Node, float], Node]
_TRIES: Final = 20
_EXAMPLE: Final = "xid: {code: 79}"
_FILE: Final = "entry"
"""What errors call the words on the command line."""
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_CODEC: Final = Codec(WireNode, NodeNarrower(("",)))
"""Keeps every annotation."""


class SandboxError(Exception):
    """What was asked for cannot be done; the message says what can."""


class Entry(Happens):
    """An entry of a timeline that happens now."""

    at: Duration = 0.0


class Patch(NamedTuple):
    """One PATCH of a Node."""

    subresource: str
    content_type: str
    body: Json


def read(text: str) -> Happens:
    """An entry of a timeline without its time, such as `xid: {code: 79}`.

    Raises:
        SandboxError: it is no such entry, or none that is about a node.
    """
    entry = _entry(text)
    known = sorted({*CHANGES, "reboot", "delete"})
    if entry.what not in known:
        raise SandboxError(
            f"{entry.what!r} cannot happen on a sandbox's node; these can: {', '.join(known)}. "
            "For the others there is `remediator policy test`."
        )
    return entry


def _entry(text: str) -> Happens:
    try:
        documents = read_documents(text, file=_FILE)
    except PolicyError as error:
        raise _refused(text, error.problems) from error
    if len(documents) != 1 or not isinstance(documents[0].data, dict):
        raise SandboxError(f"{text!r} is no entry of a timeline: write one as '{_EXAMPLE}'")
    (document,) = documents
    if document.problems:
        raise _refused(text, document.problems)
    try:
        return Entry.model_validate(document.data)
    except ValidationError as error:
        found = explain(document, Entry, error.errors(include_url=False))
        raise _refused(text, found) from error


def _refused(text: str, problems: Sequence[Problem]) -> SandboxError:
    said = "\n".join(render(problem) for problem in problems)
    return SandboxError(f"{text!r} is no entry of a timeline, such as '{_EXAMPLE}':\n{said}")


def play(api: Api, name: str, entry: Happens, *, wait: Callable[[float], None]) -> None:
    """Let it happen on a node, now.

    Args:
        api: with the identity that writes it.
        name: of the node.
        entry: see `read`.
        wait: lets seconds pass, for a restart of the node.

    Raises:
        SandboxError: there is no such node.
    """
    if entry.what == "delete":
        api.delete(f"/api/v1/nodes/{name}", missing_ok=False)
    elif entry.what == "reboot":
        _reboot(api, name, entry.given, wait=wait)
    else:
        change, given = CHANGES[entry.what], entry.given
        write(api, name, lambda node, now: change(node, given, now))


def _reboot(api: Api, name: str, given: RebootGiven, *, wait: Callable[[float], None]) -> None:
    def gone(node: Node, now: float) -> Node:
        return on.with_condition(node, on.READY, "Unknown", "NodeStatusUnknown", now=now)

    def back(node: Node, now: float) -> Node:
        node = on.booted(node, now=now)
        return on.cleared(node, now=now) if given.clears else node

    write(api, name, gone)
    wait(given.takes)
    write(api, name, back)


def checked(node: Node, now: float) -> Node:
    """The node once its agent has looked for the first time, and found it well."""
    for kind in ConditionType:
        node = on.with_condition(node, kind, ConditionStatus.FALSE, Reason.NO_FAULT, now=now)
    return on.cleared(node, now=now)


def beaten(node: Node, now: float) -> Node:
    """The node after a heartbeat of its agent."""
    return on.beaten(node, now=now)


def write(api: Api, name: str, change: Change) -> None:
    """Change a Node, whoever else writes it at the same time.

    Raises:
        SandboxError: there is no such node.
        ApiError: the server refused.
    """
    for _ in range(_TRIES):
        status, raw = api.raw("GET", f"/api/v1/nodes/{name}")
        if status == _NOT_FOUND:
            there = ", ".join(one["metadata"]["name"] for one in api.get("/api/v1/nodes")["items"])
            raise SandboxError(f"there is no node {name!r}; there are: {there}")
        before = _CODEC.one(raw)
        try:
            for patch in patches(before, change(before, time.time())):
                path = f"/api/v1/nodes/{name}{patch.subresource}"
                api.patch(path, patch.body, content_type=patch.content_type)
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
        else:
            return
    raise SandboxError(f"{name} changes too fast: each of {_TRIES} writes was too late")


def patches(before: Node, after: Node) -> Iterator[Patch]:
    """What makes one version of a node of another: what agents and kubelets write, then the rest.

    The first is bound to the version that it rests on.
    """
    version: Json = {"resourceVersion": before.resource_version}
    status, reported = _status(before, after), _texts(before, after, only=FAULTS_ANNOTATION)
    if status or reported:
        metadata = version | ({"annotations": reported} if reported else {})
        yield Patch("/status", STRATEGIC_MERGE_PATCH, {"metadata": metadata, "status": status})
        version = {}
    metadata, spec = _metadata(before, after), _spec(before, after)
    if metadata or spec:
        yield Patch("", MERGE_PATCH, {"metadata": version | metadata, "spec": spec})


def _status(before: Node, after: Node) -> Json:
    known = set(before.conditions)
    new = [msgspec.to_builtins(one) for one in after.conditions if one not in known]
    status: Json = {"conditions": new} if new else {}
    if after.boot_id != before.boot_id:
        status["nodeInfo"] = {"bootID": after.boot_id}
    return status


def _metadata(before: Node, after: Node) -> Json:
    changed = {
        "labels": _changes(before.labels, after.labels),
        "annotations": _texts(before, after, but=FAULTS_ANNOTATION),
    }
    return {key: value for key, value in changed.items() if value}


def _texts(before: Node, after: Node, *, only: str = "", but: str = "") -> Json:
    changed = _changes(before.annotations, after.annotations)
    return {key: text for key, text in changed.items() if key != but and only in {"", key}}


def _spec(before: Node, after: Node) -> Json:
    spec: Json = {}
    if after.unschedulable != before.unschedulable:
        spec["unschedulable"] = after.unschedulable or None
    if after.taints != before.taints:
        spec["taints"] = _plain(after.taints)
    return spec


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Json:
    new: Json = {key: text for key, text in after.items() if before.get(key) != text}
    return new | {key: None for key in before if key not in after}


def _plain(items: Iterable[Any]) -> list[Any]:
    return [msgspec.to_builtins(one) for one in items]
