"""When disruptive steps may begin: windows on a clock, and the exact time of the next change.

Pure arithmetic on instants (seconds since the epoch). Every minute of UTC lies wholly inside or
wholly outside of a window: times of day are whole minutes, and so are all offsets of zones in
use. So a question is answered for the minute that it falls into, once for all nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from remediator.policy.windows import DAY_MINUTES, Window


MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86400
HORIZON_DAYS: Final = 400
"""How far ahead the next opening is looked for: windows with dates may be a year away."""


def is_open(windows: tuple[Window, ...], now: float) -> bool:
    """Tell whether steps may begin: within a window, if there are any, and in no blackout."""
    return _open_at(windows, _minute(now))


def next_opening(windows: tuple[Window, ...], now: float) -> float | None:
    """Return when steps may begin next, if they may not now; None: not within the horizon."""
    return _next(windows, _minute(now), opening=True)


def next_closing(windows: tuple[Window, ...], now: float) -> float | None:
    """Return when steps may begin no more, if they may now; None: not within the horizon."""
    return _next(windows, _minute(now), opening=False)


def closed_by(windows: tuple[Window, ...], now: float) -> Window | None:
    """Return the blackout that is open now, if it is one that closes."""
    at = _minute(now)
    return next((one for one in windows if one.blackout and contains(one, at)), None)


def contains(window: Window, at: float) -> bool:
    """Tell whether a clock on the wall in the window's zone shows a time within it."""
    shown = datetime.fromtimestamp(at, ZoneInfo(window.time_zone))
    minute, today = shown.hour * MINUTE + shown.minute, shown.date()
    if window.start_minute < window.end_minute:
        return window.start_minute <= minute < window.end_minute and window.begins_on(today)
    if minute >= window.start_minute:
        return window.begins_on(today)
    return minute < window.end_minute and window.begins_on(today - timedelta(days=1))


def _minute(now: float) -> int:
    return int(now // MINUTE) * MINUTE


@lru_cache(maxsize=1024)
def _open_at(windows: tuple[Window, ...], at: int) -> bool:
    if any(contains(one, at) for one in windows if one.blackout):
        return False
    allowed = [one for one in windows if not one.blackout]
    return not allowed or any(contains(one, at) for one in allowed)


@lru_cache(maxsize=256)
def _next(windows: tuple[Window, ...], at: int, *, opening: bool) -> int | None:
    if _open_at(windows, at) is opening:
        return at
    changes = _changes(windows, at)
    return next((one for one in changes if _open_at(windows, one) is opening), None)


def _changes(windows: tuple[Window, ...], after: int) -> Iterator[int]:
    """Yield all instants at which the answer may change, soonest first."""
    zones = {one.time_zone: ZoneInfo(one.time_zone) for one in windows}
    for day in range(HORIZON_DAYS):
        start, end = after + day * DAY, after + (day + 1) * DAY
        found: set[int] = set()
        for name, zone in zones.items():
            times = {m for one in windows if one.time_zone == name for m in _times(one)}
            found.update(_shown(times, zone, start))
            if _offset(zone, start) != _offset(zone, end):
                found.update(_jumps(zone, start, end))
        yield from sorted(at for at in found if start < at <= end)


def _times(window: Window) -> tuple[int, int]:
    """Return the minutes of a day at which a window may open or close."""
    return window.start_minute % DAY_MINUTES, window.end_minute % DAY_MINUTES


def _shown(times: Iterable[int], zone: ZoneInfo, start: int) -> Iterator[int]:
    """Yield when clocks show these times on the dates of a day that begins at an instant."""
    first = datetime.fromtimestamp(start, zone).date()
    for ahead in range(3):
        date = first + timedelta(days=ahead)
        for minute in times:
            hour, rest = divmod(minute, MINUTE)
            for fold in (0, 1):
                shown = datetime(
                    date.year, date.month, date.day, hour, rest, tzinfo=zone, fold=fold
                )
                yield int(shown.timestamp())


def _jumps(zone: ZoneInfo, start: int, end: int) -> Iterator[int]:
    """Yield when clocks jump between two instants: daylight saving begins or ends."""
    for low in range(start, end, HOUR):
        if _offset(zone, low) != _offset(zone, low + HOUR):
            yield _jump(zone, low, low + HOUR)


def _jump(zone: ZoneInfo, low: int, high: int) -> int:
    """Return the first instant with the later offset. There is one jump between the two."""
    before = _offset(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(zone, middle) == before else (low, middle)
    return high


def _offset(zone: ZoneInfo, at: int) -> timedelta | None:
    return datetime.fromtimestamp(at, UTC).astimezone(zone).utcoffset()
