"""Lint: what a policy's schema allows and its author can hardly mean.

Each rule has an id, a severity, a reason and a fix. ``error``: the policy cannot do what it
says. ``warning``: it can, and it mostly is a mistake; an author who means it says so by the
annotation ``gpu-remediator.io/lint-ignore: rule-id, other-rule``. Pure: no file is read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from remediator.policy.cluster import ClusterSpec
from remediator.policy.lint import fleet, limits, names, steps, when
from remediator.policy.lint.rule import Context, Finding, Rule, Severity
from remediator.policy.model import RemediationPolicy


__all__ = ["IGNORE_ANNOTATION", "RULES", "Finding", "Rule", "Severity", "lint"]

IGNORE_ANNOTATION: Final = "gpu-remediator.io/lint-ignore"
RULES: Final[tuple[Rule, ...]] = (
    *when.RULES,
    *steps.RULES,
    *limits.RULES,
    *names.RULES,
    *fleet.RULES,
)
"""All rules, in the order in which their findings are shown."""


def lint(
    policies: Sequence[RemediationPolicy],
    *,
    cluster: ClusterSpec | None = None,
    rules: Sequence[Rule] = RULES,
) -> Iterator[Finding]:
    """Yield what is questionable in policies that are loaded together.

    ``cluster``: RemediatorConfig's settings; None: not known, and nothing is said about them.
    """
    context = Context(tuple(policies), cluster)
    for policy in policies:
        ignored = ignored_by(policy)
        for rule in rules:
            if rule.id in ignored:
                continue
            for hit in rule.check(policy, context):
                yield Finding(rule, policy.name, hit.at, hit.message, hit.fix)


def ignored_by(policy: RemediationPolicy) -> frozenset[str]:
    """Return the rules that a policy's author has silenced for it."""
    text = policy.metadata.annotations.get(IGNORE_ANNOTATION, "")
    return frozenset(text.replace(",", " ").split())
