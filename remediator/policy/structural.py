"""From the model's JSON schema to the structural schema that a CustomResourceDefinition takes.

The same model, told in another dialect: references are written out, `null` and closed objects
have no place there, patterns are RE2 (no look-ahead), and what is checked across fields is said
in CEL, so that `kubectl apply` already refuses it with our own sentence.

The API server bounds what a CEL rule may cost, and for that every list, map and text needs a
limit: where the model has none, `MAX_OBJECTS` and its siblings are set. What only the loader can
tell (time zones, CEL expressions, names of channels) shows in the policy's status instead.

https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from remediator.policy.base import Model
from remediator.policy.drain import PodRule
from remediator.policy.quantities import RATE_PATTERN
from remediator.policy.schema import schema_of
from remediator.policy.steps import ACTIONS
from remediator.policy.when import FILTERS, Clauses, Group, When


MAX_OBJECTS: Final = 64
"""In a list of objects that the model does not bound."""
MAX_SCALARS: Final = 256
MAX_ENTRIES: Final = 64
"""In a map."""
MAX_NESTED: Final = 16
"""In a list of objects within a list within a list, where costs multiply."""
MAX_TEXT: Final = 4096

Json = dict[str, Any]

_KEPT: Final = (
    *("type", "description", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties", "required", "format"),
)
_RE2: Final = {RATE_PATTERN: r"^0*[1-9][0-9]*/([0-9]+(ms|s|m|h|d))+$"}
_BEHAVIOURS: Final = tuple(
    PodRule.model_fields[name].alias or name
    for name in ("evict", "skip", "wait_completion", "delete_after")
)


class Rule(NamedTuple):
    """One of `x-kubernetes-validations`."""

    rule: str
    message: str


def _exactly_one(keys: tuple[str, ...], what: str) -> Rule:
    given = ", ".join(f"has(self.{key})" for key in keys)
    return Rule(
        f"[{given}].filter(given, given).size() == 1",
        f"{what} is exactly one of: {', '.join(keys)}",
    )


def _names_a_fault(model: type[Clauses]) -> Rule:
    keys = [key for key in model.model_fields if key not in FILTERS]
    return Rule(
        " || ".join(f"has(self.{key})" for key in keys),
        f"an entry needs at least one of: {', '.join(keys)}",
    )


_CODES_RULES: Final = (
    Rule("has(self.codes) != has(self.minSeverity)", "it needs exactly one of: codes, minSeverity"),
    Rule(
        "!has(self.except) || self.except.size() == 0 || has(self.minSeverity)",
        "except narrows minSeverity; of codes, leave out what is not meant",
    ),
)
RULES: Final[dict[str, tuple[Rule, ...]]] = {
    "XidClause": _CODES_RULES,
    "SXidClause": _CODES_RULES,
    "Step": (
        _exactly_one(ACTIONS, "a step"),
        Rule(
            "!has(self.approve) || !has(self.onFailure) || self.onFailure != 'continue'",
            "approve does not go on without an approval: onFailure is hold or escalate",
        ),
    ),
    "TaintNode": (
        Rule(
            "!has(self.effect) || self.effect != 'NoExecute' || has(self.acknowledge)",
            "NoExecute evicts daemons such as the device plugin, too: write"
            " `acknowledge: evicts-daemons` beside it, or effect: NoSchedule",
        ),
    ),
    "CreateObject": (
        Rule(
            "!has(self.failOn) || has(self.waitFor)",
            "failOn is looked at while the step waits: write waitFor beside it, or leave it out",
        ),
    ),
    "ConditionClause": (
        Rule(
            "!has(self.clearFor) || has(self.__for__)",
            "clearFor says when `for` begins anew: write `for`, too",
        ),
    ),
    "Wait": (
        Rule(
            "has(self.condition) != has(self.__for__)", "wait takes exactly one of: condition, for"
        ),
    ),
    "PodRule": (_exactly_one(_BEHAVIOURS, "a pod rule"),),
    "LabelRequirement": (
        Rule(
            "(self.operator == 'In' || self.operator == 'NotIn')"
            " == (has(self.values) && self.values.size() > 0)",
            "In and NotIn take at least one value, Exists and DoesNotExist take none",
        ),
    ),
    "CountClause": (
        Rule(
            "(has(self.xid) && self.xid.size() > 0) != (has(self.sxid) && self.sxid.size() > 0)",
            "a count needs exactly one of: xid, sxid",
        ),
    ),
    "AlertClause": (
        Rule(
            "(has(self.name) && self.name != '') || (has(self.labels) && self.labels.size() > 0)",
            "an alert needs a name or labels: without, every alert is meant",
        ),
    ),
    "Clauses": (_names_a_fault(Clauses),),
    "Group": (_names_a_fault(Group),),
    "When": (_names_a_fault(When),),
    "Window": (
        Rule(
            "(has(self.start) ? self.start : '00:00') != (has(self.end) ? self.end : '24:00')"
            " && (!has(self.start) || self.start != '24:00')",
            'a window needs a length: write start: "00:00" and end: "24:00" for the whole day',
        ),
        Rule(
            "!has(self.from) || !has(self.until) || self.from <= self.until",
            "a window must not end before it begins",
        ),
    ),
}
"""By the name of the model: what it checks across its fields."""


def structural(model: type[Model]) -> Json:
    """Return the structural schema of a model.

    Raises:
        ValueError: the model says something that this dialect has no word for.
    """
    schema = schema_of(model)
    return _object_of(schema, schema.get("$defs", {}), name=model.__name__, depth=0)


def _convert(schema: Json, defs: Json, depth: int) -> Json:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        found = _object_of(defs[name], defs, name=name, depth=depth)
        return found | {key: schema[key] for key in ("description",) if key in schema}
    choices = schema.get("anyOf", ())
    if [one.get("type") for one in choices] == ["integer", "string"]:
        return _int_or_string(schema, *choices)
    return _object_of(schema, defs, name="", depth=depth)


def _object_of(schema: Json, defs: Json, *, name: str, depth: int) -> Json:
    """Convert a schema that is no reference; `name` is that of its model, "" of none."""
    made: Json = {key: schema[key] for key in _KEPT if key in schema}
    if "const" in schema:
        made["enum"] = [schema["const"]]
    if "pattern" in made:
        made["pattern"] = _RE2.get(made["pattern"], made["pattern"])
    if "type" not in made:
        raise ValueError(f"no type in {name or schema}")
    kind = made["type"]
    if kind == "object":
        made |= _properties(schema, defs, depth)
    elif kind == "array":
        made["items"] = _convert(schema["items"], defs, depth + 1)
        made.setdefault("maxItems", _most(made["items"], depth))
    elif kind == "string" and "enum" not in made:
        made.setdefault("maxLength", MAX_TEXT)
    if name in RULES:
        made["x-kubernetes-validations"] = [one._asdict() for one in RULES[name]]
    return made


def _properties(schema: Json, defs: Json, depth: int) -> Json:
    if "properties" in schema:
        return {
            "properties": {
                key: _convert(one, defs, depth) for key, one in schema["properties"].items()
            }
        }
    values = next(iter(schema.get("patternProperties", {}).values()), None)
    if values is None:
        values = schema.get("additionalProperties")
    if not isinstance(values, dict):
        return {}
    most = schema.get("maxProperties", MAX_ENTRIES)
    return {"additionalProperties": _convert(values, defs, depth), "maxProperties": most}


def _most(items: Json, depth: int) -> int:
    if items["type"] != "object":
        return MAX_SCALARS
    return MAX_OBJECTS if depth == 0 else MAX_NESTED


def _int_or_string(schema: Json, number: Json, text: Json) -> Json:
    said = {key: schema[key] for key in ("description",) if key in schema}
    bounds = {key: number[key] for key in ("minimum", "maximum") if key in number}
    return {"x-kubernetes-int-or-string": True, "pattern": text["pattern"]} | bounds | said
