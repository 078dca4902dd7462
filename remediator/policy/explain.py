"""From the model's errors to what an author reads: one sentence, one place, one fix.

pydantic says what is wrong in its own words and where as a path; here the path
becomes a line and column, and the words become advice: which key was meant, which
values there are, where a key belongs. Follow-on errors are left out: a list that is
"too short" only because its entry failed says nothing new.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from remediator.policy.base import LABEL_KEY_PATTERN
from remediator.policy.channels import URL_PATTERN
from remediator.policy.model import NAME_PATTERN
from remediator.policy.problems import Location, Problem, format_path
from remediator.policy.steps import ACTIONS, LABEL_VALUE_PATTERN, OWN_KEY_PATTERN, REASON_PATTERN
from remediator.policy.tree import Document
from remediator.policy.when import LABEL_NAME_PATTERN, REMEDY_PATTERN
from remediator.policy.windows import DATE_PATTERN, TIME_PATTERN


_FOLLOW_ON: Final = frozenset({"too_short", "value_error"})
_PATTERNS: Final = {
    NAME_PATTERN: "lower-case letters, digits, - and ., at most 63 characters, "
    "starting and ending with a letter or digit",
    LABEL_KEY_PATTERN: "a label key: name or domain.example/name, "
    "with letters, digits, -, _ and . in the name",
    OWN_KEY_PATTERN: "a key that begins with gpu-remediator.io/, "
    "such as gpu-remediator.io/unhealthy",
    LABEL_VALUE_PATTERN: "a label value: at most 63 letters, digits, -, _ and ., "
    "starting and ending with a letter or digit",
    REASON_PATTERN: "a reason: letters and digits, starting with a capital (GPURemediation)",
    LABEL_NAME_PATTERN: "a label of Prometheus: letters, digits and _, not beginning with a digit",
    REMEDY_PATTERN: "a step that makes an attempt: cordon, taint, drain, job, create, webhook; "
    "or job/NAME for one template (create/NAME, webhook/NAME)",
    TIME_PATTERN: 'a time of day in quotes, from "00:00" to "24:00"',
    DATE_PATTERN: 'a date in quotes, such as "2026-12-24"',
    URL_PATTERN: "an address that starts with http:// or https://",
}
_KINDS: Final = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping (`key: value` lines)",
    "model_type": "a mapping (`key: value` lines)",
    "model_attributes_type": "a mapping (`key: value` lines)",
}
_LIST_FORM: Final = "begin each entry with a dash: `- key: value`"
_BOUNDS: Final = {
    "greater_than_equal": ("ge", " is too small", "write {} or more"),
    "less_than_equal": ("le", " is too large", "write {} or less"),
    "string_too_long": ("max_length", " is too long", "write at most {} characters"),
    "string_too_short": ("min_length", "this text is empty", "write at least {} character"),
    "too_short": ("min_length", "this list is empty", "it needs at least {} entry"),
}
_SHOWN: Final = 60
_SYNONYMS: Final = {
    "onTimeout": "onFailure",
    "onError": "onFailure",
    "onFail": "onFailure",
    "deadline": "timeout",
    "retries": "maxAttempts",
}
"""Words of other programs, and ours."""
_MAX_HOMES: Final = 3
"""Places named for a key: those nearest to the top. Entries that nest have the same keys again."""


def explain(
    document: Document, model: type[BaseModel], errors: Sequence[ErrorDetails]
) -> list[Problem]:
    """Turn the errors of validating `document` as `model` into problems, first line first."""
    own = [(_location(error), error) for error in errors]
    kept = [
        (location, error)
        for location, error in own
        if location not in document.blamed
        and not (error["type"] in _FOLLOW_ON and _causes(location, own, document))
    ]
    problems = [_problem(document, model, location, error) for location, error in kept]
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def _causes(
    location: Location, errors: list[tuple[Location, ErrorDetails]], document: Document
) -> bool:
    """Tell whether something below `location` is wrong already."""
    below = [other for other, _ in errors] + list(document.blamed)
    return any(len(at) > len(location) and at[: len(location)] == location for at in below)


def _location(error: ErrorDetails) -> Location:
    return tuple(part for part in error["loc"] if part != "[key]")


def _problem(
    document: Document, model: type[BaseModel], at: Location, error: ErrorDetails
) -> Problem:
    kind = error["type"]
    if kind == "extra_forbidden":
        return _unknown_key(document, model, at)
    if kind == "missing":
        return _missing_key(document, model, at)
    node = document.find(at)
    place = node.key if error["loc"] and error["loc"][-1] == "[key]" else node.place
    message, fix = _advice(error)
    return document.problem(place, message, at=at, fix=fix)


def _unknown_key(document: Document, model: type[BaseModel], at: Location) -> Problem:
    key = str(at[-1])
    known = field_names(model_at(model, at[:-1]))
    place = document.find(at).key
    where = format_path(at[:-1]) or "the document"
    message = f"unknown key {key} in {where}"
    nearby = _nearby(document, model, at, _SYNONYMS.get(key, key))
    meant = "" if nearby else closest(key, known)
    homes = [] if meant else sorted(_homes(model, key), key=_depth)[:_MAX_HOMES]
    if nearby:
        fix = nearby
    elif meant:
        fix = f"did you mean {meant}?"
    elif homes:
        fix = f"it belongs in {' or '.join(homes)}"
    else:
        fix = f"keys here: {', '.join(known)}" if known else "it takes no keys"
    return document.problem(place, message, at=at, fix=fix)


def _nearby(document: Document, model: type[BaseModel], at: Location, word: str) -> str:
    """Say where a key belongs that stands one level too deep or too high; "" if it does not."""
    inside = at[:-1]
    here = model_at(model, inside)
    if own := _same(word, field_names(here)):
        return f"did you mean {own}?"
    name, over = _enclosing(model, inside)
    nests = here is not None and over is not None and issubclass(over, here)
    if not nests and (above := _same(word, field_names(over))):
        return f"write {above} beside {name}, not in it"
    written = document.find(inside).data()
    for name, value in written.items() if isinstance(written, dict) else ():
        child = model_at(model, (*inside, name))
        if isinstance(value, dict) and (below := _same(word, field_names(child))):
            return f"it belongs in {name}: `{name}: {{{below}: ...}}`"
    return ""


def _enclosing(model: type[BaseModel], at: Location) -> tuple[str | int, type[BaseModel] | None]:
    """Return the key under which a mapping stands, itself or in a list, and that key's model."""
    keys = [place for place, part in enumerate(at) if isinstance(part, str)]
    return (at[keys[-1]], model_at(model, at[: keys[-1]])) if keys else ("", None)


def _missing_key(document: Document, model: type[BaseModel], at: Location) -> Problem:
    parent = at[:-1]
    node = document.find(parent)
    place = node.key if parent and isinstance(parent[-1], str) else node.place
    where = f"under {format_path(parent)}" if parent else "at the top of the document"
    example = _example(model_at(model, parent), str(at[-1]))
    return document.problem(
        place,
        f"the key {at[-1]} is missing",
        at=at,
        fix=f"add `{at[-1]}: {example}` {where}",
    )


def _advice(error: ErrorDetails) -> tuple[str, str]:
    """Message and fix for a bad value."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind in {"enum", "literal_error"}:
        return _bad_choice(value, re.findall(r"'([^']*)'", str(context.get("expected", ""))))
    if kind in _KINDS:
        return f"{_KINDS[kind]} is expected here, not {_describe(value)}", _retype(kind, value)
    if kind == "string_pattern_mismatch":
        pattern = str(context.get("pattern"))
        return f"{_show(value)} is not valid here", f"write {_PATTERNS.get(pattern, pattern)}"
    if kind == "value_error":
        message, _, fix = str(context.get("error", error["msg"])).partition(": write ")
        return message, f"write {fix}" if fix else ""
    if kind in _BOUNDS:
        key, message, fix = _BOUNDS[kind]
        shown = _show(value) if message.startswith(" ") else ""
        return f"{shown}{message}", fix.format(context.get(key))
    return error["msg"][:1].lower() + error["msg"][1:], ""


def _bad_choice(value: Any, valid: list[str]) -> tuple[str, str]:
    message = f"{_show(value)} is not one of {', '.join(valid)}"
    if isinstance(value, bool) and str(value) in valid:
        return message, f'write it in quotes: "{value}" (without them it is a boolean)'
    meant = closest(str(value), valid)
    return message, f"did you mean {meant}?" if meant else f"write one of them, as {valid[0]}"


def _retype(kind: str, value: Any) -> str:
    """How to write a value so that it has the type that is expected."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    quoted = isinstance(value, str)
    rewritten = {
        "string_type": f'write it in quotes: "{text}"' if isinstance(value, bool | int) else "",
        "int_type": f"write it without quotes: {text}"
        if quoted and text.removeprefix("-").isdecimal()
        else "",
        "bool_type": f"write it without quotes: {text.lower()}"
        if quoted and text.lower() in {"true", "false"}
        else "",
        "model_type": f"write {text}: {{}}" if text in ACTIONS else "",
        "tuple_type": f"write [{text}]" if isinstance(value, str | int) else _LIST_FORM,
    }
    return rewritten.get(kind, "")


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"the text {_show(value)}" if isinstance(value, str) else _show(value)


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def closest(word: str, known: Sequence[str]) -> str:
    """Return the known word that `word` most likely means, "" if none is near."""
    folded = {_fold(name): name for name in known}
    if _fold(word) in folded:
        return folded[_fold(word)]
    near = difflib.get_close_matches(_fold(word), list(folded), n=1, cutoff=0.7)
    return folded[near[0]] if near else ""


def _same(word: str, known: Sequence[str]) -> str:
    """Return the known word that differs by case, `_` and `-` at most; "" if there is none."""
    return next((name for name in known if _fold(name) == _fold(word)), "")


def _fold(word: str) -> str:
    return word.replace("_", "").replace("-", "").lower()


def field_names(model: type[BaseModel] | None) -> list[str]:
    """Return the keys of a model, as they are written."""
    if model is None:
        return []
    return [info.alias or name for name, info in model.model_fields.items()]


def model_at(model: type[BaseModel], location: Location) -> type[BaseModel] | None:
    """Return the model of the mapping at `location`, None where there is none."""
    current: type[BaseModel] | None = model
    for part in location:
        if current is None:
            return None
        if isinstance(part, str):
            current = nested_model(annotation_of(current, part))
    return current


def annotation_of(model: type[BaseModel], key: str) -> Any:
    """Return the type of a key, None if there is no such key."""
    for name, info in model.model_fields.items():
        if key == (info.alias or name):
            return info.annotation
    return None


def nested_model(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside `X | None`, `tuple[X, ...]`, `dict[str, X]` or X itself."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := nested_model(arg))), None)


def _depth(path: str) -> tuple[int, str]:
    return path.count("."), path


def _homes(model: type[BaseModel], key: str, prefix: str = "") -> Iterator[str]:
    """Yield the paths of the mappings that have a key of this name."""
    for name, info in model.model_fields.items():
        alias = info.alias or name
        if alias == key:
            yield prefix or "the top of the document"
        child = nested_model(info.annotation)
        if child is not None:
            many = "[]" if "tuple" in str(info.annotation) else ""
            path = f"{prefix}.{alias}{many}" if prefix else f"{alias}{many}"
            yield from _homes(child, key, path)


def _example(model: type[BaseModel] | None, key: str) -> str:
    """How a value of this key may look."""
    if model is None:
        return "..."
    for name, info in model.model_fields.items():
        if key == (info.alias or name):
            if info.examples:
                return json.dumps(info.examples[0]).strip('"')
            literal = get_args(info.annotation)
            if len(literal) == 1 and isinstance(literal[0], str):
                return literal[0]
    return "..."
