"""Rules about conditions that nodes have which are well: no fault, and no exception either."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from node_agent.contract import ConditionType
from remediator.policy.lint.rule import Context, Hit, Rule, Severity, disrupts
from remediator.policy.model import RecoverWhen, RemediationPolicy
from remediator.policy.problems import Location
from remediator.policy.when import FILTERS, WELL_WORDS, Clauses, ConditionClause, Group


_OWN: Final = frozenset(str(one) for one in ConditionType)
_TROUBLES: Final = _OWN | {
    *("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"),
    *("KernelDeadlock", "ReadonlyFilesystem", "CorruptDockerOverlay2"),
    *("FrequentKubeletRestart", "FrequentDockerRestart", "FrequentContainerdRestart"),
}
"""Types that name a trouble, and are False on a node that is well: our agent's, the kubelet's,
node-problem-detector's. Of any other type nobody knows, such as of `GpuWorks`."""
ALWAYS_FIRING: Final = frozenset(("Watchdog", "DeadMansSwitch"))
"""Alerts that fire while all is well, so that their absence is noticed."""


class _Asked(NamedTuple):
    """A condition in ``when``, and whether something else has to hold beside it."""

    at: Location
    clause: ConditionClause
    joined: bool


def _healthy_status(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    if not disrupts(policy):
        return
    ends = policy.spec.recover.when is not RecoverWhen.MANUAL
    for index, entry in enumerate(policy.spec.when):
        for at, clause, joined in _conditions(("spec", "when", index), entry, joined=False):
            if not _is_well(clause):
                continue
            if not joined:
                yield Hit(
                    (*at, "status") if clause.status == "False" else at,
                    f"{_said(clause)} on a node that is well: every healthy node matches",
                    _other_status(clause),
                )
            elif ends:
                yield Hit(
                    (*at, "status") if clause.status == "False" else at,
                    f"{_said(clause)} on a node that is well: it counts as one of the faults, "
                    "and the node is given back only when that is over",
                    f"{_other_status(clause)}; or, if such nodes are meant, leave it out, and "
                    f"write beside the fault's own clause cel: {_expression(clause)}",
                )


def _healthy_unless(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    """An entry with an alert or a query beside it says more than that the node is well."""
    if not disrupts(policy):
        return
    known = context.cluster.alertmanagers if context.cluster is not None else ()
    watchdogs = ALWAYS_FIRING.union(one.watchdog.name for one in known if one.watchdog is not None)
    for index, entry in enumerate(policy.spec.unless):
        clause = entry.condition
        well = clause is not None and _is_well(clause)
        fires = entry.alert is not None and entry.alert.name in watchdogs
        if entry.query is not None:
            continue
        if entry.alert is not None and fires and (clause is None or well):
            yield Hit(
                ("spec", "unless", index, "alert", "name"),
                f"{entry.alert.name} fires while all is well: the steps are always held",
                "name an alert that says what must not be the case",
            )
        elif clause is not None and well and entry.alert is None:
            at: Location = ("spec", "unless", index, "condition")
            yield Hit(
                (*at, "status") if clause.status == "False" else at,
                f"{_said(clause)} on a node that is well: on all of them the steps are held, "
                "whatever else their fault is",
                f"{_other_status(clause)}; or, if only nodes are meant on which it is otherwise, "
                "write that into `when`, beside the fault",
            )


def _conditions(at: Location, entry: Clauses, *, joined: bool) -> Iterator[_Asked]:
    """Yield the conditions of an entry, and of those within it.

    Filters join nothing: they name no fault that could end.
    """
    named = [key for key, _ in entry.given if key not in FILTERS]
    joined = joined or len(named) > 1
    if entry.condition is not None:
        yield _Asked((*at, "condition"), entry.condition, joined)
    if isinstance(entry, Group):
        for key, nested in (("all", entry.all or ()), ("any", entry.any or ())):
            inside = joined or (key == "all" and len(nested) > 1)
            for index, one in enumerate(nested):
                yield from _conditions((*at, key, index), one, joined=inside)


def _is_well(clause: ConditionClause) -> bool:
    """Tell whether nodes that are well have what a clause asks for."""
    if clause.status == "False":
        return clause.type in _TROUBLES
    return clause.status == "True" and clause.type.endswith(WELL_WORDS)


def _said(clause: ConditionClause) -> str:
    return f"{clause.type} is {clause.status}"


def _other_status(clause: ConditionClause) -> str:
    if clause.status == "True":
        return 'write status: "False"'
    return f'leave status out: {clause.type} is "True" on a node that is not'


def _expression(clause: ConditionClause) -> str:
    if clause.type == "Ready":
        return "ready"
    name = f'"{clause.type}"'
    return f"'{name} in conditions && conditions[{name}].status == \"{clause.status}\"'"


RULES: Final = (
    Rule(
        "healthy-status",
        Severity.ERROR,
        "A condition that says that a node is well is taken for a fault.",
        '`status` is "True" where nothing else is written, since True is bad in the convention of '
        "node-problem-detector. Ready and its like (EKS' AcceleratedHardwareReady) mean the "
        "reverse. Alone it matches every healthy node; beside another clause it is a fault that "
        "never ends while the node is well.",
        'Write the other status. A filter ("only while it is Ready") is `cel: ready`.',
        _healthy_status,
    ),
    Rule(
        "healthy-unless",
        Severity.WARNING,
        "An `unless` that is no more than a condition which healthy nodes have, or an alert that "
        "always fires.",
        "`unless` holds the steps while it is so: with Ready on every node whose kubelet works, "
        "and so on nearly all with a broken GPU.",
        "Write the status of a node that must be left alone, or ask for the other one in `when`.",
        _healthy_unless,
    ),
)
