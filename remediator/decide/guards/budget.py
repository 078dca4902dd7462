"""Budget: how many nodes may be unavailable at once, whoever made them so.

All budgets that apply must allow. A node that has been unavailable for five minutes is
already counted, and a cordon of it takes no further place. A drain or a job is charged for
itself: it takes away what still runs there, so a budget that others have overdrawn holds it.
"""

from __future__ import annotations

from remediator.decide.candidate import Candidate
from remediator.decide.decision import Hold
from remediator.decide.ledger import CORDON, FREE_AFTER, Entry, Ledger, Scope, escalated
from remediator.policy.cluster import DEFAULT_BUDGETS
from remediator.policy.model import Budget, RemediationPolicy
from remediator.policy.quantities import format_amount


def budget(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:
    """Hold while one more unavailable node would exceed a budget of the node's groups."""
    entry = ledger.nodes[candidate.facts.uid]
    if candidate.action == CORDON and (entry.reserved or entry.ours or is_free(entry, now)):
        return None
    for one in budgets_of(candidate.policy, ledger):
        group = next(group for group in entry.scopes if group.per == one.per)
        used = ledger.unavailable[group] - entry.counted
        limit = one.max_unavailable.of(ledger.total[group])
        if used + 1 > limit:
            ledger.wait(candidate.facts.name)
            again = _free_at(entry) if candidate.action == CORDON else None
            why = _why(ledger, group, one, used=used, limit=limit)
            return Hold(candidate.policy.name, "budget", why, again)
    return None


def is_free(entry: Entry, now: float) -> bool:
    """Tell whether a node has been unavailable for long enough to cost nothing more."""
    since = entry.unavailable_since
    return entry.unavailable and since is not None and now - since >= FREE_AFTER


def _free_at(entry: Entry) -> float | None:
    since = entry.unavailable_since if entry.unavailable else None
    return None if since is None else since + FREE_AFTER


def budgets_of(policy: RemediationPolicy, ledger: Ledger) -> tuple[Budget, ...]:
    """Return the budgets that apply: the cluster's and the policy's, or the default."""
    own = policy.spec.limits.budget
    configured = ledger.cluster.budgets + ((own,) if own is not None else ())
    return configured or DEFAULT_BUDGETS


def _why(ledger: Ledger, group: Scope, one: Budget, *, used: int, limit: int) -> str:
    blocking = escalated(ledger.used_by(group))
    named = f"; escalated and waiting for people: {', '.join(blocking[:3])}" if blocking else ""
    return (
        f"{used} of {limit} nodes that may be unavailable in {group} are "
        f"(maxUnavailable: {format_amount(one.max_unavailable)}){named}"
    )
