"""What is wrong with a file, where, and what to do: the errors that policy authors read.

A problem names file, line, column and key path, says one thing, and gives the fix.
`render` writes it as compilers do, with the line and a caret under the character.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final


MAX_EXCERPT: Final = 160
"""Characters of a source line that are shown around the caret."""

Location = tuple[str | int, ...]
"""Path of a value: keys and list indexes from the document's root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong. Line and column count from 1; 0: the file as a whole."""

    file: str
    message: str
    fix: str = ""
    line: int = 0
    column: int = 0
    path: str = ""
    source: str = ""
    """The line itself, without its end."""
    rule: str = ""
    """The lint rule that says so; "" for what is wrong by the schema."""
    severity: str = "error"
    """``error`` or ``warning``."""

    def __str__(self) -> str:
        """One line: `file:line:column: path: message; fix`."""
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        path = f"{self.path}: " if self.path else ""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{place}: {path}{self.message}{fix}"


class PolicyError(Exception):
    """A file cannot be used. Nothing of it takes effect; `problems` says all that was found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def render(problem: Problem) -> str:
    """Write a problem for a terminal: the sentence, the line, a caret, the fix."""
    return "\n".join(rendered(problem))


def rendered(problem: Problem) -> list[str]:
    """Return the lines of `render`. What the file holds begins none, and moves no cursor."""
    place = f"{problem.file}:{problem.line}:{problem.column}" if problem.line else problem.file
    path = f"{problem.path}: " if problem.path else ""
    rule = f" [{problem.rule}]" if problem.rule else ""
    lines = [f"{place}: {problem.severity}{rule}: {path}{problem.message}"]
    if problem.line:
        lines += _excerpt(problem)
    if problem.fix:
        lines.append(f"{'':>6} = fix: {problem.fix}")
    return [_plain(one) for one in lines]


def format_path(location: Location) -> str:
    """Write `("spec", "steps", 0, "a/b")` as `spec.steps[0]["a/b"]`."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.replace("_", "").replace("-", "").isalnum():
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


def _excerpt(problem: Problem) -> list[str]:
    """The source line, cut to a window around the column, and a caret under it."""
    at = problem.column - 1
    start = max(0, at - MAX_EXCERPT // 2) if len(problem.source) > MAX_EXCERPT else 0
    shown = problem.source[start : start + MAX_EXCERPT]
    return [f"{problem.line:>6} | {shown}".rstrip(), f"{'':>6} | {' ' * (at - start)}^"]


def _plain(line: str) -> str:
    return "".join(char if char.isprintable() else " " for char in line)
