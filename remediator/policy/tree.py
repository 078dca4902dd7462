"""A document of YAML as a tree that knows the place of each key and value.

What `remediator.policy.yaml` reads, and what errors about its meaning are pointed with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from remediator.policy.problems import Location, Problem, format_path


class Place(NamedTuple):
    """Line and column, from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Node:
    """A value: `children` of a mapping by key, of a list by index, None for a scalar.

    `key` is the place of the key in front of it, or its own place where there is none.
    `weight` and `height` count what an alias to it would add.
    """

    place: Place
    key: Place
    value: str | int | bool | None = None
    children: dict[str, Node] | list[Node] | None = None
    weight: int = 1
    height: int = 1

    def child(self, part: str | int) -> Node | None:
        """Return the value of a key or at an index, None if there is none."""
        if isinstance(self.children, dict):
            return self.children.get(part) if isinstance(part, str) else None
        if isinstance(self.children, list) and isinstance(part, int):
            return self.children[part] if part < len(self.children) else None
        return None

    def data(self) -> Any:
        """Plain dicts, lists and scalars."""
        if isinstance(self.children, dict):
            return {key: child.data() for key, child in self.children.items()}
        if isinstance(self.children, list):
            return [child.data() for child in self.children]
        return self.value


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file, with the problems found while reading it."""

    file: str
    lines: list[str]
    root: Node
    problems: tuple[Problem, ...]
    blamed: frozenset[Location]
    """Values that a problem is already about."""

    @property
    def data(self) -> Any:
        """Plain dicts, lists and scalars, made anew at each call."""
        return self.root.data()

    def find(self, location: Location) -> Node:
        """Return the value at `location`, or the deepest one on the way to it."""
        node = self.root
        for part in location:
            child = node.child(part)
            if child is None:
                break
            node = child
        return node

    def problem(self, place: Place, message: str, *, at: Location = (), fix: str = "") -> Problem:
        """Make a problem of this document."""
        return make_problem(self.file, self.lines, place, message, path=format_path(at), fix=fix)


def make_problem(
    file: str, lines: list[str], place: Place, message: str, *, path: str = "", fix: str = ""
) -> Problem:
    """Make a problem with its source line."""
    source = lines[place.line - 1] if 0 < place.line <= len(lines) else ""
    return Problem(
        file=file,
        line=place.line,
        column=place.column,
        path=path,
        message=message,
        fix=fix,
        source=source,
    )
