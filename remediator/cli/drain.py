"""`drain NODE`: the step's own engine in a person's hands, with their own rights.

It cordons the node first, as `kubectl drain` does, and stops when somebody uncordons it.
Of a session it knows nothing and changes nothing: what the controller does goes on beside it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
from pydantic import ValidationError

from remediator.act.drain.compose import make_drainer
from remediator.act.drain.engine import Ended, Health
from remediator.act.drain.plan import STUCK
from remediator.act.drain.report import Progress, line, lines
from remediator.cli.cluster import Target, on_cluster
from remediator.cli.drain_left import read_node
from remediator.cli.failure import Failure
from remediator.cli.replay import failure_of
from remediator.cli.terminal import say
from remediator.kube.client import ApiClient
from remediator.kube.codec import Codec, NodeNarrower, WireNode
from remediator.kube.errors import ApiError, NotFound
from remediator.kube.objects import Node
from remediator.policy.drain import Drain, Evictions
from remediator.policy.load import load_policies
from remediator.policy.problems import PolicyError
from remediator.policy.steps import Step


BAD_INPUT: Final = 2
NODE_SECONDS: Final = 1.0
_NODES = Codec(WireNode, NodeNarrower())
_MERGE_PATCH: Final = "application/merge-patch+json"


class Wish(NamedTuple):
    """What the flags say. ``timeout`` in seconds, 0: none."""

    drain: Drain
    evictions: Evictions
    timeout: float = 0.0


def wish(
    *, policy: Path | None, keys: dict[str, Any], per_second: int, timeout: float | None
) -> Wish:
    """Read the flags: they change what the drain step of a policy file says, if one is named.

    ``timeout``: seconds; None: the step's, or an hour.

    Raises:
        Failure: a value is wrong, or the file has no drain.
    """
    step = _step_of(policy) if policy is not None else Step(drain=Drain())
    base = (step.drain or Drain()).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    timeout = step.limit if timeout is None else timeout
    keys = {**keys, "pods": [*base.get("pods", ()), *keys.get("pods", ())]}
    evictions = {"perSecond": per_second, "burst": max(1, per_second)}
    try:
        return Wish(Drain.model_validate(base | keys), Evictions.model_validate(evictions), timeout)
    except ValidationError as error:
        said = "; ".join(
            f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()
        )
        raise Failure(f"error: {said}", code=BAD_INPUT) from error


def drain_node(target: Target, name: str, wanted: Wish) -> None:
    """Cordon and drain a node; say what is left, and why, each time that changes.

    Raises:
        Failure: no such node, or it was not drained.
    """

    async def work(api: ApiClient) -> Ended:
        node = await read_node(api, name)
        if not node.unschedulable:
            await _cordon(api, node)
            say(f"{name}: cordoned")
        return await _drain(api, node, wanted)

    end = on_cluster(target, work)
    said = [end.note] if end.done else lines(end.progress, time.time())
    say(f"{name}: {'drained' if end.clean else 'done' if end.done else 'not drained'}", *said)
    if not end.done:
        raise Failure(f"error: {name} is not drained: {end.note}. It stays cordoned.")


def _step_of(file: Path) -> Step:
    """Return the one drain step in a policy file."""
    try:
        policies = load_policies([file])
    except PolicyError as error:
        raise failure_of(error) from error
    found = [step for one in policies for step in one.spec.steps if step.drain is not None]
    if len(found) != 1:
        raise Failure(f"error: {file} has {len(found)} drain steps, not one", code=BAD_INPUT)
    return found[0]


async def _drain(api: ApiClient, node: Node, wanted: Wish) -> Ended:
    """Drain, while the node itself is looked at now and then."""
    health = [Health(ready=_ready(node))]
    said = [""]
    latest = [Progress()]

    def tell(progress: Progress) -> None:
        latest[0] = progress
        text = line(progress, time.time())
        if text != said[0]:
            say(f"{node.name}: {text}")
        said[0] = text

    async def look() -> None:
        while True:
            await asyncio.sleep(NODE_SECONDS)
            with suppress(ApiError):
                health[0] = await _health(api, node)

    looking = asyncio.create_task(look())
    try:
        async with asyncio.timeout(wanted.timeout or None):
            return await make_drainer(api, evictions=wanted.evictions, now=time.time).drain(
                node.name,
                wanted.drain,
                since=time.time(),
                health=lambda: health[0],
                say=tell,
            )
    except TimeoutError:
        stuck = [one.pod for one in latest[0].left if one.cause in STUCK]
        why = f"{len(stuck)} pods block it" if stuck else "pods are still on their way"
        return Ended(done=False, note=f"out of time, {why}", progress=latest[0])
    finally:
        looking.cancel()


async def _health(api: ApiClient, node: Node) -> Health:
    try:
        now = _NODES.one(await api.request("GET", _path(node.name)))
    except NotFound:
        return Health(there=False)
    return Health(there=now.uid == node.uid, takes_pods=not now.unschedulable, ready=_ready(now))


def _ready(node: Node) -> bool:
    ready = node.condition("Ready")
    return ready is not None and ready.status == "True"


async def _cordon(api: ApiClient, node: Node) -> None:
    body = {"metadata": {"uid": node.uid}, "spec": {"unschedulable": True}}
    await api.request(
        "PATCH",
        f"{_path(node.name)}?fieldManager=remediator-cli",
        msgspec.json.encode(body),
        content_type=_MERGE_PATCH,
    )


def _path(name: str) -> str:
    return f"/api/v1/nodes/{quote(name, safe='')}"
