"""What a write says of steps: which began, and which ended and how. For metrics and Events.

Derived from the session before a write and the holds after it, so that every step that has a
result in a session is told once, in whichever way it came to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from remediator.decide.session import PolicyHold, Session
from remediator.policy.plan import parse_plan


STARTED: Final = "started"
"""Of what takes time; a `Result` says how it ended."""


class Stage(NamedTuple):
    """One step of one policy that began or ended. ``step`` counts from 0."""

    policy: str
    step: int
    action: str
    result: str
    note: str = ""
    works: bool = False
    """It takes time outside the node object: a drain, a job, a create, a webhook."""


def stages(before: Session | None, after: Iterable[PolicyHold]) -> Iterator[Stage]:
    """Yield what is new in the holds after a write; ``before``: the session before it."""
    for hold in after:
        old = before.hold(hold.policy) if before is not None else None
        steps = parse_plan(hold.plan).steps
        known = {(one.step, one.at, one.result) for one in old.results} if old else set()
        for one in hold.results:
            if (one.step, one.at, one.result) not in known:
                works = steps[one.step].works
                yield Stage(hold.policy, one.step, one.action, one.result, one.note, works)
        if hold.work_since is not None and (old is None or old.work_since is None):
            yield Stage(hold.policy, hold.step, steps[hold.step].action, STARTED, works=True)
