"""What all models of the files that SREs write have in common: how keys are read, and labels."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field
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
