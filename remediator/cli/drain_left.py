"""`drain NODE --dry-run` and `--watch`: what is left on a node, and why. Evicts nothing.

Watching follows the drain of the node's session where there is one: by the rules and from the
time that the session says, whatever the policy's file says by now.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from pydantic import ValidationError

from remediator.act.drain.ahead import ahead
from remediator.act.drain.report import Progress, lines
from remediator.cli.cluster import Target, on_cluster
from remediator.cli.failure import Failure
from remediator.cli.terminal import say
from remediator.decide.session import (
    SESSION_ANNOTATION,
    AnnotationError,
    PolicyHold,
    decode_session,
)
from remediator.decide.work import running
from remediator.kube.budgets import list_budgets
from remediator.kube.client import ApiClient
from remediator.kube.codec import Codec, NodeNarrower, WireNode
from remediator.kube.errors import NotFound
from remediator.kube.objects import Node
from remediator.kube.pods import ApiPods, Pod
from remediator.policy.drain import Drain


WATCH_SECONDS: Final = 2.0
_NODES: Final = Codec(WireNode, NodeNarrower())


class Followed(NamedTuple):
    """A drain to look at: how, since when (epoch seconds), and by whom ("": by the flags)."""

    drain: Drain
    since: float
    policy: str = ""


class Counted:
    """Counts pods that had to leave over several looks, as the drain itself does."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def progress(
        self, pods: Sequence[Pod], left: Sequence[str], staying: Sequence[str]
    ) -> tuple[int, int]:
        """Return how many pods had to leave so far, and how many of them are gone."""
        uids = {pod.name: pod.uid for pod in pods}
        self._seen |= {uids.get(name, name) for name in left}
        self._seen -= {uids[name] for name in staying if name in uids}
        there = {*uids.values(), *(name for name in left if name not in uids)}
        return len(self._seen), len(self._seen - there)


async def read_node(api: ApiClient, name: str) -> Node:
    """Return a node.

    Raises:
        Failure: there is none of this name.
    """
    try:
        return _NODES.one(await api.request("GET", f"/api/v1/nodes/{quote(name, safe='')}"))
    except NotFound:
        raise Failure(f"error: there is no node {name}") from None


def show_left(target: Target, name: str, drain: Drain, *, follow: bool) -> None:
    """Evict nothing; say what a drain would do now, or is still waiting for.

    Args:
        target: the cluster.
        name: of the node.
        drain: how, where no session drains the node.
        follow: say it again each time it changes, until nothing is left.

    Raises:
        Failure: no such node, or something would block.
    """

    async def work(api: ApiClient) -> Progress:
        if follow:
            return await _follow(api, name, drain)
        await read_node(api, name)
        now = time.time()
        progress, leaving = await _look(api, name, Followed(drain, now), Counted())
        text = [f"{name}: would evict {one}" for one in leaving]
        say(*text, *lines(progress, now))
        return progress

    blockers = on_cluster(target, work).blockers
    if blockers:
        count = sum(len(these) for these in blockers.values())
        raise Failure(f"error: {count} pods would block the drain of {name}")


async def _follow(api: ApiClient, name: str, drain: Drain) -> Progress:
    """Look again and again, until nothing is left or the session's drain has ended."""
    counted, said = Counted(), list[str]()
    by_hand = Followed(drain, time.time())
    before: Followed | None = None
    while True:
        node = await read_node(api, name)
        one = session_drain(node) or by_hand
        if before is not None and before.policy and one.policy != before.policy:
            say(f"{name}: the drain of policy {before.policy} has ended{_end(node, before)}")
            return Progress()
        if before is None and one.policy:
            say(f"{name}: as policy {one.policy} drains it")
        progress, _ = await _look(api, name, one, counted)
        text = [*lines(progress, time.time())]
        if text != said:
            say(*text)
        said, before = text, one
        if not progress.left:
            return progress
        await asyncio.sleep(WATCH_SECONDS)


async def _look(
    api: ApiClient, name: str, one: Followed, counted: Counted
) -> tuple[Progress, list[str]]:
    """Judge the pods as the drain does, and the budgets by their own status."""
    pods, unreadable = await ApiPods(api=api).list_pods(name)
    said = ahead(
        pods, unreadable, one.drain, await list_budgets(api), now=time.time(), since=one.since
    )
    total, gone = counted.progress(pods, [left.pod for left in said.left], [*said.skipped])
    progress = Progress(total=total, gone=gone, left=tuple(said.left), skipped=said.skipped)
    return progress, [pod.name for pod in (*said.evict, *said.delete)]


def session_drain(node: Node) -> Followed | None:
    """Return the drain that a node's session has under way, None if it has none."""
    for hold in _holds(node):
        try:
            step = running(hold)
        except ValidationError:
            continue  # its plan cannot be read
        if step is not None and step.drain is not None:
            return Followed(step.drain, hold.work_since or time.time(), hold.policy)
    return None


def _holds(node: Node) -> tuple[PolicyHold, ...]:
    text = node.annotations.get(SESSION_ANNOTATION)
    try:
        return decode_session(text, node_uid=node.uid).holds if text is not None else ()
    except AnnotationError:
        return ()


def _end(node: Node, before: Followed) -> str:
    """Say how a session's drain ended, as far as the session still says."""
    for hold in _holds(node):
        drains = [one for one in hold.results if one.action == "drain"]
        if hold.policy == before.policy and drains:
            return f": {drains[-1].result.value}, {drains[-1].note}"
    return ""
