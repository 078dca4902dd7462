"""Windows: disruptive steps begin within the policy's windows; outside they are held, not lost.

A step that has begun goes on past the end of its window: half a drain helps nobody. Only a drain
that says ``onWindowEnd: pause`` evicts nothing more until the next opening.
"""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.ledger import Ledger
from remediator.policy.model import RemediationPolicy
from remediator.policy.timetable import closed_by, is_open, next_closing, next_opening
from remediator.policy.windows import Window


def windows(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:  # noqa: ARG001
    """Hold outside of the policy's windows and in its blackouts, until the exact next opening."""
    return closed(candidate.policy, now)


def closed(policy: RemediationPolicy, now: float) -> Hold | None:
    """Say that, and until when, nothing may begin by a policy's windows; None if it may."""
    spec = policy.spec
    if not spec.windows or spec.emergency or is_open(spec.windows, now):
        return None
    until = next_opening(spec.windows, now)
    blackout = closed_by(spec.windows, now)
    why = f"in the blackout {blackout}" if blackout is not None else "outside its windows"
    return Hold(policy.name, "windows", f"{why}; {_opens(spec.windows, until)}", until)


def closes_at(policy: RemediationPolicy, now: float) -> float | None:
    """Return when a policy's windows close next; None if they never do, or it passes them."""
    spec = policy.spec
    return None if not spec.windows or spec.emergency else next_closing(spec.windows, now)


def _opens(given: tuple[Window, ...], until: float | None) -> str:
    """Say when it opens, in the zone of the first window that lets steps begin."""
    if until is None:
        return "none opens within 400 days"
    zone = next((one for one in given if not one.blackout), given[0]).time_zone
    when = datetime.fromtimestamp(until, ZoneInfo(zone))
    return f"opens {when:%a %Y-%m-%d %H:%M} {zone}"
