"""Rules about ``when``: what can never match, never clear, or matches the wrong thing.

Types and reasons of conditions are in ``reasons``, PromQL in ``queries``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from node_agent.contract import ConditionType, Reason
from node_agent.contract import Severity as FaultSeverity
from remediator.policy.lint.healthy import ALWAYS_FIRING
from remediator.policy.lint.held import requires
from remediator.policy.lint.queries import clears_what_it_finds
from remediator.policy.lint.rule import (
    Context,
    Hit,
    Rule,
    Severity,
    codes_of,
    disrupts,
    entries,
)
from remediator.policy.model import RecoverWhen, RemediationPolicy
from remediator.policy.quantities import format_duration
from remediator.policy.sources import ALERT_NODE_LABELS, SCRAPER_JOBS
from remediator.policy.when import QueryClause


APPLICATION_CODES: Final = frozenset((13, 31, 43, 45, 68))
"""NVIDIA's advice is to restart the application, or to do nothing."""
DECODED_CODES: Final = frozenset(range(144, 151))
"""Most reports of these are harmless; the agent decodes them and raises a condition."""
NODELESS_ALERTS: Final = frozenset((*ALWAYS_FIRING, "InfoInhibitor"))
OWN_ALERT: Final = "GpuRemediation"
"""What a channel of kind `alertmanager` sends: it is about what we do, not about a fault."""
_BROAD: Final = frozenset(("severity", "priority", "level", "cluster", "env", "environment"))
"""Labels that alerts about quite different things have in common."""
EPISODE_GAP: Final = 30.0
"""Seconds; the agent takes lines no further apart for one episode."""
REMEMBERED: Final = 86400.0
"""Seconds; so long the agent knows the episodes of what has cleared."""
_OWN: Final = tuple(str(one) for one in ConditionType)
_REASONS: Final = tuple(str(one) for one in Reason)
_XID_REASON: Final = re.compile(r"S?Xid[0-9]+")


def _application_error(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    if not disrupts(policy):
        return
    for at, entry in entries(policy):
        codes = sorted(codes_of(entry) & APPLICATION_CODES)
        if codes and entry.count is None:
            listed = ", ".join(map(str, codes))
            yield Hit(
                (*at, "xid", "codes"),
                f"Xid {listed}: an application's error takes the node out of service",
                "leave these codes to a policy that only tells, or count them: "
                f"count: {{xid: [{listed}], atLeast: 10, within: 6h}}",
            )
        for key, clause in (("xid", entry.xid), ("sxid", entry.sxid)):
            if clause is not None and clause.min_severity is FaultSeverity.INFO:
                yield Hit(
                    (*at, key, "minSeverity"),
                    "info: every application's error takes the node out of service"
                    if key == "xid"
                    else "info: every SXid that is no trouble takes the node out of service",
                    "write minSeverity: warning",
                )


def _undecoded(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    if not disrupts(policy):
        return
    for at, entry in entries(policy):
        codes = sorted(codes_of(entry) & DECODED_CODES)
        if codes:
            yield Hit(
                (*at, "xid" if entry.xid is not None else "count"),
                f"Xid {', '.join(map(str, codes))} by code alone: most of them are harmless",
                "use condition: {type: GPUInterconnectDegraded, reasons: [NVLinkDown]}",
            )


def _alert_of_no_node(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for at, entry in entries(policy):
        clause = entry.alert
        if clause is None:
            continue
        if clause.name in NODELESS_ALERTS:
            yield Hit(
                (*at, "alert", "name"),
                f"alert {clause.name} names no node",
                "name an alert about a node; as it always fires, `unless` is no place for it"
                if clause.name in ALWAYS_FIRING
                else "write it under `unless`, or name an alert about a node",
            )
        elif clause.labels.get("job") in SCRAPER_JOBS and not (
            set(clause.labels) & set(ALERT_NODE_LABELS)
        ):
            yield Hit(
                (*at, "alert", "labels"),
                f"an alert on {clause.labels['job']}'s own target carries that program's node",
                "have the rule keep the label `node` of the metric (honor_labels, or "
                "`exported_node`), and leave `job` out here",
            )


def _own_alert(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for at, entry in entries(policy):
        if entry.alert is not None and entry.alert.name == OWN_ALERT:
            yield Hit(
                (*at, "alert", "name"),
                f"{OWN_ALERT} is what gpu-remediator sends of its own sessions",
                "name the fault: the alert or the condition that says what is wrong",
            )


def _any_alert(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for at, entry in entries(policy) if disrupts(policy) else ():
        clause = entry.alert
        if clause is not None and not clause.name and set(clause.labels) <= _BROAD:
            shown = ", ".join(f"{key}: {value}" for key, value in clause.labels.items())
            yield Hit(
                (*at, "alert"),
                f"every alert with {shown} counts that names a node, a full disk's too",
                "write name: ..., one entry for each alert that is meant",
            )


def _alert_of_one_node(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for at, entry in entries(policy):
        named = sorted(set(entry.alert.labels) & set(ALERT_NODE_LABELS)) if entry.alert else []
        if entry.alert is not None and named:
            yield Hit(
                (*at, "alert", "labels", named[0]),
                f"it can only match the one node {entry.alert.labels[named[0]]}",
                "leave the label out: the alert names its node; nodes.selector selects nodes",
            )


def _never_clears(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    """Only a policy that wants to end by itself is asked."""
    if policy.spec.recover.when is not RecoverWhen.CLEARED:
        return
    for at, entry in entries(policy):
        if isinstance(entry.query, QueryClause) and entry.query.cleared_by is None:
            yield Hit(
                (*at, "query"),
                "recover.when is cleared, and nothing proves that this query's fault has cleared",
                "add clearedBy: <a query that names well nodes>, or recover: {when: manual}",
            )
        elif isinstance(entry.query, QueryClause) and clears_what_it_finds(
            entry.query.promql, entry.query.cleared_by or ""
        ):
            yield Hit(
                (*at, "query", "clearedBy"),
                "it names the nodes that the query names, and so none that is well alone",
                "write a query that names well nodes: METRIC == 0, or the other side of a limit",
            )


def _odd_count(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for at, entry in entries(policy):
        count = entry.count
        if count is None:
            continue
        alone = count.per == "gpu" and len(count.xid or count.sxid) == 1
        apart = (count.at_least - 1) * EPISODE_GAP
        if alone and count.within < apart:
            yield Hit(
                (*at, "count", "within"),
                f"{count.at_least} episodes of one code on one GPU take more than "
                f"{format_duration(apart)}: lines that are 30s apart or less are one episode",
                "write minutes or hours",
            )
        elif count.within > REMEMBERED:
            yield Hit(
                (*at, "count", "within"),
                f"of what cleared meanwhile the agent remembers a day, not "
                f"{format_duration(count.within)}",
                "write 24h or less",
            )


def _repeated(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    seen: dict[str, int] = {}
    for index, one in enumerate(policy.spec.when):
        text = one.model_dump_json()
        wider = _wider(policy, index)
        if text in seen:
            yield Hit(
                ("spec", "when", index),
                f"the same entry as number {seen[text] + 1}",
                "remove one of them",
            )
        elif wider is not None:
            yield Hit(
                ("spec", "when", index),
                f"it adds nothing: number {wider + 1} matches whenever it does",
                f"remove it, or number {wider + 1} if that was to be narrower",
            )
        seen.setdefault(text, index)


def _wider(policy: RemediationPolicy, index: int) -> int | None:
    """Return the entry of one clause that another one, with more in it, needs all the same."""
    one = policy.spec.when[index]
    worse = one.condition.severity if one.condition is not None else None
    for other, entry in enumerate(policy.spec.when):
        if other == index or len(entry.given) != 1 or entry == one or entry.all or entry.any:
            continue
        ((key, clause),) = entry.given
        alike = key != "condition" or clause.severity == worse
        if alike and requires(one, clause):
            return other
    return None


RULES: Final = (
    Rule(
        "odd-count",
        Severity.WARNING,
        "A count within a time that is too short for its episodes, or longer than they are known.",
        "Episodes of one code on a GPU are more than 30 s apart; what has cleared is known for a "
        "day.",
        "Write a time between minutes and 24h.",
        _odd_count,
    ),
    Rule(
        "application-error",
        Severity.WARNING,
        "An application's error takes the node out of service.",
        "Xid 13, 31, 43, 45 and 68 are thousands a day on a busy cluster, and nearly always a bug "
        "of the job; a node lost for each of them soon is all nodes.",
        "Tell only, or count episodes on one GPU.",
        _application_error,
    ),
    Rule(
        "undecoded-code",
        Severity.WARNING,
        "Xids 144 to 150 are matched by their code alone.",
        "Most reports are harmless by their status word, which only the agent has decoded.",
        "Match the condition GPUInterconnectDegraded.",
        _undecoded,
    ),
    Rule(
        "alert-names-no-node",
        Severity.ERROR,
        "An alert that cannot name the node that is meant.",
        "An alert resolves to a node by its labels. Watchdogs carry none, and alerts on "
        "kube-state-metrics' own target carry the node of that program.",
        "Name an alert about a node; cluster-wide ones belong into `unless`.",
        _alert_of_no_node,
    ),
    Rule(
        "own-alert",
        Severity.ERROR,
        "An alert clause that asks for `GpuRemediation`.",
        "gpu-remediator sends it for each session: a policy would act on what it did itself.",
        "Name the fault instead.",
        _own_alert,
    ),
    Rule(
        "any-alert",
        Severity.WARNING,
        "An alert clause without a name, by labels that all kinds of alerts have.",
        "With `severity: critical` alone each critical alert takes a node out of service, whatever "
        "it is about.",
        "Name the alerts that are meant.",
        _any_alert,
    ),
    Rule(
        "alert-names-one-node",
        Severity.WARNING,
        "An alert clause that fixes the label which names the node.",
        "It can match that node only; the alert says itself which node it is about.",
        "Leave the label out.",
        _alert_of_one_node,
    ),
    Rule(
        "never-clears",
        Severity.WARNING,
        "`recover.when: cleared`, and nothing could ever prove that the fault has cleared.",
        "Absence proves nothing, so the node stays out of service until somebody notices.",
        "Say what proves it (`clearedBy`), or say `recover: {when: manual}`.",
        _never_clears,
    ),
    Rule(
        "repeated-entry",
        Severity.WARNING,
        "Two entries of `when` are the same, or one matches whenever the other does.",
        "Any entry is enough: the narrower one, as a count beside the code itself, is for nothing.",
        "Remove one.",
        _repeated,
    ),
)
