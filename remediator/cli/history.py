"""`remediator history`: past and present sessions, from `Remediation` objects and from the Node.

The objects may not be there (no such kind, no permission): what the Node itself remembers of the
last 24 hours is shown all the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import typer

from remediator.cli.cluster import Target, on_cluster
from remediator.cli.failure import Failure
from remediator.cli.terminal import shown, table
from remediator.decide.session import (
    HISTORY_ANNOTATION,
    AnnotationError,
    History,
    decode_history,
)
from remediator.kube.client import ApiClient
from remediator.kube.custom import CustomObject, CustomObjects
from remediator.kube.errors import Denied, NotFound
from remediator.kube.objects import epoch_seconds
from remediator.kube.read import ApiNodeReader
from remediator.policy.quantities import format_duration
from remediator.record.crds import REMEDIATIONS


_TITLES: Final = ("STARTED", "NODE", "POLICY", "PHASE", "TOOK", "WHAT")


class Found(NamedTuple):
    """What there is: `note` says why objects are missing, `past` is the Node's own memory."""

    objects: Sequence[CustomObject]
    note: str
    node: str
    past: History | None


def show_history(target: Target, node: str, *, output: str) -> None:
    """Print what is known; of one node if it is named.

    Raises:
        Failure: there is no such node, and no record of one.
    """

    async def work(api: ApiClient) -> Found:
        return await read_history(api, target.namespace, node)

    found = on_cluster(target, work)
    if output == "json":
        typer.echo(json.dumps(msgspec.to_builtins(as_json(found)), indent=2))
    else:
        typer.echo(render_history(found, now=time.time()))


async def read_history(api: ApiClient, namespace: str, node: str) -> Found:
    """Read the objects, the newest first, and the Node if one is named.

    Raises:
        Failure: there is no such node, and no record of one.
        ApiError: the API server does not answer, or forbids reading the Node.
    """
    objects, note = await _objects(api, namespace)
    if not node:
        return Found(objects, note, "", None)
    mine = [one for one in objects if one.spec.get("node") == node]
    found = await ApiNodeReader(api=api).read_node(node)
    if found is None and not mine:
        raise Failure(f"error: there is no node {node}, and no record of one")
    text = found.annotations.get(HISTORY_ANNOTATION) if found is not None else None
    try:
        past = decode_history(text, node_uid=found.uid) if found and text else History()
    except AnnotationError as error:
        past, note = None, "; ".join(filter(None, [note, str(error)]))
    return Found(mine, note, node, past)


async def _objects(api: ApiClient, namespace: str) -> tuple[list[CustomObject], str]:
    objects = CustomObjects(api=api, namespace=namespace, plural=REMEDIATIONS.plural)
    try:
        found = await objects.read_all()
    except NotFound:
        return [], "no records of sessions: the cluster has no kind Remediation (deploy/crds)"
    except Denied as error:
        return [], f"no records of sessions: {error}"
    return sorted(found, key=lambda one: one.spec.get("started", ""), reverse=True), ""


def as_json(found: Found) -> dict[str, Any]:
    """Return what scripts read."""
    made: dict[str, Any] = {
        "remediations": [
            {"name": one.name, "spec": one.spec, "status": one.status} for one in found.objects
        ]
    }
    if found.note:
        made["note"] = found.note
    if found.node:
        made["node"] = {"name": found.node, "history": found.past}
    return made


def render_history(found: Found, *, now: float) -> str:
    """Return it as people read it: a table, or of one node every step."""
    lines = [f"note: {found.note}"] if found.note else []
    if not found.objects:
        lines.append(f"no record of a session on {found.node}" if found.node else "no records")
    elif found.node:
        lines += [line for one in found.objects for line in _whole(one, now)]
    else:
        lines += table([_TITLES, *(_row(one, now) for one in found.objects)])
    return shown([*lines, *_past(found, now)])


def _row(one: CustomObject, now: float) -> tuple[str, ...]:
    spec, status = one.spec, one.status
    what = status.get("why") or status.get("sentence") or status.get("step") or "-"
    return (
        str(spec.get("started", "-")),
        str(spec.get("node", "-")),
        str(spec.get("policy", "-")),
        status.get("result") or status.get("phase") or "-",
        _took(one, now),
        str(what),
    )


def _took(one: CustomObject, now: float) -> str:
    began = epoch_seconds(one.spec.get("started"))
    ended = epoch_seconds(one.status.get("ended"))
    if began is None:
        return "-"
    seconds = round(max(0.0, (now if ended is None else ended) - began))
    return f"{format_duration(float(seconds))}{'' if ended is not None else '...'}"


def _whole(one: CustomObject, now: float) -> Iterator[str]:
    """Yield the story of one session, in the order of time."""
    spec, status = one.spec, one.status
    ending = status.get("result") or status.get("phase") or "not written yet"
    attempt = f", attempt {spec['attempt']}" if spec.get("attempt", 1) != 1 else ""
    yield f"{one.name}: {ending}, {spec.get('policy', '-')}, took {_took(one, now)}{attempt}"
    reasons = [reason for part in status.get("policies", ()) for reason in part.get("reasons", ())]
    events = [(spec.get("started", ""), f"began: {', '.join(dict.fromkeys(reasons))}")]
    for step in status.get("steps", ()):
        note = f": {step['note']}" if step.get("note") else ""
        said = f"step {step.get('step')} {step.get('action')} {step.get('state')}{note}"
        events.append((step.get("at", ""), f"{step.get('policy')}: {said}"))
    for hold in status.get("holds", ()):
        until = f" until {hold['until']}" if hold.get("until") else ", still"
        text = f"{hold.get('policy')}: held by {hold.get('guard')}: {hold.get('reason')}{until}"
        events.append((hold.get("since", ""), text))
    if status.get("ended"):
        events.append((status["ended"], f"ended: {status.get('why', '')}"))
    yield from (f"  {at}  {text}" for at, text in sorted(events, key=lambda event: event[0]))
    for word in ("added", "undone"):
        if status.get(word):
            yield f"  {word}: {', '.join(status[word])}"
    for given in status.get("approvals", ()):
        said = f"  step {given.get('step')} approved by {given.get('by')} at {given.get('at')}"
        yield said if given.get("used", True) else f"{said}, not used"


def _past(found: Found, now: float) -> Iterator[str]:
    """Yield what the Node itself remembers."""
    past = found.past
    if past is None:
        return
    recent = [at for at in past.attempts if at > now - 86400.0]
    yield f"on the node: {len(recent)} attempts in the last 24h"
    if past.last:
        yield f"  last: {past.last}"
    for waiver in past.waivers:
        yield f"  left to people: {waiver.instance} of {waiver.policy}: {waiver.why}"
