"""`approve`: a person's yes to the step of a policy that waits for one.

Like a request, it is an annotation written with the person's own credentials. It names the
session, the policy and the step that it is for, and when it expires: it can never be taken
for a yes to anything else.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import msgspec

from remediator.cli.cluster import Target, on_cluster, who_am_i
from remediator.cli.failure import Failure
from remediator.cli.requests import POLL_SECONDS, session_of
from remediator.cli.terminal import say
from remediator.decide.requests import (
    APPROVAL_ANNOTATION,
    Approval,
    decode_approvals,
    encode_approvals,
)
from remediator.decide.session import AnnotationError, HoldState, PolicyHold, Session
from remediator.kube.client import ApiClient
from remediator.kube.codec import Codec, NodeNarrower, WireNode
from remediator.kube.errors import Conflict, NotFound
from remediator.kube.objects import Node
from remediator.policy.plan import parse_plan


_NODES = Codec(WireNode, NodeNarrower(("gpu-remediator.io/",)))
_MERGE_PATCH = "application/merge-patch+json"
_TRIES = 5


def approve(target: Target, name: str, *, policy: str, expires: float, wait: float) -> None:
    """Write the approval and say what became of it. `wait` 0: do not wait.

    Args:
        target: the cluster.
        name: the node.
        policy: whose step; "" where only one waits.
        expires: seconds for which the approval is good.
        wait: seconds to wait for the controller to take it.

    Raises:
        Failure: no such node, nothing waits for an approval there, or no answer in time.
    """

    async def work(api: ApiClient) -> str:
        given = await _give(api, name, policy=policy, expires=expires)
        what = f"step {given.step + 1} of {given.policy} on {name}"
        if not wait:
            return f"approved: {what}, until {given.expires}"
        if await _taken(api, name, given, wait):
            return f"approved: {what}; it goes on"
        raise Failure(
            f"error: no controller took it within {wait:g} s (`remediator status`). The approval"
            f" of {what} stays until {given.expires}."
        )

    say(on_cluster(target, work))


def waiting(node: Node, policy: str) -> tuple[Session, PolicyHold]:
    """Return the hold whose step waits for an approval.

    Raises:
        Failure: none does, or more than one and none is named.
    """
    session = session_of(node)
    if not isinstance(session, Session):
        why = f"its session cannot be read: {session}" if session else "it has no session"
        raise Failure(f"error: nothing on {node.name} waits for an approval: {why}")
    found = [
        hold
        for hold in session.holds
        if hold.state is HoldState.RUNNING
        and (not policy or hold.policy == policy)
        and hold.step < len(steps := parse_plan(hold.plan).steps)
        and steps[hold.step].approve is not None
    ]
    if not found:
        whose = f" of {policy}" if policy else ""
        raise Failure(f"error: no step{whose} on {node.name} waits for an approval")
    if len(found) > 1:
        names = ", ".join(hold.policy for hold in found)
        raise Failure(f"error: several policies wait on {node.name}: give --policy, one of {names}")
    return session, found[0]


async def _give(api: ApiClient, name: str, *, policy: str, expires: float) -> Approval:
    """Write the approval; again where a heartbeat, or another approval, came in between."""
    by = await who_am_i(api)
    for left in reversed(range(_TRIES)):
        node = await _read(api, name)
        session, hold = waiting(node, policy)
        now = datetime.now(tz=UTC)
        given = Approval(
            session=session.id,
            policy=hold.policy,
            step=hold.step,
            by=by,
            at=_stamp(now),
            expires=_stamp(now + timedelta(seconds=expires)),
        )
        try:
            await _write(api, node, given)
        except Conflict:
            if not left:
                raise
        else:
            return given
    raise AssertionError("the last try returns or raises")


async def _read(api: ApiClient, name: str) -> Node:
    try:
        return _NODES.one(await api.request("GET", f"/api/v1/nodes/{quote(name, safe='')}"))
    except NotFound:
        raise Failure(f"error: there is no node {name}") from None


async def _write(api: ApiClient, node: Node, given: Approval) -> None:
    others = [
        one
        for one in _known(node)
        if (one.session, one.policy, one.step) != (given.session, given.policy, given.step)
        and one.session == given.session
    ]
    metadata = {
        "uid": node.uid,
        "resourceVersion": node.resource_version,
        "annotations": {APPROVAL_ANNOTATION: encode_approvals([*others, given])},
    }
    await api.request(
        "PATCH",
        f"/api/v1/nodes/{node.name}?fieldManager=remediator-cli",
        msgspec.json.encode({"metadata": metadata}),
        content_type=_MERGE_PATCH,
    )


def _known(node: Node) -> tuple[Approval, ...]:
    """Return the approvals on a node; those that cannot be read nobody can use."""
    try:
        return decode_approvals(node.annotations.get(APPROVAL_ANNOTATION, "[]"))
    except AnnotationError:
        return ()


async def _taken(api: ApiClient, name: str, given: Approval, wait: float) -> bool:
    """Tell whether the controller took the approval in time: then it is not there any more."""
    try:
        async with asyncio.timeout(wait):
            while True:
                await asyncio.sleep(POLL_SECONDS)
                node = await _read(api, name)
                if given not in _known(node):
                    return True
    except TimeoutError:
        return False


def _stamp(when: datetime) -> str:
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")
