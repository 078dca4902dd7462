"""Maintenance windows as SREs write them: days, times of day, a time zone.

A window is open whenever a clock on the wall in its zone shows a time within it. That settles
daylight saving time: what the clock skips does not happen, and what it shows twice is open
twice. When a window opens next is :mod:`remediator.policy.timetable`.
"""

from __future__ import annotations

import difflib
import re
import zoneinfo
from datetime import date
from functools import cached_property
from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from remediator.policy.base import Model


TIME_PATTERN: Final = r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"
DATE_PATTERN: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY_MINUTES: Final = 24 * 60
_HOUR_MINUTES: Final = 60

Day = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
TimeOfDay = Annotated[str, Field(pattern=TIME_PATTERN)]
Date = Annotated[str, Field(pattern=DATE_PATTERN)]


class Window(Model):
    """A time in which disruptive steps may begin or, with ``blackout``, may not."""

    days: tuple[Day, ...] = Field(
        default=DAYS,
        min_length=1,
        strict=False,
        examples=[["Mon", "Tue", "Wed", "Thu"]],
        description="Days on which it begins. Over midnight it goes on into the next day.",
    )
    start: TimeOfDay = Field(
        default="00:00", examples=["22:00"], description='In quotes: `"22:00"`.'
    )
    end: TimeOfDay = Field(
        default="24:00",
        examples=["05:00"],
        description="Not included. Before `start`: on the next day.",
    )
    time_zone: str = Field(
        default="UTC",
        examples=["Europe/Berlin"],
        description="A name of the IANA database, such as `Europe/Berlin`.",
    )
    from_: Date | None = Field(
        default=None, alias="from", description="First date on which it begins, in quotes."
    )
    until: Date | None = Field(default=None, description="Last date on which it begins, in quotes.")
    blackout: bool = Field(
        default=False,
        description="No disruptive step begins while it is open, whatever other windows say.",
    )

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        try:
            zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            near = _closest_zone(name)
            example = near or "Europe/Berlin"
            raise ValueError(f"{name} is no time zone: write a name such as {example}") from None
        return name

    @field_validator("from_", "until")
    @classmethod
    def _real_date(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                date.fromisoformat(text)
            except ValueError as error:
                raise ValueError(f"{text} is no date: {error}") from None
        return text

    @model_validator(mode="after")
    def _is_some_time(self) -> Self:
        if self.start_minute == self.end_minute or self.start == "24:00":
            raise ValueError(
                f"a window from {self.start} to {self.end} has no length: "
                'write start: "00:00" and end: "24:00" for the whole day',
            )
        if self.from_ is not None and self.until is not None and self.until < self.from_:
            raise ValueError(f"it ends on {self.until}, before it begins on {self.from_}")
        return self

    @cached_property
    def start_minute(self) -> int:
        """Minute of the day at which it begins."""
        return minutes(self.start)

    @cached_property
    def end_minute(self) -> int:
        """Minute of the day at which it ends, up to 1440; before the start: on the next day."""
        return minutes(self.end)

    @cached_property
    def weekdays(self) -> frozenset[int]:
        """Days on which it begins, Monday is 0."""
        return frozenset(DAYS.index(one) for one in self.days)

    def begins_on(self, day: date) -> bool:
        """Tell whether it begins on a date of its zone."""
        return (
            day.weekday() in self.weekdays
            and (self.from_ is None or day >= date.fromisoformat(self.from_))
            and (self.until is None or day <= date.fromisoformat(self.until))
        )

    def __str__(self) -> str:
        """Return it in words: ``Mon, Tue 22:00-05:00 Europe/Berlin``."""
        days = "" if len(self.weekdays) == len(DAYS) else f"{', '.join(self.days)} "
        dates = "".join(
            f" {word} {text}"
            for word, text in (("from", self.from_), ("until", self.until))
            if text
        )
        return f"{days}{self.start}-{self.end} {self.time_zone}{dates}"


def minutes(text: str) -> int:
    """Return the minute of the day of ``HH:MM``."""
    hours, _, rest = text.partition(":")
    return int(hours) * _HOUR_MINUTES + int(rest)


def _closest_zone(name: str) -> str:
    """Return the zone that a misspelt name most likely means, "" if none is near."""
    wanted = re.sub(r"[^a-z/]", "", name.lower())
    known = {zone.lower().replace("_", ""): zone for zone in zoneinfo.available_timezones()}
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.7)
    return known[near[0]] if near else ""
