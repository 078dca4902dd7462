"""Rules about windows: those that never open, are over, or hold nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final

from remediator.policy.drain import OnWindowEnd
from remediator.policy.lint.rule import Context, Hit, Rule, Severity, disrupts
from remediator.policy.model import RemediationPolicy
from remediator.policy.timetable import DAY, next_opening
from remediator.policy.windows import Window


SOME_DAY: Final = date(2026, 1, 5)
"""Where a window without dates is looked at; any day does, as a year is looked ahead."""
MOST_DATES: Final = 16
"""More of them take seconds to look through."""


def _never_opens(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    windows = policy.spec.windows
    if not disrupts(policy):
        return
    blackouts = tuple(one for one in windows if one.blackout)
    allowed = [(at, one) for at, one in enumerate(windows) if not one.blackout]
    for at, one in allowed:
        if not _ever_opens((one, *blackouts)):
            yield Hit(
                ("spec", "windows", at),
                f"{one} never opens: it begins on none of its dates, or a blackout covers it",
                "correct its days or dates, or the blackout's",
            )
    if blackouts and not allowed and not _ever_opens(blackouts):
        yield Hit(
            ("spec", "windows"),
            "the blackout has no end: disruptive steps are held for good",
            "write from and until, or mode: Disabled if that is meant",
        )


def _past(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    """A blackout that is over is forgotten, and does no harm."""
    allowed = [(at, one) for at, one in enumerate(policy.spec.windows) if not one.blackout]
    for at, one in allowed:
        if context.now is not None and disrupts(policy) and _is_over(one, context.now):
            held = ": disruptive steps are held for good" if len(allowed) == 1 else ""
            yield Hit(
                ("spec", "windows", at, "until"),
                f"its last day was {one.until}{held}",
                "write a later date, or remove the window",
            )


def _ever_opens(windows: tuple[Window, ...]) -> bool:
    """Tell whether steps may begin at any time; of very many dates it is taken for granted.

    Looked at is the year that follows a week before each date that is named.
    """
    named = {text for one in windows for text in (one.from_, one.until) if text}
    if len(named) > MOST_DATES:
        return True
    days = (SOME_DAY, *(date.fromisoformat(text) - timedelta(days=8) for text in named))
    return any(next_opening(windows, _instant(day)) is not None for day in days)


def _instant(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def _is_over(window: Window, now: float) -> bool:
    """Tell whether the last day has passed in every zone, the night that it begins included."""
    last = date.fromisoformat(window.until) if window.until else None
    return last is not None and now > _instant(last) + 3 * DAY


def _passed(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    if not policy.spec.windows:
        for at, step in enumerate(policy.spec.steps):
            if step.drain is not None and step.drain.on_window_end is OnWindowEnd.PAUSE:
                yield Hit(
                    ("spec", "steps", at, "drain", "onWindowEnd"),
                    "the policy has no windows that could end",
                    "remove it, or write windows",
                )
        return
    if policy.spec.emergency:
        yield Hit(
            ("spec", "windows"),
            "emergency passes all windows and blackouts: these hold nothing",
            "remove one of the two",
        )
    elif not disrupts(policy):
        yield Hit(
            ("spec", "windows"),
            "no step takes capacity or works on the node: these hold nothing",
            "remove them",
        )


RULES: Final = (
    Rule(
        "never-open",
        Severity.ERROR,
        "A window that never opens, or that a blackout covers.",
        "Outside of its windows a policy's disruptive steps are held: here for good.",
        "Correct days and dates.",
        _never_opens,
    ),
    Rule(
        "past-window",
        Severity.WARNING,
        "A window whose last day has passed.",
        "It never opens again: a policy with no other is held for good.",
        "Write a later date.",
        _past,
    ),
    Rule(
        "idle-windows",
        Severity.WARNING,
        "Windows that hold nothing, beside `emergency: true` or without a disruptive step; or a "
        "drain's `onWindowEnd: pause` without windows.",
        "Their author believes that they hold something.",
        "Remove them, or `emergency`.",
        _passed,
    ),
)
