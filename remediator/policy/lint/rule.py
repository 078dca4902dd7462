"""What a lint rule is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from remediator.policy.problems import Location
from remediator.policy.when import Clauses, Group


class Severity(StrEnum):
    """How sure we are that it is a mistake."""

    ERROR = "error"
    WARNING = "warning"


class Hit(NamedTuple):
    """One place that a rule speaks about, what it says, and what to do about it."""

    at: Location
    message: str
    fix: str


class Context(NamedTuple):
    """All policies that are loaded together, and the cluster's settings where they are known."""

    policies: tuple[RemediationPolicy, ...]
    cluster: ClusterSpec | None


Check = Callable[[RemediationPolicy, Context], Iterator[Hit]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``why`` is for the documentation: the harm that it is there to prevent."""

    id: str
    severity: Severity
    says: str
    why: str
    fix: str
    check: Check


class Finding(NamedTuple):
    """A hit of a rule in a policy."""

    rule: Rule
    policy: str
    at: Location
    message: str
    fix: str


class Entry(NamedTuple):
    """An entry of ``when``, at any depth, and where it stands."""

    at: Location
    entry: Clauses


def entries(policy: RemediationPolicy) -> Iterator[Entry]:
    """Yield all entries of ``when``, those within ``all`` and ``any`` too."""
    for index, one in enumerate(policy.spec.when):
        yield from _within(("spec", "when", index), one)


def _within(at: Location, entry: Clauses) -> Iterator[Entry]:
    yield Entry(at, entry)
    if isinstance(entry, Group):
        for key, nested in (("all", entry.all), ("any", entry.any)):
            for index, one in enumerate(nested or ()):
                yield from _within((*at, key, index), one)


def codes_of(entry: Clauses) -> frozenset[int]:
    """Return the Xids that an entry names, by ``xid`` or by ``count``."""
    named = (entry.xid.codes or ()) if entry.xid is not None else ()
    counted = entry.count.xid if entry.count is not None else ()
    return frozenset((*named, *counted))


def disrupts(policy: RemediationPolicy) -> bool:
    """Tell whether a policy takes capacity away, or ends what runs on the node."""
    return any(step.disruptive or step.works for step in policy.spec.steps)
