"""Two replays of one recording, side by side: the table and where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from remediator.lab.replay import Replayed


MAX_NODES: Final = 20
"""Nodes that are listed by name."""


def figures(one: Replayed) -> dict[str, float]:
    """Return what one replay comes to, by name, in a fixed order."""
    found: dict[str, float] = {"sessions": one.sessions}
    found |= {f"step {name}": count for name, count in sorted(one.steps.items())}
    found["failed steps"] = one.failed
    found |= {f"held by {name}": count for name, count in sorted(one.holds.items())}
    found["messages"] = one.messages
    found["most nodes out at once"] = one.most_lost
    found["node hours out"] = round(one.lost_node_hours, 2)
    return found


def rows(replays: Sequence[tuple[str, Replayed]]) -> list[tuple[str, ...]]:
    """Return the table: a row a figure, a column a set of policies, and the difference."""
    tables = [figures(one) for _, one in replays]
    names = list(dict.fromkeys(name for table in tables for name in table))
    names.sort(key=_order)
    head = ("", *(name for name, _ in replays), *(("difference",) if len(tables) > 1 else ()))
    body = []
    for name in names:
        values = [table.get(name, 0.0) for table in tables]
        cells = [f"{value:g}" for value in values]
        if len(values) > 1:
            cells.append(f"{values[-1] - values[0]:+g}" if values[-1] != values[0] else "=")
        body.append((name, *cells))
    return [head, *body]


def differing(first: Replayed, second: Replayed) -> list[str]:
    """Return the nodes on which two replays had other numbers of remediations, in words."""
    before, after = first.sessions_by_node(), second.sessions_by_node()
    names = [one for one in sorted({*before, *after}) if before.get(one, 0) != after.get(one, 0)]
    lines = [f"{one}: {before.get(one, 0)} -> {after.get(one, 0)}" for one in names[:MAX_NODES]]
    if len(names) > MAX_NODES:
        lines.append(f"and {len(names) - MAX_NODES} more nodes")
    return lines


def _order(name: str) -> tuple[int, str]:
    """Sessions, then steps, then holds, then the rest."""
    kinds = ("sessions", "step ", "failed steps", "held by ", "messages", "most ", "node hours")
    return next(at for at, kind in enumerate(kinds) if name.startswith(kind)), name
