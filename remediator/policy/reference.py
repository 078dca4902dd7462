"""The reference page of policy files, written from the model.

    python -m remediator.policy.reference docs/policies/reference.md

A test compares the page with what this gives, so that it cannot drift.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from remediator.policy.quantities import DURATION_PATTERN, RATE_PATTERN
from remediator.policy.schema import KINDS, json_schema


_INTRO: Final = """\
# Policy files: reference

Every key of `RemediationPolicy` and `RemediatorConfig`. How to write a policy, with
examples, is in [the guide](index.md). This page is generated from the model
(`python -m remediator.policy.reference docs/policies/reference.md`); the same model
gives the JSON schema: `remediator policy schema`.

*duration* is a number with its unit, such as `30s`, `10m` or `1h30m`; *rate* is starts
per time, such as `10/10m`; *amount* is a number of nodes (`3`) or a percentage (`10%`).
Keys in bold must be given.
"""


def reference() -> str:
    """Return the page."""
    parts = [_INTRO]
    seen: set[str] = set()
    for kind in KINDS:
        parts += sections(kind, json_schema(kind), seen)
    return "\n".join(parts)


def sections(kind: str, schema: dict[str, Any], seen: set[str]) -> Iterator[str]:
    """Yield the sections of a kind and of its models, each model once (``seen``)."""
    yield f"## {kind}\n\n{_text(schema)}\n\n{_table(schema, schema)}"
    for name, model in _models(schema, schema):
        if name not in seen:
            seen.add(name)
            yield f"### {name}\n\n{_text(model)}\n\n{_table(model, schema)}"


def _models(model: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the models below one, depth first, in the order of their keys."""
    for name in _mentioned(model.get("properties", {})):
        below = schema["$defs"][name]
        if "properties" in below:
            yield name, below
            yield from _models(below, schema)


def _mentioned(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        for one in value.values():
            yield from _mentioned(one)


def _text(model: dict[str, Any]) -> str:
    return " ".join(str(model.get("description", "")).split())


def _table(model: dict[str, Any], schema: dict[str, Any]) -> str:
    if not model["properties"]:
        return "It takes no keys: write `{}`.\n"
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    required = model.get("required", [])
    for key, about in model["properties"].items():
        name = f"**`{key}`**" if key in required else f"`{key}`"
        empty = about.get("default") in ("", [])
        default = f"`{json.dumps(about['default'])}`" if "default" in about and not empty else ""
        meaning = _text(about)
        row = f"| {name} | {_kind(about, schema)} | {default.replace(chr(34), '')} | {meaning} |"
        rows.append(" ".join(row.split()))
    return "\n".join(rows) + "\n"


def _kind(about: dict[str, Any], schema: dict[str, Any]) -> str:
    """Say in a few words what a value is."""
    if "$ref" in about:
        name = about["$ref"].rpartition("/")[2]
        target = schema["$defs"][name]
        return _choices(target["enum"]) if "enum" in target else f"[{name}](#{name.lower()})"
    if choices := about.get("enum") or ([about["const"]] if "const" in about else []):
        return _choices(choices)
    if about.get("type") == "array":
        return f"list of {_kind(about['items'], schema)}"
    if about.get("type") == "object" and about.get("additionalProperties") is True:
        return "mapping"
    if about.get("type") == "object":
        return f"mapping of text to {_kind(about.get('additionalProperties') or {}, schema)}"
    return _scalar(about)


def _scalar(about: dict[str, Any]) -> str:
    quantities = {DURATION_PATTERN: "duration", RATE_PATTERN: "rate"}
    kinds = {"boolean": "`true`, `false`", "integer": f"number{_bounds(about)}"}
    if "anyOf" in about:
        return "amount"
    return quantities.get(about.get("pattern", ""), kinds.get(about.get("type", ""), "text"))


def _choices(values: list[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _bounds(about: dict[str, Any]) -> str:
    low, high = about.get("minimum"), about.get("maximum")
    if low is not None and high is not None:
        return f" {low} to {high}"
    return f" from {low}" if low is not None else ""


def main(arguments: list[str]) -> None:
    """Write the page to the file that is named."""
    Path(arguments[0]).write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
