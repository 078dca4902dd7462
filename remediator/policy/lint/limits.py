"""Rules about limits and times: guards that guard nothing, times that mean nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from remediator.policy.cluster import ClusterSpec
from remediator.policy.lint.rule import Context, Hit, Rule, Severity, disrupts, entries
from remediator.policy.model import RecoverWhen, RemediationPolicy
from remediator.policy.problems import Location
from remediator.policy.quantities import Amount, format_duration
from remediator.policy.templates import ReadTemplate


EVERYTHING: Final = 100
QUICK_RECOVERY: Final = 60.0
"""Seconds; below that a signal that comes and goes takes the node out and back all day."""
LONG: Final = 86400.0
SHORTEST_SETTLING: Final = 30.0
"""Seconds; in less, sources have not been asked twice."""
MANY_ATTEMPTS: Final = 10


def _unbounded(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    own = policy.spec.limits.budget
    if own is None or not disrupts(policy) or not _is_everything(own.max_unavailable):
        return
    cluster = context.cluster
    others = cluster.budgets if cluster is not None else ()
    if any(not _is_everything(one.max_unavailable) for one in others):
        return  # all must allow, and one of them binds
    yield Hit(
        ("spec", "limits", "budget", "maxUnavailable"),
        "100% of the nodes may be taken out of service at once: it takes the default's place",
        "write 10%, or leave the budget out for the default (1 per pool, 10% of the cluster)",
    )


def _unbounded_config(cluster: ClusterSpec, _files: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    if cluster.budgets and all(_is_everything(one.max_unavailable) for one in cluster.budgets):
        yield Hit(
            ("spec", "budgets"),
            "every budget is 100%: all nodes may be taken out of service at once",
            "write a share, or leave budgets out for the default (1 per pool, 10% of the cluster)",
        )


def _nothing(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    own = policy.spec.limits.budget
    if own is not None and own.max_unavailable.value == 0 and disrupts(policy):
        yield Hit(
            ("spec", "limits", "budget", "maxUnavailable"),
            "no node may ever be taken out of service: the policy is held for ever",
            "write 1 or 10%, or mode: Disabled if that is meant",
        )


def _nothing_config(cluster: ClusterSpec, _files: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    for index, one in enumerate(cluster.budgets):
        if one.max_unavailable.value == 0:
            yield Hit(
                ("spec", "budgets", index, "maxUnavailable"),
                "no node may ever be taken out of service: every policy is held for ever",
                "write 1 or 10%, or mode: DryRun if that is meant",
            )


def _deaf_breaker(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    breaker = policy.spec.limits.breaker
    if breaker is not None and disrupts(policy) and breaker.percent == EVERYTHING:
        yield Hit(
            ("spec", "limits", "breaker", "percent"),
            "a breaker at 100% never opens",
            "write 20, or leave it out",
        )


def _deaf_config(cluster: ClusterSpec, _files: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    if cluster.breaker.percent == EVERYTHING:
        yield Hit(
            ("spec", "breaker", "percent"),
            "a breaker at 100% never opens: of no source, and of no policy without its own",
            "write 20, or leave it out",
        )
    if cluster.sanity.percent == EVERYTHING:
        yield Hit(
            ("spec", "sanity", "percent"),
            "at 100% agents are believed until the last one is silent",
            "write 20, or leave it out",
        )


def _hasty_config(cluster: ClusterSpec, _files: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    if cluster.settling < SHORTEST_SETTLING:
        yield Hit(
            ("spec", "settling"),
            f"a new leader acts after {format_duration(cluster.settling)}, on first impressions",
            "write 1m, or leave it out",
        )


def _flapping(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    recover = policy.spec.recover
    changes = any(step.disruptive for step in policy.spec.steps)
    if recover.when is RecoverWhen.CLEARED and changes and recover.for_ < QUICK_RECOVERY:
        yield Hit(
            ("spec", "recover", "for"),
            f"well for {format_duration(recover.for_)} is soon said",
            "write 10m or more",
        )


def _odd_times(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for at, seconds in _times(policy):
        if seconds > LONG:
            given = format_duration(seconds)
            yield Hit(
                at,
                f"{given} is longer than a day: a restart of the controller begins it anew",
                "write minutes or hours",
            )
        elif 0 < seconds < 1.0:
            yield Hit(at, "less than a second is no time for a fault", "write seconds or minutes")


def _times(policy: RemediationPolicy) -> Iterator[tuple[Location, float]]:
    for at, entry in entries(policy):
        for key in ("condition", "alert", "query"):
            clause = getattr(entry, key)
            if clause is not None:
                yield (*at, key, "for"), clause.for_
    yield ("spec", "recover", "for"), policy.spec.recover.for_


def _endless(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    if policy.spec.limits.max_attempts > MANY_ATTEMPTS:
        yield Hit(
            ("spec", "limits", "maxAttempts"),
            f"{policy.spec.limits.max_attempts} attempts a day hide a node that needs people",
            "write 3, or leave it out",
        )


def _is_everything(amount: Amount) -> bool:
    return amount.percent and amount.value >= EVERYTHING


RULES: Final = (
    Rule(
        "unbounded-budget",
        Severity.WARNING,
        "A budget of 100%, and no other that binds.",
        "A budget of its own takes the place of the default one. A wrong signal then takes every "
        "node; only rate and breaker are left.",
        "Write a share, or leave the budget out.",
        _unbounded,
        _unbounded_config,
    ),
    Rule(
        "empty-budget",
        Severity.ERROR,
        "A budget of 0: every disruptive step is held for ever.",
        "The policy promises what it may never do.",
        "Write 1 or more, or disable the policy.",
        _nothing,
        _nothing_config,
    ),
    Rule(
        "deaf-breaker",
        Severity.WARNING,
        "A breaker that never opens.",
        "When a driver's or exporter's update makes every node look bad, it is what stops it.",
        "Write a share below 100.",
        _deaf_breaker,
        _deaf_config,
    ),
    Rule(
        "short-settling",
        Severity.WARNING,
        "A `settling` of less than half a minute. Asked of RemediatorConfig.",
        "A leader that has just begun has seen nothing twice: whom sources and agents speak of, "
        "and what people did meanwhile, it is still learning.",
        "Write 1m.",
        of_config=_hasty_config,
    ),
    Rule(
        "quick-recovery",
        Severity.WARNING,
        "Capacity is given back less than a minute after the fault has cleared.",
        "A fault that comes and goes takes the node out and back all day, and jobs with it.",
        "Write ten minutes.",
        _flapping,
    ),
    Rule(
        "odd-duration",
        Severity.WARNING,
        "`for` of more than a day, or of less than a second.",
        "Mostly a wrong unit. Ages are kept in memory, and begin anew with the controller.",
        "Write minutes or hours.",
        _odd_times,
    ),
    Rule(
        "many-attempts",
        Severity.WARNING,
        "More than ten remediations of a node a day before people are called.",
        "A node that keeps failing is broken.",
        "Write three.",
        _endless,
    ),
)
