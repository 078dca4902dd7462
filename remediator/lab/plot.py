"""A plain SVG of what policies do over time: one step line a set of policies in each panel.

    nodes out of service    how many are, at each time
    cordons, drains         how many were begun until then

Written by hand: some lines and axes need no drawing library, and the same input gives the
same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from xml.sax.saxutils import escape

from remediator.lab.replay import Replayed


WIDTH: Final = 960
_LEFT, _RIGHT, _TOP, _BOTTOM, _GAP = 56, 16, 56, 44, 28
_TALL, _LOW = 260, 120
_COLOURS: Final = ("#1f6feb", "#d1570a", "#1a7f37", "#8250df")
_DASHES: Final = ("", "6 4", "2 3", "10 3 2 3")
_TICKS: Final = 6
_Series = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class _Panel:
    """One picture above another: what is counted in it, and its height in pixels."""

    title: str
    series: Callable[[Replayed], _Series]
    height: int


PANELS: Final = (
    _Panel("nodes out of service", lambda one: one.lost, _TALL),
    _Panel("cordons so far", lambda one: one.begun("cordon"), _LOW),
    _Panel("drains so far", lambda one: one.begun("drain"), _LOW),
)
HEIGHT: Final = _TOP + sum(one.height for one in PANELS) + _GAP * (len(PANELS) - 1) + _BOTTOM


def plot(replays: Sequence[tuple[str, Replayed]], *, title: str) -> str:
    """Return the picture. ``replays``: names and what came of them, over the same time."""
    start = min(one.start for _, one in replays)
    end = max((one.end for _, one in replays), default=start)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    font = 'font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for index, (name, one) in enumerate(replays):
        parts += _legend(index, name, one)
    top = _TOP
    for panel in PANELS:
        most = max(1, *(count for _, one in replays for _, count in ((0, 0), *panel.series(one))))
        box = _Box(start, max(end, start + 1.0), most, top, top + panel.height)
        last = panel is PANELS[-1]
        parts += [*_counts(box, panel.title), *_times(box, labels=last)]
        for index, (_, one) in enumerate(replays):
            parts.append(_line(box, index, panel.series(one), one))
        top += panel.height + _GAP
    return "\n".join([*parts, "</svg>", ""])


class _Box:
    """From time and count to the place in the picture. ``top``, ``bottom``: its edges."""

    def __init__(self, start: float, end: float, most: int, top: int, bottom: int) -> None:
        self.start, self.end, self.most = start, end, most
        self.top, self.bottom = top, bottom

    def x(self, at: float) -> float:
        share = (min(max(at, self.start), self.end) - self.start) / (self.end - self.start)
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 2)

    def y(self, count: float) -> float:
        return round(self.bottom - count / self.most * (self.bottom - self.top), 2)


def _counts(box: _Box, title: str) -> list[str]:
    """Draw the lines of counts, and say what is counted."""
    parts = []
    step = max(1, -(-box.most // _TICKS))
    for count in range(0, box.most + 1, step):
        y = box.y(count)
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{WIDTH - _RIGHT}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{count}</text>')
    middle = (box.top + box.bottom) / 2
    parts.append(
        f'<text x="14" y="{middle}" transform="rotate(-90 14 {middle})" text-anchor="middle">'
        f"{escape(title)}</text>"
    )
    return parts


def _times(box: _Box, *, labels: bool) -> list[str]:
    """Draw the ticks of the time axis."""
    parts = []
    for index in range(_TICKS + 1):
        at = box.start + (box.end - box.start) * index / _TICKS
        x, y = box.x(at), box.bottom
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x}" y2="{y + 5}" stroke="#888"/>')
        if labels:
            anchor = "start" if index == 0 else "end" if index == _TICKS else "middle"
            when = datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M")
            parts.append(f'<text x="{x}" y="{y + 20}" text-anchor="{anchor}">{when}</text>')
    return parts


def _stroke(index: int) -> str:
    colour, dash = _COLOURS[index % len(_COLOURS)], _DASHES[index % len(_DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{colour}" stroke-width="2"{dashed}'


def _line(box: _Box, index: int, series: _Series, one: Replayed) -> str:
    path, count = [f"M{box.x(one.start)} {box.y(0)}"], 0
    for at, now in series:
        path += [f"H{box.x(at)}", f"V{box.y(now)}"]
        count = now
    path += [f"H{box.x(one.end)}", f"V{box.y(count)}"]
    return f'<path d="{" ".join(path)}" fill="none" {_stroke(index)}/>'


def _legend(index: int, name: str, one: Replayed) -> list[str]:
    x = _LEFT + index * (WIDTH - _LEFT - _RIGHT) // 2
    hours = f"{one.lost_node_hours:.1f} node hours, at most {one.most_lost} at once"
    return [
        f'<line x1="{x}" y1="38" x2="{x + 28}" y2="38" {_stroke(index)}/>',
        f'<text x="{x + 34}" y="42">{escape(name)}: {hours}</text>',
    ]
