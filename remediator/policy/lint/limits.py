"""Rules about limits and times: guards that guard nothing, times that mean nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from remediator.policy.cluster import ClusterSpec
from remediator.policy.lint.rule import Context, Hit, Rule, Severity, disrupts, entries
from remediator.policy.model import RATED, Breaker, RecoverWhen, RemediationPolicy
from remediator.policy.problems import Location
from remediator.policy.quantities import Amount, format_amount, format_duration, format_rate
from remediator.policy.templates import ReadTemplate


MOST: Final = 50
"""Percent; a limit above it is none: it binds when most of the nodes are gone already."""
MOST_IN_NUMBERS: Final = 1_000
"""Nodes; a pool of so many GPU nodes is rare, and who has one writes a share."""
SHORTEST_WINDOW: Final = 60.0
"""Seconds; agents, scrapes and polls do not bring a storm's nodes at one time."""
MOST_NODES: Final = 100
"""Nodes that a storm takes unheeded are rather fewer; big fleets have the percentage."""
QUICK_RECOVERY: Final = 60.0
"""Seconds; below that a signal that comes and goes takes the node out and back all day."""
LONG: Final = 86400.0
MANY_ATTEMPTS: Final = 10


def _unbounded(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    own = policy.spec.limits.budget
    if own is None or not disrupts(policy) or not _is_most(own.max_unavailable):
        return
    cluster = context.cluster
    others = cluster.budgets if cluster is not None else ()
    if any(not _is_most(one.max_unavailable) for one in others):
        return  # all must allow, and one of them binds
    yield Hit(
        ("spec", "limits", "budget", "maxUnavailable"),
        f"{_share(own.max_unavailable)} may be taken out of service at once: it takes the "
        "default's place",
        "write 10%, or leave the budget out for the default (1 per pool, 10% of the cluster)",
    )


def _unbounded_config(cluster: ClusterSpec, _files: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    if cluster.budgets and all(_is_most(one.max_unavailable) for one in cluster.budgets):
        yield Hit(
            ("spec", "budgets"),
            f"every budget is above {MOST}% or {MOST_IN_NUMBERS} nodes: most nodes may be taken "
            "out of service at once",
            "write a share, or leave budgets out for the default (1 per pool, 10% of the cluster)",
        )


def _idle_limit(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    """All must allow: one that is wider than RemediatorConfig's of the same kind widens nothing."""
    cluster, limits = context.cluster, policy.spec.limits
    if cluster is None or not disrupts(policy):
        return
    own = limits.budget
    for one in cluster.budgets:
        if own is None:
            break
        same = (one.per, one.max_unavailable.percent) == (own.per, own.max_unavailable.percent)
        if same and own.max_unavailable.value > one.max_unavailable.value:
            given = format_amount(one.max_unavailable)
            yield Hit(
                ("spec", "limits", "budget", "maxUnavailable"),
                f"RemediatorConfig's {given} per {one.per} holds, too: this one never binds",
                f"write less than {given}, or leave it out; to allow more, write more there",
            )
    for action in RATED:
        rate, most = limits.rate.of(action), cluster.rates.of(action)
        if rate is None or most is None or rate == most:
            continue
        if rate.starts >= most.starts and rate.seconds <= most.seconds:
            given = format_rate(most)
            yield Hit(
                ("spec", "limits", "rate", action),
                f"RemediatorConfig's {given} holds, too: this one never binds",
                f"write fewer than {given}, or leave it out; to allow more, write more there",
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
    if breaker is not None and disrupts(policy):
        yield from _deaf(breaker, ("spec", "limits", "breaker"))


def _deaf_config(cluster: ClusterSpec, _files: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    yield from _deaf(cluster.breaker, ("spec", "breaker"))
    yield from _deaf_share(cluster.sanity.percent, ("spec", "sanity", "percent"))
    yield from _deaf_number(cluster.sanity.min_agents, ("spec", "sanity", "minAgents"), usual=2)


def _deaf(breaker: Breaker, at: Location) -> Iterator[Hit]:
    yield from _deaf_share(breaker.percent, (*at, "percent"))
    yield from _deaf_number(breaker.min_nodes, (*at, "minNodes"), usual=3)
    if breaker.window < SHORTEST_WINDOW:
        yield Hit(
            (*at, "window"),
            f"nodes of one storm are not all seen within {format_duration(breaker.window)}",
            "write 5m, or leave it out",
        )


def _deaf_share(percent: int, at: Location) -> Iterator[Hit]:
    if percent > MOST:
        why = f"up to {percent}% of the nodes may be wrong before the signal is doubted"
        yield Hit(at, why, "write 20, or leave it out")


def _deaf_number(nodes: int, at: Location, *, usual: int) -> Iterator[Hit]:
    if nodes > MOST_NODES:
        why = f"so long as {nodes} nodes or fewer are wrong, the signal is never doubted"
        yield Hit(at, why, f"write {usual}, or leave it out: the percentage grows with the fleet")


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


def _is_most(amount: Amount) -> bool:
    return amount.value > (MOST if amount.percent else MOST_IN_NUMBERS)


def _share(amount: Amount) -> str:
    return f"{amount.value}% of the nodes" if amount.percent else f"{amount.value} nodes"


RULES: Final = (
    Rule(
        "unbounded-budget",
        Severity.WARNING,
        "A budget of more than half of the nodes, or of more than 1,000, and no other that binds.",
        "A budget of its own takes the place of the default one. A wrong signal then takes every "
        "node; only rate and breaker are left.",
        "Write a share, or leave the budget out.",
        _unbounded,
        _unbounded_config,
    ),
    Rule(
        "idle-limit",
        Severity.WARNING,
        "A budget or a rate of a policy that is wider than RemediatorConfig's. Asked only with "
        "`--config`.",
        "All of them must allow: its author believes that the policy may do more.",
        "Write less than there, or leave it out.",
        _idle_limit,
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
        "A breaker, or a `sanity`, that hardly ever doubts: above 50 % or 100 nodes, or a breaker "
        "that counts less than a minute.",
        "When a driver's or exporter's update makes every node look bad, it is what stops it.",
        "Leave out what has a default.",
        _deaf_breaker,
        _deaf_config,
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
