"""A plain SVG of nodes out of service over time: one step line a set of policies.

Written by hand: two lines and an axis need no drawing library, and the same input gives the
same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from xml.sax.saxutils import escape

from remediator.lab.replay import Replayed


WIDTH: Final = 960
HEIGHT: Final = 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 56, 44
_COLOURS: Final = ("#1f6feb", "#d1570a", "#1a7f37", "#8250df")
_DASHES: Final = ("", "6 4", "2 3", "10 3 2 3")
_TICKS: Final = 6


def plot(replays: Sequence[tuple[str, Replayed]], *, title: str) -> str:
    """Return the picture. ``replays``: names and what came of them, over the same time."""
    start = min(one.start for _, one in replays)
    end = max((one.end for _, one in replays), default=start)
    top = max(1, *(one.most_lost for _, one in replays))
    box = _Box(start, max(end, start + 1.0), top)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    font = 'font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>',
        *_axes(box),
    ]
    for index, (name, one) in enumerate(replays):
        parts += _line(box, index, name, one)
    return "\n".join([*parts, "</svg>", ""])


class _Box:
    """From time and count to the place in the picture."""

    def __init__(self, start: float, end: float, top: int) -> None:
        self.start, self.end, self.top = start, end, top

    def x(self, at: float) -> float:
        share = (min(max(at, self.start), self.end) - self.start) / (self.end - self.start)
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 2)

    def y(self, count: float) -> float:
        share = count / self.top
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM), 2)


def _axes(box: _Box) -> list[str]:
    parts = []
    step = max(1, -(-box.top // _TICKS))
    for count in range(0, box.top + 1, step):
        y = box.y(count)
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{WIDTH - _RIGHT}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{count}</text>')
    for index in range(_TICKS + 1):
        at = box.start + (box.end - box.start) * index / _TICKS
        x, y = box.x(at), HEIGHT - _BOTTOM
        anchor = "start" if index == 0 else "end" if index == _TICKS else "middle"
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x}" y2="{y + 5}" stroke="#888"/>')
        when = datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M")
        parts.append(f'<text x="{x}" y="{y + 20}" text-anchor="{anchor}">{when}</text>')
    middle = (HEIGHT - _BOTTOM + _TOP) / 2
    parts.append(
        f'<text x="14" y="{middle}" transform="rotate(-90 14 {middle})" text-anchor="middle">'
        "nodes out of service</text>"
    )
    return parts


def _line(box: _Box, index: int, name: str, one: Replayed) -> list[str]:
    colour, dash = _COLOURS[index % len(_COLOURS)], _DASHES[index % len(_DASHES)]
    path, count = [f"M{box.x(one.start)} {box.y(0)}"], 0
    for at, now in one.lost:
        path += [f"H{box.x(at)}", f"V{box.y(now)}"]
        count = now
    path += [f"H{box.x(one.end)}", f"V{box.y(count)}"]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    stroke = f'stroke="{colour}" stroke-width="2"{dashed}'
    x = _LEFT + index * (WIDTH - _LEFT - _RIGHT) // 2
    hours = f"{one.lost_node_hours:.1f} node hours, at most {one.most_lost} at once"
    return [
        f'<path d="{" ".join(path)}" fill="none" {stroke}/>',
        f'<line x1="{x}" y1="38" x2="{x + 28}" y2="38" {stroke}/>',
        f'<text x="{x + 34}" y="42">{escape(name)}: {hours}</text>',
    ]
