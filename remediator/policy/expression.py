"""CEL expressions: an optional filter in ``when``, by the package of the extra ``cel``.

Structured clauses are the language; an expression is for what they cannot say. It is bounded:
declared variables only, an iteration budget and RE2 patterns in the library, and no function of
ours. It is checked when the policy is loaded, types included, and must give a boolean.

https://github.com/cel-expr/cel-python; the language: https://github.com/cel-expr/cel-spec
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final


MISSING: Final = (
    "cel needs a package that is not installed: write structured clauses instead,"
    " or install gpu-remediator[controller,cel]"
)
_FIRST_ERROR: Final = re.compile(r"<input>:(\d+):(\d+): ([^\n]*)")
_MAX_SAID: Final = 200


class ExpressionError(Exception):
    """An expression failed while it ran; ``str()`` says how. What it asks is not known."""


def check(text: str) -> None:
    """Compile an expression. Raises ValueError that says what is wrong with it."""
    _compiled(text)


def holds(text: str, values: Mapping[str, Any]) -> bool:
    """Evaluate an expression over the values of :data:`VARIABLES`.

    Raises:
        ExpressionError: it failed: a key that is not there, a budget that is used up.
        ValueError: it does not compile. It was checked when its policy was loaded.
    """
    compiled = _compiled(text)
    try:
        value = compiled.eval(data=values).value()
    except RuntimeError as error:  # the iteration budget
        raise ExpressionError(str(error)[:_MAX_SAID]) from error
    if not isinstance(value, bool):  # errors come back as a value that is text
        raise ExpressionError(str(value)[:_MAX_SAID])
    return value


VARIABLES: Final = {
    "name": "STRING",
    "pool": "STRING",
    "zone": "STRING",
    "ready": "BOOL",
    "unschedulable": "BOOL",
    "attempts": "INT",
    "labels": "MAP",
    "conditions": "MAP",
    "faults": "LIST",
    "alerts": "LIST",
}
"""What an expression may name, with its type. ``docs/policies/when.md`` says what each is."""


@lru_cache(maxsize=1)
def _environment() -> Any:
    from cel_expr_python import cel  # noqa: PLC0415 - an extra, and 14 MB: only where it is used

    kinds = cel.Type
    text, anything = kinds.STRING, kinds.DYN
    types = {name: getattr(kinds, kind) for name, kind in VARIABLES.items()}
    types |= {
        "labels": kinds.Map(text, text),
        "conditions": kinds.Map(text, kinds.Map(text, text)),
        "faults": kinds.List(kinds.Map(text, anything)),
        "alerts": kinds.List(kinds.Map(text, anything)),
    }
    return cel.NewEnv(variables=types), kinds.BOOL


@lru_cache(maxsize=512)
def _compiled(text: str) -> Any:
    try:
        environment, boolean = _environment()
    except ImportError:
        raise ValueError(MISSING) from None
    try:
        compiled = environment.compile(text)
    except RuntimeError as error:
        found = _FIRST_ERROR.search(str(error))
        said = f"column {found[2]}: {found[3]}" if found else str(error)
        raise ValueError(f"the expression does not compile: {said[:_MAX_SAID]}") from None
    if compiled.return_type() != boolean:
        kind = compiled.return_type().name()
        raise ValueError(f"the expression gives {kind}, not true or false: write a comparison")
    return compiled
