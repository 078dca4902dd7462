"""What a terminal may be given: text in which much was written by others.

Names of alerts, reasons of conditions, people's words, and what the API server and its admission
webhooks answer: none of it may begin a line of its own, or move the cursor and write over what
stands there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import typer


def say(*lines: str, err: bool = False) -> None:
    """Print lines, as `shown` makes them; ``err``: on standard error."""
    typer.echo(shown(lines), err=err)


def shown(lines: Iterable[str]) -> str:
    """Return lines as a terminal may have them: each is one line, and none moves the cursor."""
    return "\n".join("".join(c if c.isprintable() else " " for c in line) for line in lines)


def counted(number: int, one: str, many: str = "") -> str:
    """Return how many of something: ``1 node``, ``2 nodes``; ``many`` where no s makes it."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out rows in columns; the last one is as wide as it needs to be."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
