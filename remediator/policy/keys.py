"""The keys of the files that SREs write: which there are, which was meant, where one belongs."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from remediator.policy.problems import Location


def closest(word: str, known: Sequence[str]) -> str:
    """Return the known word that `word` most likely means, "" if none is near."""
    folded = {_fold(name): name for name in known}
    if _fold(word) in folded:
        return folded[_fold(word)]
    near = difflib.get_close_matches(_fold(word), list(folded), n=1, cutoff=0.7)
    return folded[near[0]] if near else ""


def same(word: str, known: Sequence[str]) -> str:
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
    """Return the model of the mapping at `location`, None where there is none.

    Where names of the author's own are the keys (`channels`), the part behind it is such a name.
    """
    current: type[BaseModel] | None = model
    named = False
    for part in location:
        if named:
            named = False
        elif current is None:
            return None
        elif isinstance(part, str):
            annotation = annotation_of(current, part)
            current, named = nested_model(annotation), has_names(annotation)
    return None if named else current


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


def has_names(annotation: Any) -> bool:
    """Tell whether a type is a mapping whose keys are names that the author gives."""
    return get_origin(annotation) is dict or any(map(has_names, get_args(annotation)))


def depth(path: str) -> tuple[int, str]:
    """Return what sorts paths of keys: those nearest to the top first."""
    return path.count("."), path


def homes(model: type[BaseModel], key: str, prefix: str = "") -> Iterator[str]:
    """Yield the paths of the mappings that have a key of this name."""
    for name, info in model.model_fields.items():
        alias = info.alias or name
        if alias == key:
            yield prefix or "the top of the document"
        child = nested_model(info.annotation)
        if child is not None:
            many = "[]" if "tuple" in str(info.annotation) else ""
            many = ".NAME" if has_names(info.annotation) else many
            path = f"{prefix}.{alias}{many}" if prefix else f"{alias}{many}"
            yield from homes(child, key, path)


def example(model: type[BaseModel] | None, key: str) -> str:
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
