"""Rules about what steps leave behind: a drain of nothing, a node that comes back unproven."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from remediator.policy.base import LabelSelector
from remediator.policy.drain import PodRule
from remediator.policy.lint.rule import Context, Hit, Rule, Severity
from remediator.policy.model import RemediationPolicy
from remediator.policy.steps import JobSuccess, OnFailure, Step


_HELPS: Final = frozenset(("job", "create", "webhook", "wait", "approve"))
"""Steps after which a node may be another one. A drain changes no hardware."""
_REBOOTS: Final = re.compile(r"(^|.*-)(reboot|power-?cycle)(-(node|host|machine))?")
"""Names of templates; one such as `reboot-check` is another matter."""


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
    passed, idle = "", True
    for index, step in enumerate(policy.spec.steps):
        comes_back = step.uncordon is not None or step.untaint is not None
        if _proves(step):
            lets_pass = step.after_failure is OnFailure.CONTINUE
            passed = step.action if lets_pass else ""
        elif comes_back and passed:
            yield Hit(
                ("spec", "steps", index),
                f"the node comes back although {passed} before it may have failed",
                f"leave it to recover, or let {passed} hold or escalate",
            )
        elif comes_back and idle and index:
            yield Hit(
                ("spec", "steps", index),
                "the node comes back with its fault: no step before it works on it, waits or asks",
                "leave it to recover: remove it",
            )
        idle = idle and step.action not in _HELPS


def _reboot_by_completion(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for index, step in enumerate(policy.spec.steps):
        job = step.job
        if job is None or job.success is JobSuccess.REBOOT or not _REBOOTS.fullmatch(job.template):
            continue
        yield Hit(
            ("spec", "steps", index, "job"),
            f"{job.template} takes its own pod down with the node: how that ends proves nothing",
            "write success: reboot",
        )


def _evicted_before(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    evicted = False
    for index, step in enumerate(policy.spec.steps):
        if step.drain is not None and evicted:
            yield Hit(
                ("spec", "steps", index),
                "the taint NoExecute before it has evicted the pods already, and asked no "
                "PodDisruptionBudget",
                "put the drain before the taint, and a cordon before the drain",
            )
        evicted = evicted or (step.taint is not None and step.taint.effect == "NoExecute")


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
        "reboot-by-completion",
        Severity.WARNING,
        "A Job that by its template's name reboots the node, without `success: reboot`.",
        "The reboot kills the Job's own pod: one that did its work may count as failed, and one "
        "that is complete proves no reboot.",
        "Write `success: reboot`: a new boot id, and Ready.",
        _reboot_by_completion,
    ),
    Rule(
        "evicted-before-drain",
        Severity.WARNING,
        "A drain behind a taint `NoExecute`.",
        "The taint evicts at once and asks no PodDisruptionBudget: nothing is left to drain.",
        "Drain first.",
        _evicted_before,
    ),
    Rule(
        "unproven-return",
        Severity.WARNING,
        "An `uncordon` or `untaint` behind a `job`, or a wait for a condition or an object, with "
        "`onFailure: continue`; or behind no step that could help.",
        "When the Job fails, the node is given to new pods all the same. A wait for a time proves "
        "nothing of it; a later Job, condition or approval does.",
        "Leave it to `recover`, or let the failure hold.",
        _unproven_return,
    ),
)
