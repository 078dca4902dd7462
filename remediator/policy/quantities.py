"""Quantities as SREs write them: ``10m``, ``10%``, ``10/10m``.

A duration always carries its unit, because a bare number has been read as the
wrong unit too often. Everything here is parsed once and then a plain number.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema


MAX_DURATION: Final = 36_500 * 86_400.0
"""Seconds: a century. Sums of times stay numbers that can be compared and written."""
_LONGEST: Final = 100
"""Characters of a duration."""
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DURATION_PATTERN: Final = r"^([0-9]+(ms|s|m|h|d))+$"
_PART: Final = re.compile(r"([0-9]+)(ms|s|m|h|d)")
_UNIT_WORDS: Final = {
    word: words[0]
    for words in (
        ("ms",),
        ("s", "sec", "secs", "second", "seconds"),
        ("m", "min", "mins", "minute", "minutes"),
        ("h", "hr", "hrs", "hour", "hours"),
        ("d", "day", "days"),
    )
    for word in words
}
_TIME: Final = re.compile(r"(?P<starts>)(?P<number>[0-9]{1,9}) ?(?P<unit>[a-z]+)")
_STARTS: Final = re.compile(
    r"(?P<starts>[1-9][0-9]{0,8}) ?(/|per|in|an?) ?(?P<number>([1-9][0-9]{0,8})?) ?(?P<unit>[a-z]+)"
)
_PERCENT_PATTERN: Final = r"^(100|[0-9]{1,2})%$"
_AMOUNT: Final = re.compile(
    r"(?P<number>[0-9]{1,9}(\.[0-9]{1,9})?|\.[0-9]{1,9}) ?(?P<percent>%|percent)?"
)
USUAL_AMOUNT: Final = "3, or 10%"
RATE_PATTERN: Final = r"^0*[1-9][0-9]*/(?=.*[1-9])([0-9]+(ms|s|m|h|d))+$"
_HUNDRED: Final = 100


class Rate(NamedTuple):
    """at most ``starts`` in any ``seconds``."""

    starts: int
    seconds: float


class Amount(NamedTuple):
    """A number of nodes, or a percentage of the nodes in scope."""

    value: int
    percent: bool

    def of(self, total: int) -> int:
        """Return the number of nodes: a percentage rounds down, but not below 1, unless 0 %."""
        if not self.percent:
            return self.value
        return max(1, total * self.value // _HUNDRED) if self.value else 0


def parse_duration(value: Any) -> float:
    """Return seconds of ``1h30m``. Raises ValueError, which says how it is written."""
    if isinstance(value, float) and 0.0 <= value <= MAX_DURATION:
        return value  # already parsed: defaults and round trips
    if not isinstance(value, str) or not re.fullmatch(DURATION_PATTERN, value):
        meant = _meant(value, _TIME) or "a number with its unit, such as 30s or 10m"
        raise ValueError(f"{value!r} is no duration: write {meant}")
    if len(value) <= _LONGEST:
        seconds = sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(value))
        if seconds <= MAX_DURATION:
            return seconds
    raise ValueError(f"{value[:_LONGEST]!r} is longer than {format_duration(MAX_DURATION)}")


def format_duration(seconds: float) -> str:
    """Write seconds as a duration with the fewest parts: ``90.0`` is ``1m30s``."""
    milliseconds = round(seconds * 1000)
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_amount(value: Any) -> Amount:
    """Read ``3`` or ``10%``. Raises ValueError."""
    if isinstance(value, Amount):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Amount(value, percent=False)
    if isinstance(value, str) and re.fullmatch(_PERCENT_PATTERN, value):
        number = int(value[:-1])
        if number <= _HUNDRED:
            return Amount(number, percent=True)
    meant = amount_meant(str(value)) or USUAL_AMOUNT
    if isinstance(value, str):
        shown, meant = repr(value), f"{meant}, without quotes" if meant.isdecimal() else meant
    else:
        shown = json.dumps(value, default=str)
    raise ValueError(
        f"{shown[:_LONGEST]} is neither a number of nodes nor a percentage: write {meant}"
    )


def amount_meant(text: str) -> str:
    """Return what was meant by an amount such as ``0.1``, ``10 %`` or ``150%``; "" if unknown."""
    found = _AMOUNT.fullmatch(text)
    if found is None:
        return ""
    number = float(found["number"])
    if found["percent"]:
        return f"{min(max(1, int(number)), _HUNDRED)}%" if number else "0%"
    if 0.0 < number < 1.0:
        return f"{percent_meant(text)}%"
    if number == 1.0 and "." in text:
        return "1, or 100%"
    return str(int(number)) if number.is_integer() else ""


def percent_meant(text: str) -> str:
    """Return a share such as ``0.1`` in whole percent, rounded down, 1 or more; "": it is none."""
    found = _AMOUNT.fullmatch(text)
    share = float(found["number"]) if found is not None and not found["percent"] else 0.0
    return str(max(1, int(round(share * _HUNDRED, 6)))) if 0.0 < share <= 1.0 else ""


def format_amount(amount: Amount) -> int | str:
    """Write an amount as it is read."""
    return f"{amount.value}%" if amount.percent else amount.value


def parse_rate(value: Any) -> Rate:
    """Read ``10/10m``. Raises ValueError."""
    if isinstance(value, Rate):
        return value
    if isinstance(value, str) and re.fullmatch(RATE_PATTERN, value):
        count, _, window = value.partition("/")
        seconds = parse_duration(window)
        if int(count) > 0 and seconds > 0:
            return Rate(int(count), seconds)
    meant = _meant(value, _STARTS) or "starts per time, such as 10/10m"
    raise ValueError(f"{value!r} is no rate: write {meant}")


def _meant(value: Any, form: re.Pattern[str]) -> str:
    """Return what was meant by ``10min``, ``2 hours``, ``2/h`` or ``2 per hour``; "" if unknown."""
    found = form.fullmatch(value.lower()) if isinstance(value, str) else None
    if found is None or found["unit"] not in _UNIT_WORDS:
        return ""
    unit, number = _UNIT_WORDS[found["unit"]], found["number"] or "1"
    starts = f"{found['starts']}/" if found["starts"] else ""
    return f"{starts}{number}{unit}"


def format_rate(rate: Rate) -> str:
    """Write a rate as it is read."""
    return f"{rate.starts}/{format_duration(rate.seconds)}"


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "examples": ["30s", "10m"]}),
]
"""Seconds, written as ``10m``."""

NodeAmount = Annotated[
    Amount,
    BeforeValidator(parse_amount),
    PlainSerializer(format_amount),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": _PERCENT_PATTERN},
            ],
        },
    ),
]
"""``3`` or ``10%``."""

StartRate = Annotated[
    Rate,
    BeforeValidator(parse_rate),
    PlainSerializer(format_rate, return_type=str),
    WithJsonSchema({"type": "string", "pattern": RATE_PATTERN, "examples": ["10/10m"]}),
]
"""``10/10m``."""
