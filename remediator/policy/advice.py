"""What to write in place of a value that does not fit: a message, and its fix.

Wherever the author's own value can be kept, the fix has it, ready to be copied.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from remediator.policy.base import LABEL_KEY_PATTERN
from remediator.policy.channels import (
    MAIL_PATTERN,
    ONE_LINE_PATTERN,
    SLACK_CHANNEL_PATTERN,
    URL_PATTERN,
)
from remediator.policy.drain import NAMESPACE_PATTERN, RESOURCE_PATTERN
from remediator.policy.keys import closest, example, field_names
from remediator.policy.model import NAME_PATTERN
from remediator.policy.sources import SOURCE_URL_PATTERN
from remediator.policy.steps import ACTIONS, LABEL_VALUE_PATTERN, OWN_KEY_PATTERN, REASON_PATTERN
from remediator.policy.steps import NAME_PATTERN as RESOURCE_NAME_PATTERN
from remediator.policy.when import LABEL_NAME_PATTERN, REMEDY_PATTERN, SOURCE_PATTERN
from remediator.policy.windows import DATE_PATTERN, TIME_PATTERN


PATTERNS: Final = {
    NAME_PATTERN: "lower-case letters, digits, - and ., at most 63 characters, "
    "starting and ending with a letter or digit",
    RESOURCE_NAME_PATTERN: "lower-case letters, digits and -, at most 42 characters, "
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
    SOURCE_URL_PATTERN: "an address such as http://alertmanager-0:9093, without ? and #",
    SOURCE_PATTERN: "lower-case letters, digits, - and ., at most 63 characters, "
    "starting and ending with a letter or digit",
    ONE_LINE_PATTERN: "one line",
    MAIL_PATTERN: "an address such as oncall@example.com",
    SLACK_CHANNEL_PATTERN: "an id such as C0123456789, or #name in quotes",
    NAMESPACE_PATTERN: "a namespace, such as kube-system; * stands for any text",
    RESOURCE_PATTERN: "a resource, such as nvidia.com/gpu; * stands for any text",
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
MAPPINGS: Final = frozenset({"dict_type", "model_type", "model_attributes_type"})
_LIST_FORM: Final = "begin each entry with a dash: `- key: value`"
_BOUNDS: Final = {
    "greater_than_equal": ("ge", " is too small", "write {} or more"),
    "less_than_equal": ("le", " is too large", "write {} or less"),
    "string_too_long": ("max_length", " is too long", "write at most {} characters"),
    "string_too_short": ("min_length", "this text is empty", "write at least {} character"),
    "too_short": ("min_length", "this list is empty", "it needs at least {} entry"),
}
_IMPLIED: Final = (
    ("this one has none", "write one of them"),
    ("; this one has ", "keep one here, and write the other as an entry of its own"),
    ("exactly one of", "write one of them, and no other"),
    ("at least one of", "write one of them"),
    ("belong together", "write both, or neither"),
    ("onFailure is hold or escalate", "write onFailure: hold, or leave it out"),
    ("before it begins on", "write the later date as until"),
    ("does not compile", "write it in CEL, as docs/policies/when.md shows"),
    ("is read by gpu-remediator itself", "write a key of your own"),
)
"""Phrases of the models' sentences, which are those of the CRDs, too; the first one counts."""
_SHOWN: Final = 60
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*|[0-9]+[a-z%/][0-9a-z/]*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def advice(error: ErrorDetails) -> tuple[str, str]:
    """Message and fix for a bad value."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind in {"enum", "literal_error"}:
        return _bad_choice(value, re.findall(r"'([^']*)'", str(context.get("expected", ""))))
    if kind in _KINDS:
        return f"{_KINDS[kind]} is expected here, not {_describe(value)}", _retype(kind, value)
    if kind == "string_pattern_mismatch":
        pattern = str(context.get("pattern"))
        return f"{_show(value)} is not valid here", f"write {_in_form(pattern, value)}"
    if kind == "value_error":
        message, _, fix = str(context.get("error", error["msg"])).partition(": write ")
        return message, f"write {fix}" if fix else _implied(message)
    if kind in _BOUNDS:
        key, message, fix = _BOUNDS[kind]
        shown = _show(value) if message.startswith(" ") else ""
        return f"{shown}{message}", fix.format(context.get(key))
    return error["msg"][:1].lower() + error["msg"][1:], ""


def _implied(message: str) -> str:
    """Say what to do about a sentence that only says what is wrong."""
    return next((fix for phrase, fix in _IMPLIED if phrase in message), "")


def _in_form(pattern: str, value: Any) -> str:
    """Say what fits a pattern: the author's own value, where it only lacks a zero."""
    if pattern == TIME_PATTERN and re.fullmatch(TIME_PATTERN, f"0{value}"):
        return f'a time of day in quotes, of two digits each: "0{value}"'
    return PATTERNS.get(pattern, pattern)


def _bad_choice(value: Any, valid: list[str]) -> tuple[str, str]:
    if len(valid) == 1:
        return f"{_show(value)} is not {valid[0]}", f"write {valid[0]}"
    message = f"{_show(value)} is not one of {', '.join(valid)}"
    if isinstance(value, bool) and str(value) in valid:
        return message, f'write it in quotes: "{value}" (without them it is a boolean)'
    meant = closest(str(value), valid) or _begins(str(value), valid)
    return message, f"did you mean {meant}?" if meant else f"write one of them, as {valid[0]}"


def _begins(word: str, valid: list[str]) -> str:
    """Return the one valid word that a longer one begins with, as Sat of Saturday; "" if none."""
    own = [one for one in valid if word.lower().startswith(one.lower())]
    return own[0] if len(own) == 1 else ""


def _retype(kind: str, value: Any) -> str:
    """How to write a value so that it has the type that is expected."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    quoted = isinstance(value, str)
    rewritten = {
        "string_type": f'write it in quotes: "{text}"' if isinstance(value, bool | int) else "",
        "int_type": _number_in(text) if quoted else "",
        "bool_type": f"write it without quotes: {text.lower()}"
        if quoted and text.lower() in {"true", "false"}
        else "",
        "model_type": f"write {text}: {{}}" if text in ACTIONS else "",
        "tuple_type": f"write [{text}]" if isinstance(value, str | int) else _LIST_FORM,
    }
    return rewritten.get(kind, "")


def _number_in(text: str) -> str:
    """Say which number a text such as "94" or Xid94 means; "" if it has none, or several."""
    if text.removeprefix("-").isdecimal():
        return f"write it without quotes: {text}"
    numbers = re.findall(r"[0-9]+", text)
    return f"write the number alone: {numbers[0]}" if len(numbers) == 1 else ""


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


def as_mapping(model: type[BaseModel] | None, value: Any, *, name: str) -> str:
    """Say how to write as a mapping what was written as text, a number or a list."""
    if model is None:
        return ""
    known = field_names(model)
    if not known:
        return f"write {name}: {{}}"
    fitting = (one for key in known for one in ({key: value}, {key: [value]}) if _fits(model, one))
    meant = next(fitting, None)
    if meant is not None:
        return f"write {_flow(meant)}"
    needed = [key for key in known if (shown := example(model, key)) and shown != "..."]
    first = f"write {{{needed[0]}: {example(model, needed[0])}}}; " if needed else ""
    return f"{first}keys here: {', '.join(known)}"


def _fits(model: type[BaseModel], data: dict[str, Any]) -> bool:
    try:
        model.model_validate(data)
    except ValidationError:
        return False
    return True


def entry_of_labels(model: type[BaseModel] | None, key: str, value: Any) -> str:
    """Say where a label belongs that stands where the mapping of labels should; "": it is none."""
    if model is None or not isinstance(value, str):
        return ""
    first, info = next(iter(model.model_fields.items()), (None, None))
    if first is None or info is None or get_origin(info.annotation) is not dict:
        return ""
    *_, kind = get_args(info.annotation)
    return f"write {info.alias or first}: {_flow({key: value})}" if kind is not Any else ""


def _flow(data: dict[str, Any]) -> str:
    """Write a mapping of one key as YAML does on one line."""
    ((key, value),) = data.items()
    listed = isinstance(value, list)
    text = ", ".join(_scalar(one) for one in (value if listed else [value]))
    return f"{{{key}: [{text}]}}" if listed else f"{{{key}: {text}}}"


def _scalar(value: Any) -> str:
    """Write a value of YAML, without quotes where all readers take it for the same text."""
    plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return str(value) if plain else json.dumps(value, ensure_ascii=False)
