"""Templates of messages: a small, bounded part of Jinja2, in its sandbox.

    {{ urgency | upper }}: {{ title }}{% if count > 1 %} ({{ count }} nodes){% endif %}

What may be written is listed, not what may not: values, ``if``, ``for`` (two deep), comparisons
and a few filters. No call, no assignment, no arithmetic: nothing that could run for long, grow
without bound, or reach anything but the words of the message. What is left runs in Jinja2's
sandbox all the same. https://jinja.palletsprojects.com/en/stable/sandbox/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from jinja2 import StrictUndefined, Template, TemplateError, Undefined, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment


MAX_TEMPLATE: Final = 4096
"""Characters of a template."""
MAX_TITLE: Final = 250
"""Characters of a title; more are cut."""
MAX_TEXT: Final = 8000
"""Characters of a text; more are cut."""
MAX_ITEMS: Final = 50
"""Nodes and messages that a template sees; ``count`` has them all."""
_DEEPEST_LOOP: Final = 2
_LISTS: Final = ("nodes", "messages")
"""What ``for`` may go over: over a text's characters, twice, it would take minutes."""
_ALLOWED: Final = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.Const,
    nodes.If,
    nodes.For,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Filter,
    nodes.Test,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.CondExpr,
)
_FILTERS: Final = (
    "capitalize",
    "default",
    "first",
    "join",
    "last",
    "length",
    "lower",
    "title",
    "trim",
    "truncate",
    "upper",
)
_TESTS: Final = ("defined", "undefined", "none")

SAMPLE: Final[Mapping[str, Any]] = {
    "title": "gpu-07: Xid 79",
    "text": "policy gpu-fallen-off-bus holds this node (cordoned)",
    "urgency": "warning",
    "resolves": False,
    "dry_run": False,
    "policy": "gpu-fallen-off-bus",
    "channel": "oncall",
    "key": "0f3c9a51-19b2c3d4e5f/gpu-fallen-off-bus/1",
    "time": "2026-01-15T08:00:00.250+00:00",
    "nodes": ["gpu-07"],
    "count": 1,
    "messages": [{"node": "gpu-07", "title": "gpu-07: Xid 79", "text": "cordoned"}],
}
"""What a template is tried with when it is loaded: every word that there is."""


class WordingError(ValueError):
    """A template that cannot be used. ``str()`` says why."""


def check(text: str) -> None:
    """Check a template, and try it.

    Raises:
        WordingError: it is no template, uses what it may not, or a word that there is not.
    """
    render(text, SAMPLE, limit=MAX_TEXT)


def render(text: str, words: Mapping[str, Any], *, limit: int) -> str:
    """Return what a template says of a message, cut to ``limit`` characters.

    Raises:
        WordingError: it cannot be used for this message.
    """
    said, size = [], 0
    try:
        for piece in _compiled(text).generate(words):
            said.append(piece)
            size += len(piece)
            if size > limit:
                break
    except WordingError:
        raise
    except TemplateError as error:
        raise WordingError(f"{error.message}{_line(error)}") from error
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise WordingError(f"it does not fit: {error}") from error
    return cut("".join(said).strip(), limit)


def cut(text: str, limit: int) -> str:
    """Return at most ``limit`` characters, with a sign where some are left out."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


@lru_cache(maxsize=128)
def _compiled(text: str) -> Template:
    if len(text) > MAX_TEMPLATE:
        raise WordingError(f"it has {len(text)} characters, {MAX_TEMPLATE} are allowed")
    environment = _environment()
    tree = environment.parse(text)
    for node, loops in _walk(tree, 0):
        if not isinstance(node, _ALLOWED) or (isinstance(node, nodes.Name) and node.name == "self"):
            raise WordingError(
                f"line {node.lineno}: {type(node).__name__.lower()} is not allowed;"
                " there are values, if, for, comparisons and filters"
            )
        if isinstance(node, nodes.For) and not _is_list(node.iter):
            raise WordingError(f"line {node.lineno}: for goes over {' or '.join(_LISTS)}")
        if loops > _DEEPEST_LOOP:
            raise WordingError(f"line {node.lineno}: loops may be {_DEEPEST_LOOP} deep")
    return environment.from_string(text)


def _is_list(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name in _LISTS


def _walk(node: nodes.Node, loops: int) -> Iterator[tuple[nodes.Node, int]]:
    loops += isinstance(node, nodes.For)
    yield node, loops
    for child in node.iter_child_nodes():
        yield from _walk(child, loops)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_value,
    )
    environment.globals.clear()
    environment.filters = {name: environment.filters[name] for name in _FILTERS}
    environment.filters["join"] = _join
    environment.tests = {name: environment.tests[name] for name in _TESTS}
    return environment


def _value(value: Any) -> Any:
    """Refuse what is no value, such as ``title.upper``: a method, and not the filter."""
    if callable(value) and not isinstance(value, Undefined):
        raise TypeError("a method is no value: a filter is written `title | upper`")
    return value


def _join(values: Any, between: str = "") -> str:
    """Jinja2's own would square a text's length, again and again."""
    if isinstance(values, str) or len(str(between)) > MAX_ITEMS:
        raise ValueError("join takes a list, and a short text between its items")
    return cut(str(between).join(str(one) for one in values), MAX_TEXT)


def _line(error: TemplateError) -> str:
    number = getattr(error, "lineno", None)
    return f" (line {number})" if number else ""
