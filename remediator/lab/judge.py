"""What a case expects against what came of it: each failure with its place and the truth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from remediator.decide.facts import NodeFacts
from remediator.lab.case import (
    Case,
    EventExpected,
    HoldExpected,
    MessageExpected,
    NodeExpected,
    StepExpected,
)
from remediator.lab.timeline import DONE, Happening, HoldSpan, Timeline, What
from remediator.policy.quantities import format_duration


SAME_SECOND: Final = 0.5
"""``at:`` of a step means that second."""
NEAREST: Final = 4
"""Of what happened instead, so much is shown."""


class Seen(NamedTuple):
    """A node at the time of an expectation. ``facts`` None: it is gone."""

    wanted: NodeExpected
    node: str
    facts: NodeFacts | None
    phase: str


@dataclass(frozen=True, slots=True)
class Failure:
    """One expectation that is not met. ``parts``: where in the case it stands."""

    parts: tuple[str | int, ...]
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class Judge:
    """One case's expectations, asked one by one. ``zero``: the clock at the case's 0s."""

    timeline: Timeline
    zero: float
    dry_run: bool

    def failures(self, case: Case, seen: Sequence[Seen]) -> tuple[Failure, ...]:
        """Return everything that is not as expected."""
        return (
            *self._steps(case.expect.steps),
            *(
                Failure(("expect", "holds", at), f"held: {_hold(one)}", self._held(one))
                for at, one in enumerate(case.expect.holds)
                if not self._spans(one)
            ),
            *self._told(case),
            *(
                Failure(("expect", "events", at), f"Event {_event(one)}", self._events_seen())
                for at, one in enumerate(case.expect.events)
                if not self._events(one)
            ),
            *self._nodes(case, seen),
            *self._unwanted(case),
            *(self._noise() if case.quiet else ()),
            *(self._written() if self.dry_run else ()),
        )

    # -- steps ----------------------------------------------------------------------------------

    def _steps(self, wanted: Sequence[StepExpected]) -> Iterable[Failure]:
        """Find each step, per node after the one that was found before it."""
        after: dict[str | None, int] = {}
        all_steps = self._of(What.STEP, What.UNDONE)
        for at, one in enumerate(wanted):
            found = [(i, s) for i, s in enumerate(all_steps) if self._is_step(one, s)]
            if one.count is not None:
                if len(found) != one.count:
                    got = f"{len(found)} of them{self._steps_of(one.node)}"
                    yield Failure(("expect", "steps", at), f"{one.count} x {_step(one)}", got)
                continue
            first = next((i for i, _ in found if i > after.get(one.node, -1)), None)
            if first is None:
                late = "only before the step that stands above it" if found else "no such step"
                got = f"{late}{self._steps_of(one.node)}"
                yield Failure(("expect", "steps", at), f"step {_step(one)}", got)
            else:
                after[one.node] = first

    def _is_step(self, one: StepExpected, step: Happening) -> bool:
        at = step.at - self.zero
        return (
            one.step == step.name
            and one.node in {None, step.node}
            and one.policy in {None, step.policy}
            and one.result.value == (step.result or DONE)
            and (one.at is None or abs(at - one.at) <= SAME_SECOND)
            and (one.after is None or at >= one.after)
            and (one.by is None or at <= one.by)
        )

    def _steps_of(self, node: str | None) -> str:
        found = [one for one in self._of(What.STEP, What.UNDONE) if node in {None, one.node}]
        if not found:
            return "; there was no step at all"
        shown = ", ".join(
            f"{one.name} on {one.node} at {self._time(one.at)}"
            + (f" ({one.result})" if one.result not in {"", DONE} else "")
            for one in found[:NEAREST]
        )
        more = f" and {len(found) - NEAREST} more" if len(found) > NEAREST else ""
        return f"; there was {shown}{more}"

    # -- holds ----------------------------------------------------------------------------------

    def _spans(self, one: HoldExpected) -> list[HoldSpan]:
        return [
            span
            for span in self.timeline.holds
            if span.dry_run is self.dry_run
            and span.guard == one.guard
            and one.node in {None, span.node}
            and one.policy in {None, span.policy}
            and one.reason in span.reason
            and (one.at is None or span.covers(self.zero + one.at))
        ]

    def _held(self, one: HoldExpected) -> str:
        spans = [
            span
            for span in self.timeline.holds
            if span.dry_run is self.dry_run and one.node in {None, span.node}
        ]
        if not spans:
            return "nothing was ever held"
        return "held were " + "; ".join(self._span(span) for span in spans[:NEAREST])

    def _span(self, span: HoldSpan) -> str:
        until = "" if span.until is None else f" to {self._time(span.until)}"
        return f"{span.node} by {span.guard} from {self._time(span.since)}{until} ({span.reason})"

    # -- messages, Events -------------------------------------------------------------------------

    def _told(self, case: Case) -> Iterable[Failure]:
        for at, one in enumerate(case.expect.messages):
            found = self._messages(one)
            if (one.count is None and found) or one.count == len(found):
                continue
            count = "a message" if one.count is None else f"{one.count} messages"
            sent = [text.text.partition("\n")[0] for text in self._of(What.MESSAGE)]
            listed = "; ".join(sent[:NEAREST]) or "none at all"
            got = f"{len(found)}; sent were: {listed}"
            yield Failure(("expect", "messages", at), f"{count} {_message(one)}", got)

    def _messages(self, one: MessageExpected) -> list[Happening]:
        return [
            said
            for said in self._of(What.MESSAGE)
            if one.node in {None, said.node}
            and one.policy in {None, said.policy}
            and (one.to is None or one.to in said.to)
            and one.contains in said.text
            and (one.after is None or said.at - self.zero >= one.after)
            and (one.by is None or said.at - self.zero <= one.by)
        ]

    def _events(self, one: EventExpected) -> list[Happening]:
        return [
            said
            for said in self._of(What.EVENT)
            if one.reason == said.name
            and one.node in {None, said.node}
            and one.policy in {None, said.policy}
            and (one.by is None or said.at - self.zero <= one.by)
        ]

    def _events_seen(self) -> str:
        found = [f"{one.name} on {one.node}" for one in self._of(What.EVENT)]
        return ", ".join(found[:NEAREST]) or "there was no Event"

    # -- nodes ----------------------------------------------------------------------------------

    def _nodes(self, case: Case, seen: Sequence[Seen]) -> Iterable[Failure]:
        for at, wanted in enumerate(case.expect.nodes):
            for one in seen:
                if one.wanted is wanted:
                    when = format_duration(wanted.at)
                    for expected, got in _differences(one):
                        place = ("expect", "nodes", at)
                        yield Failure(place, f"{one.node} at {when}: {expected}", got)

    # -- what must not be -------------------------------------------------------------------------

    def _unwanted(self, case: Case) -> Iterable[Failure]:
        never = case.expect_not
        for at, step in enumerate(never.steps):
            for one in (s for s in self._of(What.STEP, What.UNDONE) if self._is_step(step, s)):
                got = f"{one.name} on {one.node} at {self._time(one.at)}"
                yield Failure(("expectNot", "steps", at), f"no step {_step(step)}", got)
        for at, hold in enumerate(never.holds):
            for span in self._spans(hold):
                yield Failure(("expectNot", "holds", at), f"no {_hold(hold)}", self._span(span))
        for at, message in enumerate(never.messages):
            for one in self._messages(message):
                got = f"{one.text.partition(chr(10))[0]} at {self._time(one.at)}"
                yield Failure(("expectNot", "messages", at), f"no message {_message(message)}", got)
        for at, event in enumerate(never.events):
            for one in self._events(event):
                got = f"{one.name} on {one.node} at {self._time(one.at)}"
                yield Failure(("expectNot", "events", at), f"no Event {_event(event)}", got)

    def _noise(self) -> Iterable[Failure]:
        kinds = (What.STEP, What.WORK, What.UNDONE, What.MESSAGE, What.EVENT, What.HELD)
        for one in self._of(*kinds):
            got = f"{self._time(one.at)} {one.node} {one.what} {one.name} {one.policy}"
            yield Failure(("quiet",), "nothing is done, told or held", got)

    def _written(self) -> Iterable[Failure]:
        """Dry-run writes nothing, whatever the test expects."""
        for one in self.timeline.of(What.BEGUN, What.STEP, What.UNDONE, What.WORK):
            if not one.dry_run:
                got = f"{one.what} {one.name} on {one.node} at {self._time(one.at)}"
                yield Failure(("mode",), "dry-run writes to no node", got)

    def _of(self, *kinds: What) -> list[Happening]:
        return [one for one in self.timeline.of(*kinds) if one.dry_run is self.dry_run]

    def _time(self, at: float) -> str:
        return format_time(at - self.zero)


def format_time(seconds: float) -> str:
    """Write a time of a timeline: seconds since its 0s, which may be before it."""
    rounded = round(seconds, 1)
    return f"-{format_duration(-rounded)}" if rounded < 0 else format_duration(rounded)


def _differences(one: Seen) -> Iterable[tuple[str, str]]:
    wanted, facts = one.wanted, one.facts
    if facts is None:
        yield "to be there", "the node is gone"
        return
    if wanted.cordoned is not None and wanted.cordoned is not facts.unschedulable:
        yield _not(wanted.cordoned, "cordoned"), _not(facts.unschedulable, "cordoned")
    keys = sorted({taint.key for taint in facts.taints})
    listed = f"taints: {', '.join(keys)}" if keys else "no taint"
    if wanted.tainted is not None and wanted.tainted not in keys:
        yield f"tainted {wanted.tainted}", listed
    if wanted.untainted is not None and wanted.untainted in keys:
        yield f"no taint {wanted.untainted}", listed
    for key, text in wanted.labels.items():
        if facts.labels.get(key) != text:
            yield f"label {key}: {text}", f"{key}: {facts.labels.get(key, '(none)')}"
    in_session = facts.session is not None
    if wanted.session is not None and wanted.session is not in_session:
        yield _not(wanted.session, "in a session"), _not(in_session, "in a session")
    if wanted.phase is not None and wanted.phase != one.phase:
        yield f"phase {wanted.phase}", f"phase {one.phase}"


def _not(positive: object, text: str) -> str:
    return text if positive else f"not {text}"


def _where(node: str | None, policy: str | None) -> str:
    on = f" on {node}" if node is not None else ""
    return f"{on} of {policy}" if policy is not None else on


def _times(**given: float | None) -> str:
    return "".join(f" {word} {format_duration(at)}" for word, at in given.items() if at is not None)


def _step(one: StepExpected) -> str:
    result = "" if one.result.value == DONE else f" {one.result.value}"
    times = _times(at=one.at, after=one.after, by=one.by)
    return f"{one.step}{result}{_where(one.node, one.policy)}{times}"


def _hold(one: HoldExpected) -> str:
    why = f" ({one.reason})" if one.reason else ""
    return f"hold by {one.guard}{_where(one.node, one.policy)}{_times(at=one.at)}{why}"


def _message(one: MessageExpected) -> str:
    to = f"to {one.to}" if one.to is not None else ""
    with_text = f" with {one.contains!r}" if one.contains else ""
    times = _times(after=one.after, by=one.by)
    return f"{to}{_where(one.node, one.policy)}{times}{with_text}".strip()


def _event(one: EventExpected) -> str:
    return f"{one.reason}{_where(one.node, one.policy)}{_times(by=one.by)}"
