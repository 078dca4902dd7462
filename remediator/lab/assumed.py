"""What a lab assumes of the outside where nobody tells it: durations, reboots, a person's yes.

A policy test says itself what happens; a replay cannot. Its recording knows nothing of a Job
that was never run, or of a question that nobody was asked. Without an assumption each such step
would run to its deadline, and its node would stay out of service until the recording ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from remediator.decide.decision import Decision
from remediator.decide.facts import NodeFacts
from remediator.decide.work import ASSUMED, reboots
from remediator.lab.works import Assumed, Assumptions
from remediator.policy.model import RemediationPolicy
from remediator.policy.quantities import format_duration, parse_duration
from remediator.policy.steps import WORKS, Step


REBOOT: Final = "reboot"
APPROVAL: Final = "approval"
NEVER: Final = "never"
DEFAULTS: Final[Mapping[str, float]] = {
    **{action: ASSUMED[action] for action in WORKS},
    REBOOT: 600.0,
    APPROVAL: 900.0,
}
"""Seconds, by what takes them: work as in dry-run; a Job until the node is back with another boot
id; a question until a person says yes."""


class AssumptionError(Exception):
    """An assumption that cannot be read. ``str()`` says why, and what there is."""


def assumptions(given: Iterable[str] = ()) -> Assumptions:
    """Read ``NAME=TIME`` or ``NAME=never``, over the defaults.

    Raises:
        AssumptionError: there is no such name, or it is no time.
    """
    known: dict[str, float | None] = dict(DEFAULTS)
    for text in given:
        name, _, value = text.partition("=")
        if name not in known or not value:
            names = ", ".join(DEFAULTS)
            raise AssumptionError(f"{text}: write NAME=TIME or NAME=never; names: {names}")
        try:
            known[name] = None if value == NEVER else parse_duration(value)
        except ValueError as error:
            raise AssumptionError(f"{text}: {error}") from error
    reboot, approval = known.pop(REBOOT), known.pop(APPROVAL)
    work = {action: Assumed(seconds) for action, seconds in known.items()}
    return Assumptions(work=work, reboot=reboot, reboots=True, approval=approval)


def relied_on(
    assume: Assumptions, policies: Iterable[RemediationPolicy]
) -> dict[str, float | None]:
    """Return what is assumed for the steps that these policies have. None: it never comes."""
    used = {name for policy in policies for step in policy.spec.steps for name in _names(step)}
    known = {name: assume.of(name).seconds for name in WORKS}
    known |= {REBOOT: assume.reboot, APPROVAL: assume.approval}
    return {name: seconds for name, seconds in known.items() if name in used}


def in_words(assumed: Mapping[str, float | None]) -> str:
    """Return what is assumed as short text, "" for nothing."""
    times = (
        f"{name} {NEVER if seconds is None else format_duration(seconds)}"
        for name, seconds in assumed.items()
    )
    return ", ".join(times)


def _names(step: Step) -> Iterator[str]:
    if reboots(step):
        yield REBOOT
    elif step.works:
        yield step.action
    if step.approve is not None:
        yield APPROVAL


class Boots:
    """Reboots that happened in the lab alone, on top of those of the nodes' own versions.

    What the agent says of the boot before is taken for said of the new one: a recording goes on
    telling how the hardware was, reboot or not. Another boot id in a version of the node counts
    from the start.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], int] = {}

    def again(self, facts: NodeFacts) -> None:
        """Let a node reboot. ``facts``: as its version says."""
        slot = facts.uid, facts.boot_id
        self._times[slot] = self._times.get(slot, 0) + 1

    def view(self, facts: NodeFacts) -> NodeFacts:
        """Return the facts with the boot id that the node has in the lab."""
        times = self._times.get((facts.uid, facts.boot_id))
        if times is None:
            return facts
        boot = f"{facts.boot_id}+{times}"
        said = boot if facts.faults_boot_id == facts.boot_id else facts.faults_boot_id
        return replace(facts, boot_id=boot, faults_boot_id=said)


class _Question(NamedTuple):
    """A step that waits for a person: another ``deadline`` is another question."""

    uid: str
    policy: str
    deadline: float | None


class Answers:
    """A person who says yes, some time after the question, if it is still asked then.

    Args:
        after: seconds; None: nobody answers.
        call_after: has something happen after so many seconds.
        approve: approves what waits on a node for a step of a policy.
    """

    def __init__(
        self,
        *,
        after: float | None,
        call_after: Callable[[float, Callable[[], None]], None],
        approve: Callable[[str, str], None],
    ) -> None:
        self._after = after
        self._call_after = call_after
        self._approve = approve
        self._asked: dict[str, frozenset[_Question]] = {}

    def decided(self, decision: Decision) -> None:
        """Take in what was decided about a node: each question is answered once."""
        if self._after is None:
            return
        known = self._asked.pop(decision.uid, frozenset())
        asked = frozenset(
            _Question(decision.uid, one.policy, one.look_again)
            for one in decision.holds
            if one.guard == APPROVAL
        )
        if asked:
            self._asked[decision.uid] = asked
        for question in sorted(asked - known, key=lambda one: one.policy):
            self._call_after(self._after, partial(self._answer, decision.node, question))

    def _answer(self, node: str, question: _Question) -> None:
        asked = self._asked.get(question.uid, frozenset())
        if question in asked:
            self._asked[question.uid] = asked - {question}
            self._approve(node, question.policy)
