"""The clauses that ask for what the driver prints: codes of Xids and SXids, and counts of them.

A code is asked for by name, or by how bad the agent takes it for: the second is for the codes
that nobody thought of, also those that no catalogue knows yet. Nothing is evaluated here.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from node_agent.contract import MAX_TIMES, ConditionType, Severity
from remediator.policy.base import Model, schema_keywords
from remediator.policy.quantities import Duration


DAY_SECONDS: Final = 86400.0

XidCode = Annotated[int, Field(ge=1, le=999)]
SXidCode = Annotated[int, Field(ge=1, le=99999)]
SeverityName = Annotated[Severity, Field(strict=False)]

_WORST_FIRST: Final = (Severity.FATAL, Severity.WARNING, Severity.INFO)
_CODES: Final = "Any of these codes is enough."
_EXCEPT: Final = "Beside `minSeverity`: not these, as other policies see to them."


class Asked(NamedTuple):
    """What it takes of our agent alone to say that nothing of what is asked for is there.

    ``types``: conditions that must be False. ``codes``: those that its report must not name;
    None: it must name none at all. Of Xids and SXids together: to mistake one for the other
    only means to look closer.
    """

    types: frozenset[str] = frozenset()
    codes: frozenset[int] | None = frozenset()

    @property
    def report(self) -> bool:
        """Whether the report of faults is asked at all."""
        return self.codes is None or bool(self.codes)

    @property
    def spoken_by(self) -> frozenset[str]:
        """The conditions of the agent that all of it rests on: the report has one of its own."""
        return self.types | {ConditionType.XID_ERROR} if self.report else self.types

    def joined(self, other: Asked) -> Asked:
        """Return what it takes for both."""
        both = self.codes is None or other.codes is None
        codes = None if both else (self.codes or frozenset()) | (other.codes or frozenset())
        return Asked(self.types | other.types, codes)


class CodesClause(Model):
    """What `xid` and `sxid` have in common: codes by name, or by how bad they are."""

    model_config = schema_keywords(
        oneOf=[{"required": ["codes"]}, {"required": ["minSeverity"]}],
        dependentRequired={"except": ["minSeverity"]},
    )

    codes: tuple[int, ...] | None = None
    min_severity: SeverityName | None = Field(
        default=None,
        description="In place of `codes`: any code that the agent takes for so bad or worse. What"
        " it does not know is a `warning`.",
    )
    except_: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _by_name_or_by_severity(self) -> Self:
        if (self.codes is None) == (self.min_severity is None):
            raise ValueError("it needs exactly one of: codes, minSeverity")
        if self.except_ and self.min_severity is None:
            raise ValueError("except narrows minSeverity; of codes, leave out what is not meant")
        return self

    def asks_for(self, code: int | None, severity: Severity) -> bool:
        """Tell whether a fault with this code and severity is meant."""
        if self.min_severity is None:
            return code in (self.codes or ())
        bad_enough = _WORST_FIRST.index(severity) <= _WORST_FIRST.index(self.min_severity)
        return bad_enough and code not in self.except_


class XidClause(CodesClause):
    """An unresolved Xid (NVIDIA driver error) reported by the agent."""

    codes: tuple[XidCode, ...] | None = Field(
        default=None, min_length=1, strict=False, examples=[[79]], description=_CODES
    )
    except_: tuple[XidCode, ...] = Field(
        default=(), alias="except", strict=False, examples=[[63, 94]], description=_EXCEPT
    )


class SXidClause(CodesClause):
    """An unresolved SXid (NVSwitch error) reported by the agent."""

    codes: tuple[SXidCode, ...] | None = Field(
        default=None, min_length=1, strict=False, examples=[[20034]], description=_CODES
    )
    except_: tuple[SXidCode, ...] = Field(
        default=(), alias="except", strict=False, examples=[[20012]], description=_EXCEPT
    )


class CountClause(Model):
    """So many episodes of a code within a time, the newest of a fault that is not resolved.

    Those before it count for a day, also over a reset or reboot between them. The time ends at the
    newest episode and is measured by the agent's clock alone: no two clocks are compared.
    """

    model_config = schema_keywords(oneOf=[{"required": ["xid"]}, {"required": ["sxid"]}])

    xid: tuple[XidCode, ...] = Field(
        default=(), strict=False, examples=[[94]], description="Episodes of any of these count."
    )
    sxid: tuple[SXidCode, ...] = Field(
        default=(), strict=False, description="The same of an NVSwitch."
    )
    at_least: int = Field(
        ge=2,
        le=MAX_TIMES,
        examples=[3],
        description=f"How many. The agent keeps the times of the last {MAX_TIMES}.",
    )
    within: Duration = Field(
        default=DAY_SECONDS,
        description="In how long a time. Of what was cleared meanwhile, 24 h are known.",
    )
    per: Literal["gpu", "node"] = Field(
        default="gpu", description="Whether one device must have had them, or all together."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.xid) == bool(self.sxid):
            raise ValueError("a count needs exactly one of: xid, sxid")
        return self
