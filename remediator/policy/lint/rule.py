"""What a lint rule is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from remediator.policy.problems import Location
from remediator.policy.templates import ReadTemplate
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
    templates: Mapping[str, ReadTemplate] = {}
    """The files of RemediatorConfig's templates, where somebody has read them."""
    now: float | None = None
    """Today, in seconds since the epoch; None: nothing is said of what is over."""


Check = Callable[[RemediationPolicy, Context], Iterator[Hit]]
ConfigCheck = Callable[[ClusterSpec, Mapping[str, ReadTemplate]], Iterator[Hit]]

IGNORE_ANNOTATION: Final = "gpu-remediator.io/lint-ignore"


def _nothing(*_: object) -> Iterator[Hit]:
    yield from ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``why`` is for the documentation: the harm that it is there to prevent.

    ``of_config`` is what it asks of RemediatorConfig itself; most rules ask nothing.
    """

    id: str
    severity: Severity
    says: str
    why: str
    fix: str
    check: Check = _nothing
    of_config: ConfigCheck = _nothing

    @property
    def asks_config(self) -> bool:
        """Whether it asks anything of RemediatorConfig itself."""
        return self.of_config is not _nothing


class Finding(NamedTuple):
    """A hit of a rule in a policy; ``policy`` is "" for RemediatorConfig itself."""

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


def ignored(annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the rules that an author has silenced for a policy, or for RemediatorConfig."""
    return frozenset(annotations.get(IGNORE_ANNOTATION, "").replace(",", " ").split())


def disrupts(policy: RemediationPolicy) -> bool:
    """Tell whether a policy takes capacity away, or ends what runs on the node."""
    return any(step.disruptive or step.works for step in policy.spec.steps)
