"""Writes the status of `RemediationPolicy` objects, behind everybody's back, as the leader.

Like the records of sessions, it is a view: nothing waits for it, and a missing permission turns
it off and is said once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from random import Random
from typing import Any, Final, Protocol

import structlog

from remediator.kube.backoff import Backoff
from remediator.kube.custom import CustomObject
from remediator.kube.errors import ApiError, Denied, NotFound
from remediator.kube.lease import NotLeading
from remediator.policy.reload import PolicySet
from remediator.record.policysource import source_of, text_of
from remediator.record.policystatus import PolicyObjectStatus, policy_object_status
from remediator.record.remediation import written
from remediator.record.status import Status


EVERY_SECONDS: Final = 5.0
PACE_SECONDS: Final = 0.05
RETRY_SECONDS: Final = 300.0

_log = structlog.get_logger(__name__)


class Objects(Protocol):
    """What is needed of `remediator.kube.custom.CustomObjects`."""

    async def write_status(self, name: str, status: dict[str, Any]) -> None:
        """Merge into a status; raises NotFound."""


class PolicyStatuses:
    """Keeps the status of each object current. Run `run` as one task.

    Args:
        objects: where they are.
        there: the objects as they are now.
        loaded: the policies that are in force, and what is wrong with others.
        status: the newest status document, None before the first.
        now: epoch seconds.
        sleep: waits; injected for tests.
    """

    def __init__(
        self,
        *,
        objects: Objects,
        there: Callable[[], Iterable[CustomObject]],
        loaded: Callable[[], PolicySet],
        status: Callable[[], Status | None],
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Random | None = None,
    ) -> None:
        self.off = ""
        self._objects = objects
        self._there = there
        self._loaded = loaded
        self._status = status
        self._now = now
        self._sleep = sleep
        self._backoff = Backoff(base=1.0, cap=60.0, rng=rng or Random())  # noqa: S311 - jitter

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            wait = EVERY_SECONDS
            try:
                await self._write_all()
                self._backoff.reset()
            except Denied as error:
                if not self.off:
                    _log.warning("policy_status_off", reason=str(error))
                self.off, wait = str(error), RETRY_SECONDS
            except (ApiError, NotLeading) as error:
                _log.debug("policy_status_not_written", reason=str(error))
                wait = self._backoff.next(getattr(error, "retry_after", 0.0))
            await self._sleep(wait)

    async def _write_all(self) -> None:
        document = self._status()
        if document is None:
            return
        for one in list(self._there()):
            wanted = self.wanted(one, document)
            if wanted is None:
                continue
            try:
                await self._objects.write_status(one.name, wanted)
            except NotFound:
                continue  # deleted meanwhile
            self.off = ""
            await self._sleep(PACE_SECONDS)

    def wanted(self, one: CustomObject, document: Status) -> dict[str, Any] | None:
        """Return the status to be written, None if it is there or nothing is known yet."""
        loaded = self._loaded()
        state = loaded.files.get(source_of(one.name))
        if state is None or state.digest != hashlib.sha256(text_of(one)).hexdigest():
            return None  # this version was not looked at yet
        in_force = next(
            (
                policy
                for policy in document.policies
                if policy.name == one.name and policy.source == state.file
            ),
            None,
        )
        known = loaded.policies.get(one.name)
        version = known.policy.version if known is not None and known.file == state.file else ""
        if version != (in_force.version if in_force is not None else ""):
            return None  # the document is about a moment before it was loaded
        made = policy_object_status(
            name=one.name,
            generation=one.generation,
            problems=state.problems,
            policy=in_force,
            nodes=document.nodes,
            before=_conditions(one.status),
            now=written(self._now()),
        ).model_dump(mode="json", by_alias=True)
        return None if made == _known(one.status) else made


def _conditions(status: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    """Return the conditions that are there, by type."""
    known = status.get("conditions") or ()
    return {one["type"]: one for one in known if isinstance(one, dict) and "type" in one}


def _known(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status with our fields only."""
    return {one.alias or key: status.get(one.alias or key) for key, one in _FIELDS.items()}


_FIELDS: Final = PolicyObjectStatus.model_fields
