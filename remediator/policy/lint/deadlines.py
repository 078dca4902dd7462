"""Rules about deadlines of steps: too short, too long, or without an effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from remediator.policy.drain import OnWindowEnd, PodRule
from remediator.policy.lint.rule import Context, Hit, Rule, Severity
from remediator.policy.model import RemediationPolicy
from remediator.policy.quantities import format_duration
from remediator.policy.steps import OnFailure, Step


LONGEST: Final = 7 * 86400.0
"""A deadline beyond a week is mostly a wrong unit."""
SHORTEST_WORK: Final = 30.0
"""Seconds; pods have half a minute to end by default."""
SHORTEST_ANSWER: Final = 300.0
"""Seconds; a person has to see the question, and to look at the node."""
_MORE: Final = 1800.0
"""Seconds that a fix leaves a drain behind the time of its slowest rule."""


def _no_time(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for index, step in enumerate(policy.spec.steps):
        at = ("spec", "steps", index, "timeout")
        lasting = _lasting(step)
        if lasting and lasting >= step.limit:
            yield Hit(
                at if step.timeout is not None else at[:-1],
                f"the condition has to last {format_duration(lasting)}, and the step ends after "
                f"{format_duration(step.limit)}",
                f"write a timeout of more than {format_duration(lasting)} beside wait",
            )
        if step.timeout is None or step.changes_node or _only_waits(step):
            continue
        given = format_duration(step.timeout)
        if step.works and step.timeout < SHORTEST_WORK:
            yield Hit(at, f"{step.action} cannot end within {given}", "write 5m or more")
        elif step.approve is not None and step.timeout < SHORTEST_ANSWER:
            yield Hit(at, f"nobody answers within {given}", "write an hour or more")
        elif step.timeout > LONGEST:
            yield Hit(at, f"a deadline of {given} ends nothing", "write hours or a few days")


def _lasting(step: Step) -> float:
    wanted = step.wait.condition if step.wait is not None else None
    return wanted.for_ if wanted is not None else 0.0


def _only_waits(step: Step) -> bool:
    """Tell whether a step waits for a time: it has no deadline, and cannot fail."""
    return step.wait is not None and step.wait.for_ is not None


def _idle_timeout(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for index, step in enumerate(policy.spec.steps):
        at = ("spec", "steps", index, "timeout")
        told = step.tells and step.after_failure is OnFailure.CONTINUE
        if step.timeout is not None and (step.changes_node or told):
            yield Hit(
                at,
                f"nobody waits for {step.action}: its timeout means nothing",
                "remove it, or say onFailure: hold",
            )
        elif step.timeout is not None and _only_waits(step):
            yield Hit(
                at,
                "a wait for a time ends by that time alone: its timeout means nothing",
                "remove it, and say by `for` how long it takes",
            )


def _late_pod_rule(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    """Where a drain pauses, its deadline does not run, and the times of its rules do."""
    for index, step in enumerate(policy.spec.steps):
        drain = step.drain
        if drain is None or (drain.on_window_end is OnWindowEnd.PAUSE and policy.spec.windows):
            continue
        for number, rule in enumerate(drain.pods):
            key, after = _time_of(rule)
            if after and after >= step.limit:
                then = "deleted" if key == "deleteAfter" else "evicted"
                yield Hit(
                    ("spec", "steps", index, "drain", "pods", number, key),
                    f"the drain ends after {format_duration(step.limit)}: nothing is {then} "
                    f"after {format_duration(after)}",
                    f"write timeout: {format_duration(after + _MORE)} beside drain, or a "
                    "shorter time here",
                )


def _time_of(rule: PodRule) -> tuple[str, float]:
    """Return the key of a rule's behaviour that takes a time, and that time; 0: it has none."""
    if rule.delete_after is not None:
        return "deleteAfter", rule.delete_after.timeout
    waits = rule.wait_completion
    return "waitCompletion", (waits.max_wait or 0.0) if waits is not None else 0.0


RULES: Final = (
    Rule(
        "odd-timeout",
        Severity.WARNING,
        "A deadline so short that the step always fails, or so long that it ends nothing.",
        "Mostly a wrong unit; or a wait for a condition that has to last longer than the step may.",
        "Write a time that fits the step.",
        _no_time,
    ),
    Rule(
        "idle-timeout",
        Severity.WARNING,
        "A timeout on a step that nobody waits for, or that waits for a time.",
        "Its author expects something of it.",
        "Remove it, or wait for the step by `onFailure: hold`.",
        _idle_timeout,
    ),
    Rule(
        "late-pod-rule",
        Severity.ERROR,
        "A pod rule whose time is not shorter than the drain's deadline.",
        "The drain has failed before anything is deleted, or evicted after its `maxWait`.",
        "Give the drain more time, or the rule less.",
        _late_pod_rule,
    ),
)
