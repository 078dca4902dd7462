"""A policy in the making by a converter, and how it is written down."""

from __future__ import annotations

import itertools
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from remediator.policy.model import API_VERSION
from remediator.policy.yaml import MAX_DEPTH, MAX_NODES


WIDTH: Final = 96
_SAFE: Final = re.compile(r"[A-Za-z][-A-Za-z0-9._/]*")
_SURROGATES: Final = (0xD800, 0xDFFF)
_BASIC: Final = 0xFFFF
_WORDS: Final = frozenset(("true", "false", "yes", "no", "on", "off", "y", "n", "null"))


class ConvertError(Exception):
    """The text cannot be converted. ``str()`` says why."""


@dataclass(slots=True)
class Draft:
    """One policy, and what is to be said above it."""

    name: str
    spec: dict[str, Any]
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Converted:
    """What a converter made. ``notes`` are about the whole file."""

    drafts: list[Draft] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def policy_name(*parts: str) -> str:
    """Return a name that a policy may have, made of words such as ``KernelDeadlock``."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", "-".join(part for part in parts if part))
    name = re.sub(r"[^a-z0-9]+", "-", apart.lower()).strip("-")
    return name[:63].strip("-") or "converted"


def unique(drafts: Sequence[Draft]) -> None:
    """Give drafts of the same name numbers, such that no other has that name."""
    taken, seen = {draft.name for draft in drafts}, set[str]()
    for draft in drafts:
        if draft.name in seen:
            numbered = (f"{draft.name[:58]}-{number}" for number in itertools.count(2))
            draft.name = next(name for name in numbered if name not in taken)
            taken.add(draft.name)
        seen.add(draft.name)


def read_document(text: str, what: str) -> Any:
    """Read JSON or YAML of others.

    Raises:
        ConvertError: it is neither, or too much of it.
    """
    with suppress(ValueError, RecursionError):
        return _bounded(json.loads(text), what)  # YAML reads pairs of escapes in JSON otherwise
    try:
        return _bounded(YAML(typ="safe", pure=True).load(text), what)
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConvertError(f"this is no {what}: {error}") from error


def listed(value: Any, key: str) -> list[Any]:
    """Return a list that may be missing. Raises ConvertError: it is something else."""
    if value is None or isinstance(value, list):
        return value or []
    raise ConvertError(f"{key} is no list: {value}")


def _bounded(data: Any, what: str) -> Any:
    """Return a document that is not too much once its aliases are written out."""
    level, total = [data], 0
    for _ in range(MAX_DEPTH):
        below = (
            one.values() if isinstance(one, Mapping) else one
            for one in level
            if isinstance(one, Mapping | list | set)
        )
        level = list(itertools.islice(itertools.chain.from_iterable(below), MAX_NODES + 1))
        total += len(level)
        if not level:
            return data
        if total > MAX_NODES:
            break
    raise ConvertError(
        f"this {what} has more than {MAX_NODES} values, aliases counted as what they stand for, or "
        f"is nested more than {MAX_DEPTH} levels deep"
    )


def render(found: Converted) -> str:
    """Write policies as YAML documents with their notes as comments."""
    unique(found.drafts)
    documents = []
    for index, draft in enumerate(found.drafts):
        notes = [*(found.notes if index == 0 else ()), *draft.notes]
        lines = [line for note in notes for line in _comment(note)]
        body = {
            "apiVersion": API_VERSION,
            "kind": "RemediationPolicy",
            "metadata": {"name": draft.name},
            "spec": {"mode": "DryRun", **draft.spec},
        }
        documents.append("\n".join([*lines, *_mapping(body, 0)]))
    return "\n---\n".join(documents) + "\n"


def _comment(note: str) -> list[str]:
    printable = "".join(char if char.isprintable() else " " for char in note)
    lines = textwrap.wrap(f"NOTE: {printable}", WIDTH, break_long_words=False)
    return [f"# {line}" if at == 0 else f"#   {line}" for at, line in enumerate(lines)]


def _mapping(value: Mapping[str, Any], depth: int) -> list[str]:
    lines = []
    for key, one in value.items():
        start = f"{'  ' * depth}{_key(key)}:"
        if isinstance(one, Mapping) and one and not _is_flat(one):
            lines += [start, *_mapping(one, depth + 1)]
        elif isinstance(one, Sequence) and not isinstance(one, str) and not _is_plain(one):
            lines += [start, *(f"{'  ' * (depth + 1)}- {_flow(each)}" for each in one)]
        else:
            lines.append(f"{start} {_flow(one)}")
    return lines


def _is_flat(value: Mapping[str, Any]) -> bool:
    return not any(isinstance(one, Mapping | list) for one in value.values())


def _is_plain(value: Sequence[Any]) -> bool:
    return not any(isinstance(one, Mapping | list) for one in value)


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, bool | int):
        return json.dumps(value)
    return _text(str(value))


def _key(text: str) -> str:
    return _text(text)


def _text(text: str) -> str:
    """Quote what any reader of YAML could take for something else than text."""
    duration = re.fullmatch(r"([0-9]+(ms|s|m|h|d))+|[0-9]+%", text)
    plain = duration or (_SAFE.fullmatch(text) and text.lower() not in _WORDS)
    return text if plain else f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    """Write a character within double quotes, so that every reader of YAML takes it."""
    if char in {'"', "\\"}:
        return f"\\{char}"
    if char.isprintable():
        return char
    code = ord(char)
    if _SURROGATES[0] <= code <= _SURROGATES[1]:
        return "?"  # half a character, which no encoding has
    return f"\\u{code:04x}" if code <= _BASIC else f"\\U{code:08x}"
