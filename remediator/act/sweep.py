"""Jobs that outlived what wanted them: deleted, should a controller have died before it could.

A Job is deleted when its step is not wanted any more. Between that decision and the deletion
a process may die; the next one finds in the node's session no word of the Job. Its own
deadline would end it; this ends it sooner. A Job is touched only if it says that it is ours, and
its very name proves it, it still runs, and its node has no unreadable session and does not want it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import structlog

from remediator.act.job import JOB, ending
from remediator.act.made import NODE_ANNOTATION, OURS, WORK_ANNOTATION, Templates, named_for
from remediator.kube.dynamic import ObjectApi
from remediator.kube.errors import ApiError
from remediator.kube.lease import NotLeading
from remediator.policy.templates import TemplateError


_log = structlog.get_logger(__name__)

EVERY: Final = 300.0
"""Seconds between two sweeps."""

UNWANTED: Final = "no session wants it any more"

Wanted = Callable[[str], Collection[str] | None]
"""Keys of the work that a node's session says is under way; None: leave all of it alone."""


async def sweep(*, objects: ObjectApi, templates: Templates, namespace: str, wanted: Wanted) -> int:
    """Delete running Jobs of ours that no session wants; returns how many.

    Trouble with one namespace, such as a missing right to list Jobs, is logged and no more.
    """
    deleted = 0
    for place in sorted(await _places(templates, namespace)):
        try:
            deleted += await _sweep(objects, place, wanted)
        except (ApiError, NotLeading) as error:
            _log.info("jobs_not_swept", namespace=place, reason=str(error))
    return deleted


async def _sweep(objects: ObjectApi, namespace: str, wanted: Wanted) -> int:
    deleted = 0
    for job in await objects.select(JOB, namespace, OURS):
        metadata = job["metadata"]
        notes = metadata.get("annotations") or {}
        node, key = notes.get(NODE_ANNOTATION), notes.get(WORK_ANNOTATION)
        keys = wanted(node) if node else None
        if keys is None or not key or key in keys or not named_for(job, key) or ending(job):
            continue
        with structlog.contextvars.bound_contextvars(node=node, key=key, why=UNWANTED):
            await objects.delete(JOB, namespace, metadata["name"], uid=metadata["uid"])
        _log.info("job_swept", job=metadata["name"], namespace=namespace, node=node, key=key)
        deleted += 1
    return deleted


async def _places(templates: Templates, namespace: str) -> set[str]:
    """Return the namespaces where Jobs of ours may be."""
    places: set[str] = set()
    for name in templates.names:
        try:
            template = await templates.load(name)
        except TemplateError:
            continue  # said where it is used
        if (template["apiVersion"], template["kind"]) == JOB:
            places.add((template.get("metadata") or {}).get("namespace", namespace))
    return places
