"""What a drain would do now and meet later, without asking the API server to evict anything.

An eviction is the only way to ask about a PodDisruptionBudget, and an eviction is no question:
here each is read instead. All pods that have to leave are judged, also those whose turn comes
later: a later order, one that may run to its end, one that `strict` keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from remediator.act.drain.classify import classify
from remediator.act.drain.plan import Cause, Left, Pass, Past, plan
from remediator.kube.budgets import Budget
from remediator.kube.pods import Pod
from remediator.policy.drain import Drain
from remediator.policy.quantities import format_duration


_LATER: Final = {
    Cause.ORDER: ", when its order comes",
    Cause.COMPLETION: ", if it has not ended by itself",
    Cause.STRICT: ", once nothing is protected",
}


def ahead(
    pods: Sequence[Pod],
    unreadable: Mapping[str, str],
    drain: Drain,
    budgets: Sequence[Budget],
    *,
    now: float,
    since: float,
) -> Pass:
    """Plan a pass, and say of what is left which budgets would hold it.

    ``since``: when the drain began, or would begin; times are epoch seconds. ``evict`` and
    ``delete`` of the answer are the pods that would be asked to leave and would be let.
    """
    said = plan(pods, drain, Past(since=since, unreadable=unreadable), now)
    known = {pod.name: pod for pod in pods}
    deleted = {pod.name for pod in said.delete}
    judged = [
        _judged(one, known[one.pod], drain, budgets)
        if one.pod in known and one.pod not in deleted and one.cause in {Cause.TURN, *_LATER}
        else one
        for one in said.left
    ]
    held = {one.pod for one in judged if one.cause in {Cause.BUDGET, Cause.BUDGETS}}
    said.left = judged
    said.evict = [pod for pod in said.evict if pod.name not in held]
    return said


def _judged(one: Left, pod: Pod, drain: Drain, budgets: Sequence[Budget]) -> Left:
    """Return the pod as held by its budgets, if they would hold it."""
    covering = [budget for budget in budgets if budget.covers(pod)]
    when = _LATER.get(one.cause, "")
    rule = classify(pod, drain).rule
    if rule is not None and rule.delete_after is not None:
        when += f"; deleted past it after {format_duration(rule.delete_after.timeout)}"
    if len(covering) > 1:
        names = ", ".join(budget.name for budget in covering)
        return replace(one, cause=Cause.BUDGETS, why=f"covered by {names}{when}")
    for budget in covering:
        if why := budget.refusal(pod):
            return Left(one.pod, Cause.BUDGET, f"{why}{when}", budget.refusing_since)
    return one
