"""The step `create`: one object of any kind, and, if asked, its status waited for.

The object stays when the session ends: what it asks for is somebody else's to finish. It
goes with its node, which owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from remediator.act.made import (
    LateError,
    NotMadeError,
    Templates,
    kind_of,
    make,
    name_of,
    object_of,
)
from remediator.clock import Clock
from remediator.decide.decision import Outcome, Work
from remediator.kube.dynamic import Json, ObjectApi
from remediator.kube.errors import ApiError, Invalid, NotFound
from remediator.policy.steps import CreateObject, StatusCondition
from remediator.policy.templates import TemplateError


POLL: Final = 5.0
MAX_WHY: Final = 250
"""Characters of what an object says why."""


class CreateWorker:
    """Creates objects.

    Args:
        objects: the way to the API server.
        templates: of RemediatorConfig.
        namespace: where objects go whose template names none, if they live in one.
        clock: the controller's.
    """

    def __init__(
        self, *, objects: ObjectApi, templates: Templates, namespace: str, clock: Clock
    ) -> None:
        self._objects = objects
        self._templates = templates
        self._namespace = namespace
        self._clock = clock

    async def run(self, work: Work, *, say: Callable[[str], None]) -> Outcome:
        """Create the object, or find it, and wait for its status. See :class:`Worker`."""
        spec = work.spec.create or CreateObject(template="none")
        try:
            template = await self._templates.load(spec.template)
            namespace = self._namespace if await self._namespaced(template) else ""
            name = name_of(work, spec.template)
            obj = object_of(template, work, name=name, namespace=namespace)
            found = await make(self._objects, obj, work, now=self._clock.now())
        except LateError as error:
            return Outcome(key=work.key, delivered=False, late=True, note=str(error))
        except (TemplateError, NotMadeError) as error:
            return Outcome(key=work.key, delivered=False, note=str(error))
        what = f"{obj['kind']} {obj['metadata']['name']}"
        if spec.wait_for is None:
            return Outcome(key=work.key, delivered=True, note=f"{what} is created")
        return await self._follow(work, spec, found, say)

    async def _namespaced(self, template: Json) -> bool:
        try:
            return await self._objects.namespaced(kind_of(template))
        except (Invalid, NotFound) as error:
            kind = f"{template['kind']} of {template['apiVersion']}"
            raise NotMadeError(f"the API server knows no {kind}: {error.message}") from error

    async def _follow(
        self, work: Work, spec: CreateObject, made: Json, say: Callable[[str], None]
    ) -> Outcome:
        metadata, kind = made["metadata"], kind_of(made)
        what = f"{kind.kind} {metadata['name']}"
        wanted = spec.wait_for or StatusCondition(type="none")
        while True:
            try:
                found = await self._objects.read(
                    kind, metadata.get("namespace", ""), metadata["name"]
                )
            except ApiError as error:
                say(f"{what} cannot be followed: {error}")
                await asyncio.sleep(POLL)
                continue
            if found is None:
                note = f"{what} was deleted by somebody else"
                return Outcome(key=work.key, delivered=False, note=note)
            if says(found, spec.fail_on):
                note = f"{what} says {said_of(found, spec.fail_on)}"
                return Outcome(key=work.key, delivered=False, note=note)
            if says(found, wanted):
                note = f"{what} says {said_of(found, wanted)}"
                return Outcome(key=work.key, delivered=True, note=note)
            if self._clock.now() >= work.deadline:
                note = f"{what} did not say {wanted.type}={wanted.status} in time"
                return Outcome(key=work.key, delivered=False, late=True, note=note)
            say(f"waits for {what} to say {wanted.type}={wanted.status}")
            await asyncio.sleep(POLL)


def said_of(found: Json, condition: StatusCondition | None) -> str:
    """Return what an object says of a condition, with its reason and message."""
    wanted = condition or StatusCondition(type="none")
    one = next((one for one in _conditions(found) if one.get("type") == wanted.type), {})
    why = ": ".join(str(one[key]) for key in ("reason", "message") if one.get(key))
    return f"{wanted.type}={wanted.status}" + (f" ({why[:MAX_WHY]})" if why else "")


def says(found: Json, condition: StatusCondition | None) -> bool:
    """Tell whether an object has a condition with this status."""
    if condition is None:
        return False
    return any(
        one.get("type") == condition.type and one.get("status") == condition.status
        for one in _conditions(found)
    )


def _conditions(found: Json) -> list[Json]:
    """Return an object's conditions, whatever else its author put there."""
    status = found.get("status")
    listed = status.get("conditions") if isinstance(status, dict) else None
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
