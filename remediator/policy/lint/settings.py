"""Rules about RemediatorConfig alone: settings of the whole cluster that guard or tell nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from remediator.policy.cluster import ClusterSpec
from remediator.policy.lint.rule import Hit, Rule, Severity
from remediator.policy.model import RATED, ClusterRates
from remediator.policy.quantities import Rate, format_duration, format_rate
from remediator.policy.templates import ReadTemplate


NODE_NAME: Final = "kubernetes.io/hostname"
SHORTEST_SETTLING: Final = 30.0
"""Seconds; in less, sources have not been asked twice."""
LONGEST_SETTLING: Final = 3600.0
"""Seconds; each update of the controller is a new leader, and nothing is remedied meanwhile."""
MOST_STARTS: Final = 100
"""Starts; a storm takes no more nodes than that of most pools, so the rate never holds one."""
MOST_PER_SECOND: Final = MOST_STARTS / 600.0
"""Starts a second; ten times the most that a default allows."""
LATEST_WORD: Final = 86400.0
"""Seconds; people who look once a day have seen the held node before they are told."""
SHORTEST_RECORD: Final = 3600.0
"""Seconds; who is called needs longer than that to look."""


def _everywhere(cluster: ClusterSpec, _files: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    if not cluster.gpu_nodes.match_labels and not cluster.gpu_nodes.match_expressions:
        yield Hit(
            ("spec", "gpuNodes"),
            "every node is taken for a GPU node: percentages count those without a GPU, too",
            'write matchLabels: {nvidia.com/gpu.present: "true"}, or leave it out',
        )


def _lone(cluster: ClusterSpec, _files: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    keys = [(("spec", "pools", "labels", at), key) for at, key in enumerate(cluster.pools.labels)]
    for at, key in (*keys, (("spec", "zones", "label"), cluster.zones.label)):
        if key == NODE_NAME:
            yield Hit(
                at,
                f"{key} is another on each node: every node is a group of its own, and no budget "
                "or rate of a group ever binds",
                "write a label that nodes share",
            )


def _hasty(cluster: ClusterSpec, _files: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    if cluster.settling < SHORTEST_SETTLING:
        yield Hit(
            ("spec", "settling"),
            f"a new leader acts after {format_duration(cluster.settling)}, on first impressions",
            "write 1m, or leave it out",
        )


def _slow(cluster: ClusterSpec, _files: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    if cluster.settling > LONGEST_SETTLING:
        yield Hit(
            ("spec", "settling"),
            f"after each start of the controller nothing is remedied for "
            f"{format_duration(cluster.settling)}",
            "write 1m, or leave it out; mode: DryRun if nothing is to be done at all",
        )


def _loose(cluster: ClusterSpec, _files: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    usual = ClusterRates()
    for action in RATED:
        rate, default = cluster.rates.of(action), usual.of(action)
        if rate is not None and default is not None and _never_binds(rate):
            yield Hit(
                ("spec", "rates", action),
                f"{format_rate(rate)} is more than a storm of faults brings: it never holds "
                "anything",
                f"write a few starts in some minutes, or leave it out for {format_rate(default)}",
            )


def _never_binds(rate: Rate) -> bool:
    return rate.starts > MOST_STARTS or rate.starts > MOST_PER_SECOND * rate.seconds


def _late_word(cluster: ClusterSpec, _files: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    if cluster.tell_held_after > LATEST_WORD:
        yield Hit(
            ("spec", "tellHeldAfter"),
            f"a step may be held for {format_duration(cluster.tell_held_after)} before anybody "
            "is told",
            "write 1h, or leave it out",
        )


def _brief(cluster: ClusterSpec, _files: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    kept = cluster.remediations
    if kept.keep and kept.max_age < SHORTEST_RECORD:
        yield Hit(
            ("spec", "remediations", "maxAge"),
            f"a record is deleted {format_duration(kept.max_age)} after its session has ended: "
            "`history` has nothing to show",
            "write 90d, or leave it out; keep: 0 if none are to be written",
        )


RULES: Final = (
    Rule(
        "every-node",
        Severity.WARNING,
        "`gpuNodes` that selects every node. Asked of RemediatorConfig.",
        "Budgets and breakers in percent are of these nodes: in a cluster of 1,000 nodes, 50 of "
        "them with GPUs, 10 % is all of the 50, and twice over.",
        "Select the nodes that have GPUs. If all have, silence it.",
        of_config=_everywhere,
    ),
    Rule(
        "lone-groups",
        Severity.WARNING,
        "Pools or zones by a label that is another on each node. Asked of RemediatorConfig.",
        "A group of one node always has its place left: one pool may go at once, node by node.",
        "Write a label that nodes share.",
        of_config=_lone,
    ),
    Rule(
        "short-settling",
        Severity.WARNING,
        "A `settling` of less than half a minute. Asked of RemediatorConfig.",
        "A leader that has just begun has seen nothing twice: whom sources and agents speak of, "
        "and what people did meanwhile, it is still learning.",
        "Write 1m.",
        of_config=_hasty,
    ),
    Rule(
        "long-settling",
        Severity.WARNING,
        "A `settling` of more than an hour. Asked of RemediatorConfig.",
        "Each start of the controller, and each change of the leader, begins it anew: with a "
        "restart a day, a day's `settling` is for ever.",
        "Write 1m.",
        of_config=_slow,
    ),
    Rule(
        "loose-rate",
        Severity.WARNING,
        "A rate of more than 100 starts, or of more than 100 in ten minutes. Asked of "
        "RemediatorConfig.",
        "A rate gives people time to see that a remedy is wrong before all nodes had it.",
        "Leave out what has a default.",
        of_config=_loose,
    ),
    Rule(
        "late-word",
        Severity.WARNING,
        "A `tellHeldAfter` of more than a day. Asked of RemediatorConfig.",
        "A held step is a node with a fault that nobody remedies: people must hear of it.",
        "Write an hour.",
        of_config=_late_word,
    ),
    Rule(
        "brief-records",
        Severity.WARNING,
        "A `remediations.maxAge` of less than an hour. Asked of RemediatorConfig.",
        "Records are for those who look later what was done, and why.",
        "Write days. To have no records, say `keep: 0`.",
        of_config=_brief,
    ),
)
