"""The clauses of a policy: what ``when`` and ``unless`` may ask for.

An entry is one model of optional keys, and all that are set must hold: a tagged union would
turn one misspelt key into one error per alternative. Entries nest through ``all`` and ``any``,
twice and no deeper: that is as much as a person can read, the depth is in the types, and so
the JSON schema, the CRD and the errors need no recursion.

Durations are seconds. Nothing here is evaluated: that is ``remediator.decide.match``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from node_agent.contract import ConditionType, Severity
from remediator.policy.base import Model, schema_keywords
from remediator.policy.codes import (
    DAY_SECONDS,
    Asked,
    CountClause,
    SeverityName,
    SXidClause,
    XidClause,
)
from remediator.policy.expression import check
from remediator.policy.quantities import Duration


NODE_LABELS: Final = ("exported_node", "node", "Hostname", "hostname")
"""Labels of a query's result that name a node, in this order. ``exported_node`` is first: where
it is there, ``node`` is the node of the program that was scraped."""
WELL_WORDS: Final = ("Ready", "Healthy")
"""Types of conditions that end so say what is well: ``Ready``, ``AcceleratedHardwareReady``. Others
say what is wrong, by the convention of node-problem-detector."""
LABEL_NAME_PATTERN: Final = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
SOURCE_PATTERN: Final = r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$"
MAX_PROMQL: Final = 4096
MAX_EXPRESSION: Final = 2048
_KEY_CHARACTERS: Final = 12

PromQL = Annotated[str, Field(min_length=1, max_length=MAX_PROMQL)]
SourceName = Annotated[str, Field(pattern=SOURCE_PATTERN)]
REMEDY_PATTERN: Final = (
    r"^(cordon|taint|drain|((job|create|webhook)(/[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?)?))$"
)
LabelName = Annotated[str, Field(pattern=LABEL_NAME_PATTERN)]


class ConditionClause(Model):
    """A node condition, of any writer, that has had a status for some time."""

    model_config = schema_keywords(dependentRequired={"clearFor": ["for"]})

    type: str = Field(
        min_length=1,
        max_length=316,
        examples=["GPULost"],
        description="The agent's types stand in docs/contract.md; any other type works as well.",
    )
    status: Literal["True", "False", "Unknown"] = Field(
        default="True",
        description='In quotes: `"True"` is text, `True` a boolean.'
        ' `"False"` for types that say what is well, such as `AcceleratedHardwareReady`.',
    )
    reasons: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Only these reasons count. Empty: any reason; it may change meanwhile.",
    )
    for_: Duration = Field(
        default=0.0,
        alias="for",
        description="How long it must have lasted, by the controller's own clock.",
    )
    clear_for: Duration = Field(
        default=0.0,
        description="Beside `for`: when it was otherwise for less than this, `for` does not begin"
        " anew. For a status that comes and goes.",
    )
    severity: SeverityName | None = Field(
        default=None,
        description="How bad it is. Default: as the worst fault that the agent reports beside a "
        "type of its own, else `warning`.",
    )

    @model_validator(mode="after")
    def _clear_for_beside_for(self) -> Self:
        if self.clear_for and not self.for_:
            raise ValueError("clearFor says when `for` begins anew: write `for`, too")
        return self


class AlertClause(Model):
    """A firing alert of an Alertmanager that names the node.

    In ``unless``: any firing alert, whether or not it names a node.
    """

    model_config = schema_keywords(anyOf=[{"required": ["name"]}, {"required": ["labels"]}])

    name: str = Field(default="", max_length=512, description="Its `alertname`.")
    labels: dict[LabelName, str] = Field(
        default_factory=dict, description="Labels and their values; all must be there."
    )
    source: SourceName | None = Field(
        default=None, description="Name of an Alertmanager in RemediatorConfig. Default: any."
    )
    for_: Duration = Field(
        default=0.0, alias="for", description="How long the controller must have seen it fire."
    )
    severity: SeverityName | None = Field(
        default=None,
        description="How bad it is. Default: `fatal` for an alert with `severity: critical` or "
        "`page`, `info` for `info` or `none`, else `warning`.",
    )

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not self.name and not self.labels:
            raise ValueError("an alert needs a name or labels: without, every alert is meant")
        return self


class QueryClause(Model):
    """A PromQL query whose result names the node.

    In ``unless``: a query that has any result.
    """

    promql: PromQL = Field(
        examples=["DCGM_FI_DEV_XID_ERRORS == 79"],
        description="An instant query. Each series of its result names a node by a label.",
    )
    node_from: tuple[LabelName, ...] = Field(
        default=NODE_LABELS,
        min_length=1,
        strict=False,
        description="Labels that may name the node. Two that name different nodes are refused;"
        " where a series has `exported_node`, that one alone counts.",
    )
    for_: Duration = Field(
        default=0.0, alias="for", description="How long the node must have been in the result."
    )
    interval: Duration = Field(default=30.0, description="How often it is asked.")
    cleared_by: PromQL | None = Field(
        default=None,
        description="A query whose result names the nodes that are well again. Without it a "
        "remediation that this query began ends by hand: absence proves nothing.",
    )
    source: SourceName | None = Field(
        default=None,
        description="Name of a Prometheus in RemediatorConfig. Default: the first.",
    )
    severity: SeverityName = Field(default=Severity.WARNING, description="How bad it is.")

    @field_validator("interval")
    @classmethod
    def _not_in_a_loop(cls, seconds: float) -> float:
        if seconds < 1.0:
            raise ValueError("a query is asked at most once a second: write 1s or more")
        return seconds

    @cached_property
    def key(self) -> str:
        """Short hash of what is asked: queries that ask the same are asked once."""
        asked = [self.promql, self.node_from, self.interval, self.cleared_by, self.source]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:_KEY_CHARACTERS]


class AttemptsClause(Model):
    """How often this node was remediated before: a filter for the second line of help."""

    at_least: int = Field(
        ge=1,
        le=100,
        examples=[2],
        description="Earlier sessions that ended, and that took the node out of service or worked"
        " on it: cordon, taint, drain, job, create, webhook.",
    )
    within: Duration = Field(default=DAY_SECONDS, description="In how long a time; at most 24h.")
    policies: tuple[Annotated[str, Field(min_length=1, max_length=253)], ...] = Field(
        default=(),
        strict=False,
        max_length=20,
        description="Only what these did. Default: any policy.",
    )
    steps: tuple[Annotated[str, Field(pattern=REMEDY_PATTERN)], ...] = Field(
        default=(),
        strict=False,
        max_length=20,
        examples=[["job/gpu-reset"]],
        description="Only sessions that began one of these: `drain`, `job` for any Job, or"
        " `job/NAME` for one template (`create/NAME`; `webhook/NAME` for one endpoint).",
    )

    @field_validator("within")
    @classmethod
    def _as_long_as_remembered(cls, seconds: float) -> float:
        if not 0 < seconds <= DAY_SECONDS:
            raise ValueError("attempts of the last 24 h are remembered: write 24h or less")
        return seconds


FILTERS: Final = ("attempts", "cel")
"""Keys that name no fault of their own, and so nothing that could clear."""
_AGENT_TYPES: Final = frozenset(ConditionType)
_CLAUSES: Final = ("xid", "sxid", "condition", "alert", "query", "count", *FILTERS)


class Clauses(Model):
    """An entry without further nesting: all keys that are set must hold."""

    model_config = schema_keywords(minProperties=1)

    xid: XidClause | None = Field(default=None, description="An unresolved Xid.")
    sxid: SXidClause | None = Field(default=None, description="An unresolved SXid.")
    condition: ConditionClause | None = Field(default=None, description="A node condition.")
    alert: AlertClause | None = Field(default=None, description="A firing alert.")
    query: QueryClause | None = Field(default=None, description="A PromQL query.")
    count: CountClause | None = Field(default=None, description="Episodes within a time.")
    attempts: AttemptsClause | None = Field(
        default=None, description="Earlier remediations. Beside a clause that names a fault."
    )
    cel: Annotated[str, Field(min_length=1, max_length=MAX_EXPRESSION)] | None = Field(
        default=None,
        description="A CEL expression over the node's facts. Beside a clause that names a fault.",
    )

    @cached_property
    def given(self) -> tuple[tuple[str, Any], ...]:
        """The keys that are set, each with what it asks."""
        return tuple((key, getattr(self, key)) for key in _given(self))

    @cached_property
    def unfiltered(self) -> Clauses:
        """The same without its filters: only the faults that it names."""
        fields: dict[str, Any] = {
            key: tuple(one.unfiltered for one in clause) if key in {"all", "any"} else clause
            for key, clause in self.given
            if key not in FILTERS
        }
        return self.model_construct(**fields)

    def each(self, key: str) -> Iterator[Any]:
        """Yield what is asked by a key here and in every entry below: each ``alert``, say."""
        for name, clause in self.given:
            if name == key:
                yield clause
            elif name in {"all", "any"}:
                for below in clause:
                    yield from below.each(key)

    @cached_property
    def asked(self) -> Asked | None:
        """What our agent must say for "not there"; None if anybody else is asked, too.

        Filters ask nothing where no fault is.
        """
        return joined(_asked(key, clause) for key, clause in self.given if key not in FILTERS)

    @model_validator(mode="after")
    def _names_a_fault(self) -> Self:
        given = _given(self)
        if not given:
            raise ValueError(f"an entry needs at least one of: {', '.join(_keys(self))}")
        if set(given).issubset(FILTERS):
            faults = [key for key in _keys(self) if key not in FILTERS]
            raise ValueError(
                f"{' and '.join(given)} alone names no fault, and so nothing that could clear: "
                f"write it into one entry with at least one of: {', '.join(faults)}",
            )
        return self

    @field_validator("cel")
    @classmethod
    def _compiles(cls, text: str | None) -> str | None:
        if text is not None:
            check(text)
        return text


class Group(Clauses):
    """An entry within ``all`` or ``any``: all keys that are set must hold."""

    all: tuple[Clauses, ...] | None = Field(
        default=None, min_length=1, strict=False, description="Entries that must all hold."
    )
    any: tuple[Clauses, ...] | None = Field(
        default=None, min_length=1, strict=False, description="Entries of which one is enough."
    )


class When(Group):
    """One entry of ``when``: all keys that are set must hold. Any entry is enough."""

    all: tuple[Group, ...] | None = Field(
        default=None, min_length=1, strict=False, description="Entries that must all hold."
    )
    any: tuple[Group, ...] | None = Field(
        default=None, min_length=1, strict=False, description="Entries of which one is enough."
    )


class Unless(Model):
    """One entry of ``unless``: all keys that are set must hold. Any entry is enough."""

    model_config = schema_keywords(minProperties=1)

    alert: AlertClause | None = Field(
        default=None, description="Any firing alert; a silenced one, too."
    )
    query: QueryClause | None = Field(default=None, description="A query that has a result.")
    condition: ConditionClause | None = Field(
        default=None, description="A condition of the node. One that is not there does not hold."
    )

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not _given(self):
            raise ValueError("an entry of `unless` needs at least one of: alert, query, condition")
        return self


def joined(parts: Iterable[Asked | None]) -> Asked | None:
    """Return what all of these ask of our agent; None if one asks somebody else, too."""
    found = Asked()
    for one in parts:
        if one is None:
            return None
        found = found.joined(one)
    return found


def _asked(key: str, clause: Any) -> Asked | None:
    if key in {"xid", "sxid"}:
        return Asked(codes=None if clause.codes is None else frozenset(clause.codes))
    if key == "count":
        return Asked(codes=frozenset((*clause.xid, *clause.sxid)))
    if key in {"all", "any"}:
        return joined(one.asked for one in clause)
    if key == "condition" and clause.status == "True" and clause.type in _AGENT_TYPES:
        return Asked(types=frozenset({clause.type}))
    return None


def _keys(entry: Model) -> list[str]:
    return list(type(entry).model_fields)


def _given(entry: Model) -> list[str]:
    return [key for key in _keys(entry) if getattr(entry, key) is not None]
