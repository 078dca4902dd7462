"""Rules about what steps leave behind: a drain of nothing, a node that comes back unproven."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from remediator.policy.base import LabelSelector
from remediator.policy.drain import PodRule
from remediator.policy.lint.rule import Context, Hit, Rule, Severity
from remediator.policy.model import RemediationPolicy
from remediator.policy.steps import OnFailure, Step


def _idle_rules(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    """The first rule that fits a pod counts: behind one that fits all, none is reached."""
    for index, step in enumerate(policy.spec.steps):
        rules = step.drain.pods if step.drain is not None else ()
        first = next((at for at, one in enumerate(rules) if _fits_all(one)), None)
        if first is None:
            continue
        at = ("spec", "steps", index, "drain", "pods")
        if first == 0 and rules[0].skip is not None:
            yield Hit(
                (*at, 0),
                "it skips all pods: the drain evicts none, and is done at once",
                "say which by selector or namespaces, or remove the drain",
            )
        elif first < len(rules) - 1:
            yield Hit(
                (*at, first + 1),
                f"no pod gets here: rule {first + 1} before it fits all of them",
                "put the rule for all pods last",
            )


def _fits_all(rule: PodRule) -> bool:
    return rule.selector == LabelSelector() and (not rule.namespaces or "*" in rule.namespaces)


def _unproven_return(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    """What a step proved, or a person said, stands for what failed before it; a time does not."""
    passed = ""
    for index, step in enumerate(policy.spec.steps):
        if _proves(step):
            lets_pass = step.after_failure is OnFailure.CONTINUE
            passed = step.action if lets_pass else ""
        elif passed and (step.uncordon is not None or step.untaint is not None):
            yield Hit(
                ("spec", "steps", index),
                f"the node comes back although {passed} before it may have failed",
                f"leave it to recover, or let {passed} hold or escalate",
            )


def _proves(step: Step) -> bool:
    """Tell whether a step that is done says something of the node, which it may also not say."""
    return (
        step.job is not None
        or step.approve is not None
        or (step.wait is not None and step.wait.condition is not None)
        or (step.create is not None and step.create.wait_for is not None)
    )


RULES: Final = (
    Rule(
        "unreached-pods",
        Severity.WARNING,
        "A pod rule that no pod gets to, or a drain whose first rule skips all pods.",
        "The first rule that fits a pod counts, and one without selector and namespaces fits all.",
        "Put it last, or say which pods are meant.",
        _idle_rules,
    ),
    Rule(
        "unproven-return",
        Severity.WARNING,
        "An `uncordon` or `untaint` behind a `job`, or a wait for a condition or an object, with "
        "`onFailure: continue`.",
        "When the Job fails, the node is given to new pods all the same. A wait for a time proves "
        "nothing of it; a later Job, condition or approval does.",
        "Leave it to `recover`, or let the failure hold.",
        _unproven_return,
    ),
)
