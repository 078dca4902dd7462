"""From the model's errors to what an author reads: one sentence, one place, one fix.

pydantic says what is wrong in its own words and where as a path; here the path
becomes a line and column, and the words become advice: which key was meant, which
values there are, where a key belongs. Follow-on errors are left out: a list that is
"too short" only because its entry failed says nothing new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from remediator.policy.advice import MAPPINGS, advice, as_mapping, entry_of_labels
from remediator.policy.keys import closest, depth, example, field_names, homes, model_at, same
from remediator.policy.problems import Location, Problem, format_path
from remediator.policy.tree import Document


_FOLLOW_ON: Final = frozenset({"too_short", "value_error"})
_SYNONYMS: Final = {
    "onTimeout": "onFailure",
    "onError": "onFailure",
    "onFail": "onFailure",
    "deadline": "timeout",
    "retries": "maxAttempts",
}
"""Words of other programs, and ours."""
_FOREIGN: Final = {
    ("drain", "deleteEmptyDirData"): "write despite: [emptyDir]",
    ("drain", "ignoreDaemonSets"): "leave it out: pods of a DaemonSet always stay",
    ("drain", "ignoreDaemonsets"): "leave it out: pods of a DaemonSet always stay",
    ("drain", "force"): "write despite: [unmanaged] for pods that nothing makes anew",
    ("drain", "gracePeriodSeconds"): "write gracePeriod, with its unit: 30s",
    ("drain", "disableEviction"): "write pods: [{deleteAfter: {timeout: 25m}}]",
    ("drain", "podSelector"): "write pods: [{selector: {matchLabels: ...}, evict: {}}]",
    ("steps", "evict"): "write drain: {}",
    ("steps", "delete"): "write drain: {pods: [{deleteAfter: {timeout: 25m}}]}",
    ("steps", "reset"): "write job: {template: ...}, with a template of RemediatorConfig",
    ("steps", "reboot"): "write job: {template: ..., success: reboot}, "
    "with a template of RemediatorConfig",
    ("steps", "slack"): "write notify: {to: [...]}, with a channel of RemediatorConfig",
    ("steps", "message"): "write notify: {to: [...], message: ...}",
    ("xid", "count"): "in place of xid, write count: {xid: [94], atLeast: 3, within: 24h}",
    ("xid", "atLeast"): "in place of xid, write count: {xid: [94], atLeast: 3, within: 24h}",
    ("xid", "within"): "in place of xid, write count: {xid: [94], atLeast: 3, within: 24h}",
}
"""Keys of `kubectl drain`, and others that are looked for here; and what says the same."""
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
    message, fix = advice(error)
    if not fix and kind in MAPPINGS:
        fix = as_mapping(model_at(model, at), error["input"], name=str(at[-1]) if at else "")
    return document.problem(place, message, at=at, fix=fix)


def _unknown_key(document: Document, model: type[BaseModel], at: Location) -> Problem:
    key = str(at[-1])
    here = model_at(model, at[:-1])
    known = field_names(here)
    place = document.find(at).key
    where = format_path(at[:-1]) or "the document"
    message = f"unknown key {key} in {where}"
    nearby = _nearby(document, model, at, _SYNONYMS.get(key, key))
    meant = "" if nearby else closest(key, known)
    labels = entry_of_labels(here, key, document.find(at).data())
    places = [] if meant else sorted(homes(model, key), key=depth)[:_MAX_HOMES]
    above, _ = _enclosing(model, at[:-1])
    if foreign := _FOREIGN.get((str(above), key)):
        fix = foreign
    elif nearby:
        fix = nearby
    elif meant:
        fix = f"did you mean {meant}?"
    elif labels:
        fix = labels
    elif places:
        fix = f"it belongs in {' or '.join(places)}"
    else:
        fix = f"keys here: {', '.join(known)}" if known else "it takes no keys"
    return document.problem(place, message, at=at, fix=fix)


def _nearby(document: Document, model: type[BaseModel], at: Location, word: str) -> str:
    """Say where a key belongs that stands one level too deep or too high; "" if it does not."""
    inside = at[:-1]
    here = model_at(model, inside)
    if own := same(word, field_names(here)):
        return f"did you mean {own}?"
    name, over = _enclosing(model, inside)
    nests = here is not None and over is not None and issubclass(over, here)
    if not nests and (above := same(word, field_names(over))):
        return f"write {above} beside {name}, not in it"
    written = document.find(inside).data()
    for name, value in written.items() if isinstance(written, dict) else ():
        child = model_at(model, (*inside, name))
        if isinstance(value, dict) and (below := same(word, field_names(child))):
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
    value = example(model_at(model, parent), str(at[-1]))
    return document.problem(
        place,
        f"the key {at[-1]} is missing",
        at=at,
        fix=f"add `{at[-1]}: {value}` {where}",
    )
