"""Windows against a clock on the wall, read minute by minute where clocks jump."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remediator.policy.timetable import is_open, next_closing, next_opening
from remediator.policy.windows import DAYS, Window
from tests.property.cases import cases


# Where clocks jump: at night, over midnight, by half an hour, south of the equator, in Ramadan.
JUMPS = {
    "Europe/Berlin": ["2026-03-29", "2026-10-25"],
    "America/New_York": ["2026-03-08", "2026-11-01"],
    "Australia/Lord_Howe": ["2026-04-05", "2026-10-04"],
    "America/Havana": ["2026-03-08", "2026-11-01"],
    "Africa/Casablanca": ["2026-02-15", "2026-03-22"],
    "Asia/Beirut": ["2026-03-29", "2026-10-25"],
    "America/St_Johns": ["2026-03-08", "2026-11-01"],
    "Asia/Kathmandu": ["2026-06-01"],
    "UTC": ["2026-06-01"],
}
MINUTE, HOUR, DAY = 60, 3600, 86400

places = st.sampled_from([(zone, day) for zone, days in JUMPS.items() for day in days])
times = st.integers(0, 95).map(lambda q: f"{q // 4:02}:{q % 4 * 15:02}")
near_jumps = st.integers(0, 23).map(lambda q: f"{q // 6:02}:{q % 6 * 10:02}")


@st.composite
def windows(draw: st.DrawFn, zone: str, day: str) -> Window:
    start = draw(times | near_jumps)
    end = draw((times | near_jumps | st.just("24:00")).filter(lambda t: t != start))
    given_: dict[str, Any] = {
        "days": draw(st.lists(st.sampled_from(DAYS), min_size=1, max_size=7, unique=True)),
        "start": start,
        "end": end,
        "timeZone": zone,
        "blackout": draw(st.booleans()),
    }
    near = date.fromisoformat(day)
    if draw(st.booleans()):
        given_["from"] = str(near + timedelta(days=draw(st.integers(-3, 2))))
    if draw(st.booleans()):
        given_["until"] = str(near + timedelta(days=draw(st.integers(2, 4))))
    return Window.model_validate(given_)


def jump(zone: str, day: str) -> int:
    """Return about when the clocks jump on that day, to the quarter of an hour; else noon."""
    noon = int(datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=UTC).timestamp())
    shown = [
        (at, datetime.fromtimestamp(at, ZoneInfo(zone)).utcoffset())
        for at in range(noon - DAY, noon + DAY, 15 * MINUTE)
    ]
    return next((b for (_, x), (b, y) in itertools.pairwise(shown) if x != y), noon)


@st.composite
def moments(draw: st.DrawFn) -> tuple[tuple[Window, ...], int]:
    """Some windows in one zone, or two, and a minute within two days of a jump."""
    zone, day = draw(places)
    other = draw(st.sampled_from([zone, "UTC"]))
    given_ = draw(st.lists(windows(zone, day) | windows(other, day), min_size=1, max_size=3))
    minutes = draw(st.integers(-2 * 24 * 60, 24 * 60) | st.integers(-90, 90))
    return tuple(given_), jump(zone, day) + minutes * MINUTE


def on_the_wall(window: Window, at: float) -> bool:
    """Read a clock and a calendar on the wall, as a person does: text, not arithmetic."""
    shown = datetime.fromtimestamp(at, ZoneInfo(window.time_zone))
    time = f"{shown:%H:%M}"
    begun_today = window.start <= time and (window.end > time or window.end < window.start)
    begun_yesterday = window.end < window.start and time < window.end
    for begun, day in ((begun_today, shown), (begun_yesterday, shown - timedelta(days=1))):
        if (
            begun
            and f"{day:%a}" in window.days
            and (window.from_ or "") <= f"{day:%Y-%m-%d}" <= (window.until or "9")
        ):
            return True
    return False


def allowed(given_: tuple[Window, ...], at: float) -> bool:
    inside = [on_the_wall(one, at) for one in given_ if not one.blackout]
    outside = [on_the_wall(one, at) for one in given_ if one.blackout]
    return (any(inside) or not inside) and not any(outside)


@settings(max_examples=cases(100), deadline=None)
@given(moments())
def test_open_and_next_opening_are_what_the_wall_says(case: tuple[tuple[Window, ...], int]) -> None:
    given_, at = case
    minutes = range(at, at + 3 * DAY, MINUTE)
    for now in minutes[:: 7 * 60]:
        assert is_open(given_, now + 59.9) is allowed(given_, now)
    found = next_opening(given_, at + 0.5)
    first = next((now for now in minutes if allowed(given_, now)), None)
    if first is not None:
        assert found == first
    elif found is not None:
        assert found >= at + 3 * DAY
        assert allowed(given_, found)
        assert not allowed(given_, found - MINUTE)
    shut = next_closing(given_, at + 0.5)
    last = next((now for now in minutes if not allowed(given_, now)), None)
    assert shut == last or (last is None and (shut is None or shut >= at + 3 * DAY))


@pytest.mark.parametrize(
    ("day", "window", "hours"),
    [
        ("2026-03-28", {"start": "22:00", "end": "05:00"}, 6.0),
        ("2026-03-29", {"start": "02:15", "end": "02:45"}, 0.0),
        ("2026-03-29", {"start": "02:30", "end": "04:00"}, 1.0),
        ("2026-03-29", {}, 23.0),
        ("2026-10-24", {"start": "22:00", "end": "05:00"}, 8.0),
        ("2026-10-25", {"start": "02:15", "end": "02:45"}, 1.0),
        ("2026-10-25", {"start": "01:30", "end": "02:30"}, 1.5),
        ("2026-10-25", {}, 25.0),
    ],
    ids=[
        "a night that loses an hour",
        "a time that clocks skip never is",
        "a start that clocks skip is when they jump",
        "a day of 23 hours",
        "a night that gains an hour",
        "a time that clocks show twice is open twice",
        "an end that clocks show twice closes in between",
        "a day of 25 hours",
    ],
)
def test_daylight_saving_time_in_berlin(day: str, window: dict[str, Any], hours: float) -> None:
    one = Window.model_validate({"from": day, "until": day, "timeZone": "Europe/Berlin", **window})
    start = int(datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=UTC).timestamp()) - 6 * HOUR
    minutes = sum(is_open((one,), at) for at in range(start, start + 2 * DAY, MINUTE))
    assert minutes / 60 == hours


def test_an_opening_that_is_months_away_is_found_to_the_minute() -> None:
    one = Window.model_validate({"from": "2026-12-24", "start": "18:00", "timeZone": "Asia/Tokyo"})
    now = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert next_opening((one,), now) == datetime(2026, 12, 24, 9, tzinfo=UTC).timestamp()
    gone = Window.model_validate({"until": "2025-12-31"})
    assert next_opening((gone,), now) is None


@pytest.mark.parametrize(
    ("window", "now", "opens"),
    [
        ({"start": "02:10", "end": "02:20"}, "2026-10-25T00:30", "2026-10-25T01:10"),
        ({"start": "01:30", "end": "02:30"}, "2026-10-25T00:30", "2026-10-25T01:00"),
        ({"start": "02:30", "end": "04:00"}, "2026-03-29T00:30", "2026-03-29T01:00"),
        ({"start": "02:15", "end": "02:45"}, "2026-03-29T00:30", "2026-03-30T00:15"),
    ],
    ids=["shown a second time", "when clocks go back", "when clocks go on", "skipped for a day"],
)
def test_the_next_opening_where_clocks_jump(window: dict[str, Any], now: str, opens: str) -> None:
    one = Window.model_validate({"timeZone": "Europe/Berlin", **window})
    at, expected = (
        datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() for text in (now, opens)
    )
    assert next_opening((one,), at) == expected
