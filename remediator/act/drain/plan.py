"""Stage 2: from the pods, and what was tried so far, to the next requests.

One pass says everything: what to ask for now, what is waited for, what blocks and why,
and whether the drain is done. It remembers nothing; after a restart the next pass finds
what the earlier process did in the pods themselves.

Invariants:
- What is asked for are pods that the rules let go, and no pod is asked for twice at a time.
- A pod that is blocked holds up nobody else, but for ``strict`` and for later orders.
- Done means that no pod is left that has to leave. Pods that are passed over because the
  kubelet does not answer are said, and are not "drained".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from remediator.act.drain.classify import Fate, Verdict, classify
from remediator.act.drain.replies import Attempt, Reply
from remediator.kube.pods import Pod
from remediator.policy.drain import Drain, Protection


class Cause(StrEnum):
    """Why a pod is still there. A bounded set: it labels a metric."""

    BUDGET = "PodDisruptionBudget"
    BUDGETS = "MultiplePodDisruptionBudgets"
    EMPTY_DIR = "EmptyDir"
    UNMANAGED = "Unmanaged"
    ANNOTATED = "Annotated"
    REFUSED = "Refused"
    NAMESPACE = "NamespaceTerminating"
    THROTTLED = "Throttled"
    TROUBLE = "ServerTrouble"
    UNREADABLE = "Unreadable"
    COMPLETION = "WaitingForCompletion"
    TERMINATING = "Terminating"
    ORDER = "WaitingForEarlierPods"
    STRICT = "Strict"
    TURN = "BeingEvicted"


STUCK: Final = frozenset(
    {Cause.BUDGET, Cause.BUDGETS, Cause.EMPTY_DIR, Cause.UNMANAGED, Cause.ANNOTATED}
    | {Cause.REFUSED, Cause.UNREADABLE, Cause.STRICT}
)
"""Causes that do not go away by waiting alone, as far as we can tell: *blockers*."""
_PROTECTIONS: Final = {
    Protection.EMPTY_DIR: Cause.EMPTY_DIR,
    Protection.UNMANAGED: Cause.UNMANAGED,
    Protection.ANNOTATED: Cause.ANNOTATED,
}
_REPLIES: Final = {
    Reply.BUDGET: Cause.BUDGET,
    Reply.BUDGETS: Cause.BUDGETS,
    Reply.REFUSED: Cause.REFUSED,
    Reply.NAMESPACE: Cause.NAMESPACE,
    Reply.THROTTLED: Cause.THROTTLED,
    Reply.TROUBLE: Cause.TROUBLE,
}


@dataclass(frozen=True, slots=True)
class Left:
    """A pod that is still there, and why. ``since``: since when we have seen it be so, if known."""

    pod: str
    cause: Cause
    why: str = ""
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """What is known from before this pass; times are of one clock.

    ``since``: when the drain began. ``attempts``: by UID. ``terminating``: by UID, when we
    first saw the pod terminate. ``kubelet_gone``: the node is not Ready for so long that its
    kubelet ends no pods any more. ``unreadable``: pods that cannot be read, and why.
    """

    since: float
    attempts: Mapping[str, Attempt] = field(default_factory=dict)
    terminating: Mapping[str, float] = field(default_factory=dict)
    kubelet_gone: bool = False
    unreadable: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Pass:
    """What one pass says. ``next_look``: when the answer can change by time alone."""

    evict: list[Pod] = field(default_factory=list)
    delete: list[Pod] = field(default_factory=list)
    force: list[Pod] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)
    next_look: float | None = None

    @property
    def done(self) -> bool:
        """Tell whether no pod is left that has to leave."""
        return not self.left

    def look_at(self, when: float | None) -> None:
        """Look again then, or earlier."""
        if when is not None and (self.next_look is None or when < self.next_look):
            self.next_look = when


def plan(pods: Iterable[Pod], drain: Drain, past: Past, now: float) -> Pass:
    """Say what is to be done now about the pods of one node."""
    said = Pass()
    judged = [(pod, classify(pod, drain)) for pod in sorted(pods, key=lambda one: one.name)]
    leaving = []
    for pod, verdict in judged:
        if verdict.fate is Fate.SKIP:
            said.skipped[pod.name] = verdict.why
        elif verdict.fate is not Fate.TERMINATING or not _end(said, pod, drain, past, now):
            leaving.append((pod, verdict))
    said.left += [Left(name, Cause.UNREADABLE, why) for name, why in past.unreadable.items()]
    turn = min((verdict.order for _, verdict in leaving), default=0)
    strict = drain.strict and any(verdict.fate is Fate.BLOCKED for _, verdict in leaving)
    for pod, verdict in leaving:
        _leave(said, pod, verdict, turn=turn, strict=strict, past=past, now=now)
    return said


def _end(said: Pass, pod: Pod, drain: Drain, past: Past, now: float) -> bool:
    """Tell whether a terminating pod need not be waited for: nobody ends it any more."""
    if not past.kubelet_gone:
        return False
    since = past.terminating.get(pod.uid, now)
    force = drain.force_delete
    if force is not None and (force.stateful_sets or not _of_stateful_set(pod)):
        tried = past.attempts.get(pod.uid)
        due = max(since + force.after, tried.next_at if tried and tried.deletion else 0.0)
        said.look_at(due)
        if now >= due:
            said.force.append(pod)
        return False
    due = since + pod.deletion_grace + drain.skip_terminating_after
    said.look_at(due if now < due else None)
    if now >= due:
        said.passed_over.append(pod.name)
    return now >= due


def _leave(
    said: Pass, pod: Pod, verdict: Verdict, *, turn: int, strict: bool, past: Past, now: float
) -> None:
    """Say what is done about a pod that has to leave, or what it waits for."""
    if verdict.fate is Fate.TERMINATING:
        since = past.terminating.get(pod.uid, now)
        said.left.append(Left(pod.name, Cause.TERMINATING, verdict.why, since))
        return
    rule = verdict.rule
    if rule is not None and rule.wait_completion is not None and not pod.completed:
        limit = rule.wait_completion.max_wait
        if limit is None or now < past.since + limit:
            said.look_at(None if limit is None else past.since + limit)
            said.left.append(Left(pod.name, Cause.COMPLETION, "it may run to its end"))
            return
    if verdict.protection is not None:
        cause = _PROTECTIONS[verdict.protection]
        said.left.append(Left(pod.name, cause, verdict.why, past.since))
        return
    if verdict.order > turn:
        said.left.append(Left(pod.name, Cause.ORDER, f"its order is {verdict.order}"))
        return
    if strict:
        said.left.append(Left(pod.name, Cause.STRICT, "strict: another pod is protected"))
        return
    _ask(said, pod, verdict, past, now)


def _ask(said: Pass, pod: Pod, verdict: Verdict, past: Past, now: float) -> None:
    """Ask for a pod's eviction or deletion, if it is time to."""
    tried = past.attempts.get(pod.uid)
    cause = Cause.TURN if tried is None else _REPLIES.get(tried.reply, Cause.TURN)
    since = tried.since if tried is not None and cause in STUCK else None
    said.left.append(Left(pod.name, cause, tried.message if tried is not None else "", since))
    rule = verdict.rule
    if rule is not None and rule.delete_after is not None:
        due = past.since + rule.delete_after.timeout
        said.look_at(due if now < due else None)
        if now >= due:
            waits = tried is not None and tried.deletion
            _when_due(said, said.delete, pod, _next(past, pod) if waits else now, now)
            return
    _when_due(said, said.evict, pod, _next(past, pod), now)


def _when_due(said: Pass, requests: list[Pod], pod: Pod, due: float, now: float) -> None:
    if now >= due:
        requests.append(pod)
    else:
        said.look_at(due)


def _next(past: Past, pod: Pod) -> float:
    tried = past.attempts.get(pod.uid)
    return tried.next_at if tried is not None else 0.0


def _of_stateful_set(pod: Pod) -> bool:
    return pod.owner is not None and pod.owner.kind == "StatefulSet"
