"""Plays one case: its nodes and timeline into a lab, its expectations against what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from remediator.lab.agenda import LabError
from remediator.lab.case import Case, NodeExpected, instant
from remediator.lab.file import TestFile
from remediator.lab.judge import Failure, Judge, Seen
from remediator.lab.named import check_names
from remediator.lab.player import CaseError, Player, with_mode
from remediator.lab.run import Lab
from remediator.lab.timeline import Timeline
from remediator.policy.model import Mode, RemediationPolicy
from remediator.policy.quantities import format_duration


WARM_UP: Final = 900.0
"""Seconds that a settled controller has run before a test's time zero."""
LONGEST: Final = 31 * 86400.0
"""Seconds that a test may last: heartbeats alone are 9,000 a node."""
AFTERWARDS: Final = 3600.0
"""Seconds that a test goes on after the last time that it names."""


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a case. ``zero``: the lab's clock at the case's 0s."""

    failures: tuple[Failure, ...]
    timeline: Timeline
    zero: float


def play(given: TestFile, at: int, policies: Sequence[RemediationPolicy]) -> Played:
    """Play one case of a file.

    Raises:
        CaseError: it names what is not there.
    """
    case = given.case(at)
    if end_of(case) > LONGEST:
        raise CaseError(f"it lasts longer than {format_duration(LONGEST)}")
    mode = Mode(case.mode or given.spec.mode)
    zero = instant(given.spec.start)
    lab = Lab(
        policies=[with_mode(one, mode) for one in policies],
        cluster=given.cluster,
        start=zero - (WARM_UP if given.spec.settled else 0.0),
    )
    player = Player(lab, zero=zero)
    for one in case.nodes or given.spec.nodes:
        player.add(one)
    check_names(case, player.names, policies, given.cluster)
    for index, happens in enumerate(case.timeline):
        player.schedule(happens, index)
    try:
        seen = _run(lab, case, player.names, zero=zero, dry_run=mode is Mode.DRY_RUN)
    except LabError as error:
        raise CaseError(str(error)) from error
    judge = Judge(lab.timeline, zero, mode is Mode.DRY_RUN)
    return Played(judge.failures(case, seen), lab.timeline, zero)


def _run(lab: Lab, case: Case, names: Sequence[str], *, zero: float, dry_run: bool) -> list[Seen]:
    """Let time pass, and look at the nodes whenever the case wants to."""
    seen: list[Seen] = []
    for moment in sorted({one.at for one in case.expect.nodes}):
        lab.run(zero + moment)
        for one in case.expect.nodes:
            if one.at == moment:
                wanted = names if one.node is None else [one.node]
                seen += [_look(lab, one, name, dry_run=dry_run) for name in wanted]
    lab.run(zero + end_of(case))
    return seen


def _look(lab: Lab, wanted: NodeExpected, name: str, *, dry_run: bool) -> Seen:
    phase = lab.timeline.phase(name, lab.now, dry_run=dry_run)
    return Seen(wanted, name, lab.seen(name, dry_run=dry_run), phase)


def end_of(case: Case) -> float:
    """Return when a case ends, in seconds of its own time."""
    if case.until is not None:
        return case.until
    lists = [
        getattr(one, name)
        for one in (case.expect, case.expect_not)
        for name in type(one).model_fields
    ]
    times = [
        *(getattr(one, key, None) or 0.0 for two in lists for one in two for key in _TIMES),
        *(max(one.at, one.until or 0.0) for one in case.timeline),
    ]
    return max(times, default=0.0) + AFTERWARDS


_TIMES: Final = ("at", "after", "by")
