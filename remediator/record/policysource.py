"""Policies that are `RemediationPolicy` objects, handed on as though they were files.

One object is one "file", called as kubectl calls it, whose text is the object's spec as JSON. So
all rules of files hold: an edit with an error keeps the version before in force, of two policies
of one name the one that had it keeps it, and what is gone takes its policy with it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from remediator.kube.custom import CustomObject, WireCustom
from remediator.kube.errors import Denied, NotFound
from remediator.kube.reflector import Reflector
from remediator.kube.store import Store
from remediator.policy.model import API_VERSION
from remediator.record.crds import GROUP, POLICIES


PREFIX: Final = f"{POLICIES.plural}.{GROUP}/"
"""Followed by the object's name: what `kubectl get` takes."""
POLL_SECONDS: Final = 0.05
_ODD: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
"""Characters that JSON has and YAML has not, or reads as the end of a line: written as escapes."""


def source_of(name: str) -> str:
    """Return what stands in place of a file's name for an object."""
    return PREFIX + name


def text_of(found: CustomObject) -> bytes:
    """Return an object as the text of a policy file; its status and version leave no trace."""
    document = {
        "apiVersion": API_VERSION,
        "kind": POLICIES.kind,
        "metadata": {"name": found.name},
        "spec": found.spec,
    }
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
    return _ODD.sub(lambda one: f"\\u{ord(one[0]):04x}", text).encode()


def contents(objects: Iterable[CustomObject]) -> Mapping[str, bytes]:
    """Return all objects as files."""
    return {source_of(one.name): text_of(one) for one in objects}


@dataclass(frozen=True, kw_only=True)
class PolicyObjects:
    """The objects, kept up to date by their mirror."""

    store: Store[CustomObject]
    mirror: Reflector[WireCustom, CustomObject]

    def contents(self) -> Mapping[str, bytes] | None:
        """Return them as files; None before they were ever seen."""
        return contents(self.store) if self.mirror.synced.is_set() else None

    async def wait(self, timeout: float) -> None:  # noqa: ASYNC109 - part of the meaning
        """Wait until they were seen, or will not be: an error, or ``timeout`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not (  # noqa: ASYNC110 - an error has no event
                    self.mirror.synced.is_set() or self._refused()
                ):
                    await asyncio.sleep(POLL_SECONDS)

    def notes(self) -> tuple[str, ...]:
        """Say why they are not seen now, and which cannot be read; nothing if all is well."""
        error = self.mirror.last_error
        if isinstance(error, NotFound):
            return ("policies as objects: the cluster has no such kind: apply deploy/crds",)
        odd = self.mirror.unreadable.items()
        return (
            *(() if error is None else (f"policies as objects: {error}",)),
            *(
                f"{source_of(name)} cannot be read, what was read before counts: {why}"
                for name, why in odd
            ),
        )

    def _refused(self) -> bool:
        return isinstance(self.mirror.last_error, Denied | NotFound)
