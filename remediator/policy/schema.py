"""The JSON schema of policy files, for editors and other checkers.

Made from the model, so that it cannot drift. It is stricter than what pydantic makes
of optional fields: null is no value here, as it is none for the loader.
"""

from __future__ import annotations

from typing import Any, Final

from remediator.policy.base import Model
from remediator.policy.cluster import RemediatorConfig
from remediator.policy.model import RemediationPolicy
from remediator.policy.quantities import (
    DURATION_PATTERN,
    RATE_PATTERN,
    Rate,
    format_duration,
    format_rate,
)


DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
KINDS: Final[dict[str, type[Model]]] = {
    "RemediationPolicy": RemediationPolicy,
    "RemediatorConfig": RemediatorConfig,
}


def json_schema(kind: str = "RemediationPolicy") -> dict[str, Any]:
    """Return the schema (draft 2020-12) of a kind of file.

    Raises:
        KeyError: no such kind.
    """
    return schema_of(KINDS[kind])


def schema_of(model: type[Model]) -> dict[str, Any]:
    """Return the schema of a model of what SREs write."""
    cleaned: dict[str, Any] = _tidy(model.model_json_schema(by_alias=True))
    return {"$schema": DIALECT, **cleaned}


def _tidy(value: Any) -> Any:
    """Drop `null`, and pydantic's titles, which repeat the key; write defaults as people do."""
    if isinstance(value, list):
        return [_tidy(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {
        key: _properties(one) if key in {"properties", "$defs"} else _tidy(one)
        for key, one in value.items()
        if not (key == "title" and isinstance(one, str)) and not (key == "default" and one is None)
    }
    if kept.get("pattern") == DURATION_PATTERN and isinstance(kept.get("default"), float):
        kept["default"] = format_duration(kept["default"])
    if kept.get("pattern") == RATE_PATTERN and isinstance(kept.get("default"), list):
        kept["default"] = format_rate(Rate(*kept["default"]))
    if "patternProperties" in kept:
        kept["additionalProperties"] = False  # a key that is no label key
    if isinstance(kept.get("description"), str):
        kept["description"] = kept["description"].replace("``", "`")
    choices = kept.get("anyOf")
    if isinstance(choices, list) and {"type": "null"} in choices:
        rest = [one for one in choices if one != {"type": "null"}]
        del kept["anyOf"]
        kept |= rest[0] if len(rest) == 1 else {"anyOf": rest}
    return kept


def _properties(value: dict[str, Any]) -> dict[str, Any]:
    """A key may be called `title` or `default`: names are left alone."""
    return {name: _tidy(one) for name, one in value.items()}
