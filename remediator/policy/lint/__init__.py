"""Lint: what a policy's schema allows and its author can hardly mean.

Each rule has an id, a severity, a reason and a fix. ``error``: the policy cannot do what it
says. ``warning``: it can, and it mostly is a mistake; an author who means it says so by the
annotation ``gpu-remediator.io/lint-ignore: rule-id, other-rule``. Pure: no file is read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from remediator.policy.cluster import ClusterSpec, RemediatorConfig
from remediator.policy.lint import (
    deadlines,
    fleet,
    healthy,
    held,
    letters,
    limits,
    names,
    nodes,
    order,
    queries,
    reasons,
    settings,
    steps,
    templates,
    when,
    windows,
)
from remediator.policy.lint.rule import (
    IGNORE_ANNOTATION,
    Context,
    Finding,
    Rule,
    Severity,
    ignored,
)
from remediator.policy.model import RemediationPolicy
from remediator.policy.templates import ReadTemplate


__all__ = [
    "IGNORE_ANNOTATION",
    "RULES",
    "Finding",
    "Rule",
    "Severity",
    "lint",
    "lint_config",
]

RULES: Final[tuple[Rule, ...]] = (
    *when.RULES,
    *queries.RULES,
    *reasons.RULES,
    *letters.RULES,
    *nodes.RULES,
    *healthy.RULES,
    *held.RULES,
    *steps.RULES,
    *deadlines.RULES,
    *order.RULES,
    *windows.RULES,
    *limits.RULES,
    *settings.RULES,
    *names.RULES,
    *templates.RULES,
    *fleet.RULES,
)
"""All rules, in the order in which their findings are shown."""


def lint(
    policies: Sequence[RemediationPolicy],
    *,
    cluster: ClusterSpec | None = None,
    files: Mapping[str, ReadTemplate] | None = None,
    rules: Sequence[Rule] = RULES,
    now: float | None = None,
) -> Iterator[Finding]:
    """Yield what is questionable in policies that are loaded together.

    ``cluster``: RemediatorConfig's settings; None: not known, and nothing is said about them.
    ``files``: those of its templates, by name. ``now``: seconds since the epoch; None: nothing
    is said of dates that are over.
    """
    context = Context(tuple(policies), cluster, files or {}, now)
    for policy in policies:
        silenced = ignored(policy.metadata.annotations)
        for rule in rules:
            if rule.id in silenced:
                continue
            for hit in rule.check(policy, context):
                yield Finding(rule, policy.name, hit.at, hit.message, hit.fix)


def lint_config(
    config: RemediatorConfig,
    *,
    files: Mapping[str, ReadTemplate] | None = None,
    rules: Sequence[Rule] = RULES,
) -> Iterator[Finding]:
    """Yield what is questionable in RemediatorConfig itself, whatever the policies are."""
    silenced = ignored(config.metadata.annotations if config.metadata is not None else {})
    for rule in rules:
        if rule.id not in silenced:
            for hit in rule.of_config(config.spec, files or {}):
                yield Finding(rule, "", hit.at, hit.message, hit.fix)
