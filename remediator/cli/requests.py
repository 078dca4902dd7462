"""`cancel`, `release`, `unfreeze`, `retry`: a person's request on the Node, and its answer.

The request is an annotation written with the person's own credentials, so that the
cluster's RBAC and audit log hold for it. The controller answers by acting and removing
it in one patch; what the node looks like after that is the answer that is printed.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from remediator.cli.cluster import Target, on_cluster, who_am_i
from remediator.cli.failure import Failure
from remediator.cli.terminal import say
from remediator.decide.look import session_flaw
from remediator.decide.requests import REQUEST_ANNOTATION, Request, Verb
from remediator.decide.session import (
    HISTORY_ANNOTATION,
    SESSION_ANNOTATION,
    AnnotationError,
    Session,
    decode_history,
    decode_session,
    encode,
)
from remediator.kube.client import ApiClient
from remediator.kube.codec import Codec, NodeNarrower, WireNode
from remediator.kube.errors import NotFound
from remediator.kube.objects import Node


POLL_SECONDS = 0.25
_NODES = Codec(WireNode, NodeNarrower(("gpu-remediator.io/",)))
_MERGE_PATCH = "application/merge-patch+json"


def ask(target: Target, verb: str, name: str, *, reason: str, wait: float) -> None:
    """Write the request and say what became of it. `wait` 0: do not wait.

    Raises:
        Failure: no such node, nothing to do there, or no answer in time.
    """
    wanted = Verb(verb)

    async def work(api: ApiClient) -> str:
        node = await _read(api, name)
        _refuse_pointless(node, wanted)
        request = Request(verb=wanted, by=await who_am_i(api), at=_now(), reason=reason)
        await _write(api, node, request)
        if not wait:
            return f"asked for: {verb} of {name}. See `remediator status`."
        answered = await _answer(api, node, wait)
        if answered is None:
            raise Failure(
                f"error: no answer within {wait:g} s. Is a controller running (`remediator"
                f" status`)? The request stays on {name} and is answered when one does."
            )
        return outcome(node, answered, wanted)

    say(on_cluster(target, work))


def outcome(before: Node, after: Node, verb: Verb) -> str:
    """Say what the controller did, from the node before and after."""
    cordon = "is cordoned" if after.unschedulable else "is schedulable"
    if before.unschedulable != after.unschedulable:
        cordon = "is cordoned now" if after.unschedulable else "is schedulable again"
    session = session_of(after)
    if isinstance(session, Session):
        states = ", ".join(f"{hold.policy}: {hold.state}" for hold in session.holds)
        rest = f"its session goes on ({states})"
    elif session is not None:
        rest = f"its session cannot be read: {session}"
    elif verb is Verb.UNFREEZE:
        rest = "the unreadable annotation is gone; if it was cordoned, that stays"
    elif session_of(before) is not None:
        rest = f"its session has ended: {_last(after)}"
    else:
        rest = "it had no session (in dry-run it never has one)"
    return f"{verb} of {after.name}: answered. The node {cordon}, {rest}"


def session_of(node: Node) -> Session | AnnotationError | None:
    """Return the node's session, why it cannot be used, or None."""
    text = node.annotations.get(SESSION_ANNOTATION)
    if text is None:
        return None
    try:
        session = decode_session(text, node_uid=node.uid)
    except AnnotationError as error:
        return error
    flaw = session_flaw(session)
    return AnnotationError(flaw) if flaw else session


def _refuse_pointless(node: Node, verb: Verb) -> None:
    """A request that nothing can come of is a mistake: say so at once.

    A node without a session is no such case: in dry-run its session is in the
    controller's memory only, and `retry` also ends a waiver.
    """
    session = session_of(node)
    frozen = isinstance(session, AnnotationError)
    if verb is Verb.UNFREEZE and not frozen:
        raise Failure(f"error: {node.name} is not frozen: its session annotation can be used")
    if verb is not Verb.UNFREEZE and frozen:
        raise Failure(
            f"error: {node.name} is frozen ({session}); `remediator unfreeze {node.name}` first"
        )


async def _read(api: ApiClient, name: str) -> Node:
    try:
        return _NODES.one(await api.request("GET", f"/api/v1/nodes/{quote(name, safe='')}"))
    except NotFound:
        raise Failure(f"error: there is no node {name}") from None


async def _write(api: ApiClient, node: Node, request: Request) -> None:
    """Only the UID is a precondition: a heartbeat in between must not refuse a person."""
    metadata = {"uid": node.uid, "annotations": {REQUEST_ANNOTATION: encode(request)}}
    await api.request(
        "PATCH",
        f"/api/v1/nodes/{node.name}?fieldManager=remediator-cli",
        msgspec.json.encode({"metadata": metadata}),
        content_type=_MERGE_PATCH,
    )


async def _answer(api: ApiClient, node: Node, wait: float) -> Node | None:
    """Return the node once the request is gone, None if it is not in time."""
    try:
        async with asyncio.timeout(wait):
            while True:
                await asyncio.sleep(POLL_SECONDS)
                now = await _read(api, node.name)
                if now.uid != node.uid:
                    raise Failure(f"error: {node.name} was deleted and created anew meanwhile")
                if REQUEST_ANNOTATION not in now.annotations:
                    return now
    except TimeoutError:
        return None


def _last(node: Node) -> str:
    try:
        return decode_history(node.annotations[HISTORY_ANNOTATION], node_uid=node.uid).last
    except (KeyError, AnnotationError):
        return ""


def _now() -> str:
    return datetime.now(tz=UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
