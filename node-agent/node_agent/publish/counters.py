"""Which DCGM families are on: a counters file in DCGM-Exporter's own format.

The file is read as theirs is: ``field, type, help`` a line, ``#`` begins a comment, blank
lines and blanks around a value do not matter, a value may stand in quotes. Help may contain
commas, quoted or not. What a field is and where its value comes from is in
``dcgm_fields.json``.

A field that DCGM has and NVML cannot fill is skipped and named, so that a file in use can be
taken over as it is. A field that nobody knows is an error: a misspelt family would just be
missing from the page.
"""

from __future__ import annotations

import csv
import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from node_agent.publish.exposition import Family


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HERE: Final = Path(__file__).parent
DEFAULT_FILES: Final = {
    "4.8": _HERE / "default-counters.csv",
    "4.9": _HERE / "default-counters-4.9.csv",
}
_KINDS: Final = ("gauge", "counter", "label")
_COLUMNS: Final = 3


class CountersError(Exception):
    """The counters file is missing or wrong. The text names file, line and fix."""


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One spelling of one DCGM field. ``about`` in the data file says what the parts mean."""

    name: str
    kind: str
    unit: str
    help: str
    quantity: str
    source: str = "reading"
    times: float = 1.0
    whole: bool = True
    line: str = ""


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    about: tuple[str, ...]
    elsewhere: tuple[str, ...]
    fields: tuple[Field, ...]


class Fields(NamedTuple):
    """All fields by name; ``elsewhere`` matches names of DCGM that nothing here can fill."""

    by_name: Mapping[str, Field]
    elsewhere: re.Pattern[str]


class Counter(NamedTuple):
    """One line of the file: a field, and the type and help that the file gives it."""

    field: Field
    family: Family


class Counters(NamedTuple):
    """What is on. ``labels`` go on all others; ``skipped`` are names that cannot be filled."""

    metrics: tuple[Counter, ...]
    labels: tuple[Field, ...]
    skipped: tuple[str, ...]


def load_fields() -> Fields:
    """Read the shipped catalogue. A broken file is a broken build and raises at start."""
    raw = (_HERE / "dcgm_fields.json").read_bytes()
    document = msgspec.json.decode(raw, type=_Document)
    return Fields(
        {field.name: field for field in document.fields}, re.compile("|".join(document.elsewhere))
    )


def load_counters(path: str | Path, fields: Fields) -> Counters:
    """Read one counters file.

    Raises:
        CountersError: it cannot be read, or a line is wrong.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CountersError(f"cannot read the counters file {path}: {error}") from error
    return parse_counters(text, fields, name=str(path))


def parse_counters(text: str, fields: Fields, *, name: str = "counters") -> Counters:
    """Read the text of a counters file.

    Raises:
        CountersError: a line has fewer than three values, an unknown field or type, or a
            field that stands there twice.
    """
    metrics: list[Counter] = []
    labels: list[Field] = []
    skipped: list[str] = []
    seen: dict[str, int] = {}
    for number, (field_name, kind, doc) in _rows(text, name):
        where = f"{name}, line {number}"
        if field_name in seen:
            raise CountersError(
                f"{where}: {field_name} stands in line {seen[field_name]} already; remove one"
            )
        seen[field_name] = number
        if kind not in _KINDS:
            raise CountersError(
                f"{where}: {field_name}: type {kind!r} is none of gauge, counter, label"
            )
        field = fields.by_name.get(field_name)
        if field is None:
            if not fields.elsewhere.fullmatch(field_name):
                raise CountersError(
                    f"{where}: unknown field {field_name!r}{_hint(field_name, fields)}"
                )
            skipped.append(field_name)
        elif (field.kind == "label") != (kind == "label"):
            raise CountersError(f"{where}: {field_name} is a {field.kind}, it cannot be a {kind}")
        elif kind == "label":
            labels.append(field)
        else:
            metrics.append(Counter(field, Family(field_name, kind, doc)))
    return Counters(tuple(metrics), tuple(labels), tuple(skipped))


def _rows(text: str, name: str) -> Iterator[tuple[int, tuple[str, str, str]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        values = next(csv.reader([line], skipinitialspace=True))
        if len(values) < _COLUMNS:
            raise CountersError(
                f"{name}, line {number}: expected `field, type, help`, found {line.strip()!r}"
            )
        field, kind, *doc = (value.strip() for value in values)
        yield number, (field, kind, ", ".join(doc))


def _hint(name: str, fields: Fields) -> str:
    close = difflib.get_close_matches(name, fields.by_name, n=1)
    known = "docs/agent/metrics.md lists those that this agent can fill"
    return f"; did you mean {close[0]}? {known}" if close else f"; {known}"
