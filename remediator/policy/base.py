"""What all models of the files that SREs write have in common: how keys are read, and labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel


LABEL_KEY_PATTERN: Final = (
    r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)

LabelKey = Annotated[str, Field(pattern=LABEL_KEY_PATTERN, max_length=317)]


def schema_keywords(**keywords: Any) -> ConfigDict:
    """Say in JSON schema, too, what a validator of the whole model says."""
    return ConfigDict(json_schema_extra=keywords)


class Model(BaseModel):
    """Base of everything an SRE writes: camelCase keys, unknown keys refused, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        validate_by_name=False,
        validate_by_alias=True,
    )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values, without what was found out of the ones before.

        Pydantic's copy takes the values of each ``cached_property`` along: a policy in another
        mode would keep its version.
        """
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


class LabelRequirement(Model):
    """One expression of a label selector, with Kubernetes' meaning."""

    model_config = schema_keywords(
        **{
            "if": {"properties": {"operator": {"enum": ["In", "NotIn"]}}},
            "then": {"required": ["values"], "properties": {"values": {"minItems": 1}}},
            "else": {"properties": {"values": {"maxItems": 0}}},
        }
    )

    key: LabelKey = Field(description="Of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="`NotIn` also holds where the label is missing."
    )
    values: tuple[str, ...] = Field(
        default=(), strict=False, description="For `In` and `NotIn` only."
    )

    @model_validator(mode="after")
    def _values_fit_operator(self) -> Self:
        if (self.operator in {"In", "NotIn"}) != bool(self.values):
            raise ValueError(
                f"{self.operator} takes "
                + ("at least one value" if self.operator in {"In", "NotIn"} else "no values"),
            )
        return self


class LabelSelector(Model):
    """Kubernetes' label selector. Empty selects everything in scope."""

    match_labels: dict[LabelKey, str] = Field(
        default_factory=dict, description="Labels and their values; all must be there."
    )
    match_expressions: tuple[LabelRequirement, ...] = Field(
        default=(), strict=False, description="Further conditions; all must hold."
    )
