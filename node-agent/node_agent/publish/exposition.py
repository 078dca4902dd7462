"""Text of a metrics page: the classic Prometheus format and OpenMetrics, from the same samples.

Invariants, whatever the samples are:

- HELP and TYPE stand once per family, families are sorted by name.
- No series stands twice: the first one stays, the others are counted. Only finite numbers are
  printed, and a counter is never negative: one bad sample costs that sample and no more.
- A series has the same name in both formats. A counter whose name does not end in ``_total``
  (DCGM's own) is ``unknown`` in OpenMetrics, which allows counters no other name.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TOTAL: Final = "_total"
_INFO: Final = "_info"


class Family(NamedTuple):
    """Name, type and help of one family. ``kind`` is counter, gauge or info."""

    name: str
    kind: str
    doc: str


class Block(NamedTuple):
    """Samples of one family: the text in front of each value, and the value as text."""

    family: Family
    samples: list[tuple[str, str]]


class Format(Enum):
    """The two formats, by their content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Page(NamedTuple):
    """A page as text, how many series are on it and how many were left out as repeated."""

    text: str
    series: int
    repeated: int


def block(family: Family, samples: Iterable[tuple[Mapping[str, str], float]]) -> Block:
    """A block from labels and numbers; values that are not finite are left out."""
    return Block(
        family,
        [
            (f"{family.name}{braces(labels)}", number(value))
            for labels, value in samples
            if is_valid(family.kind, value)
        ],
    )


def is_valid(kind: str, value: float) -> bool:
    """Whether a family of this kind may have this value."""
    return math.isfinite(value) and (kind != "counter" or value >= 0)


def pairs(labels: Mapping[str, str]) -> str:
    """Labels as they stand between the braces."""
    return ",".join([f'{name}="{escaped(value)}"' for name, value in labels.items()])


def braces(labels: Mapping[str, str]) -> str:
    """Labels with their braces; nothing if there are none."""
    return f"{{{pairs(labels)}}}" if labels else ""


def number(value: float) -> str:
    """The shortest text that reads back as the same number."""
    return str(int(value)) if value == int(value) else repr(value)


def escaped(value: str) -> str:
    """A label's value, safe between quotes."""
    if "\\" in value or "\n" in value or '"' in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def merged(blocks: Iterable[Block]) -> tuple[list[Block], int]:
    """One block a family, sorted, each series once; and how many were repeated."""
    by_name: dict[str, Block] = {}
    for each in blocks:
        known = by_name.setdefault(each.family.name, Block(each.family, []))
        known.samples.extend(each.samples)
    repeated = 0
    once = []
    for each in by_name.values():
        kept: dict[str, str] = {}
        for name, value in each.samples:
            kept.setdefault(name, value)
        repeated += len(each.samples) - len(kept)
        once.append(Block(each.family, list(kept.items())))
    return sorted(once, key=lambda b: b.family.name), repeated


def text_of(blocks: Iterable[Block], form: Format) -> str:
    """The page of blocks that are merged already."""
    parts = []
    for family, samples in blocks:
        parts.append(_head(family, form))
        parts.extend([f"{name} {value}\n" for name, value in samples])
    if form is Format.OPENMETRICS:
        parts.append("# EOF\n")
    return "".join(parts)


def _head(family: Family, form: Format) -> str:
    name, kind = family.name, family.kind
    if form is Format.OPENMETRICS:
        if kind == "counter":
            name, kind = (
                (name.removesuffix(_TOTAL), kind) if name.endswith(_TOTAL) else (name, "unknown")
            )
        elif kind == "info":
            name = name.removesuffix(_INFO)
        doc = escaped(family.doc)
    else:
        kind = "gauge" if kind == "info" else kind
        doc = family.doc.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {doc}\n# TYPE {name} {kind}\n"
