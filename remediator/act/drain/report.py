"""How far a drain is and what holds it, for people: one line, or all of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from remediator.act.drain.plan import STUCK, Cause, Left
from remediator.policy.quantities import format_duration


NAMED: Final = 2
"""Pods named per cause in the one line; the rest is counted."""

_WORDS: Final = {
    Cause.BUDGET: "held by a PodDisruptionBudget",
    Cause.BUDGETS: "held by more than one PodDisruptionBudget",
    Cause.EMPTY_DIR: "with data in an emptyDir",
    Cause.UNMANAGED: "without a controller",
    Cause.ANNOTATED: "whose owner forbids it",
    Cause.REFUSED: "whose eviction is refused",
    Cause.NAMESPACE: "in a namespace that is being deleted",
    Cause.THROTTLED: "waiting: the API server throttles",
    Cause.TROUBLE: "waiting: the API server is in trouble",
    Cause.UNREADABLE: "that cannot be read",
    Cause.COMPLETION: "running to their end",
    Cause.TERMINATING: "terminating",
    Cause.ORDER: "waiting for earlier pods",
    Cause.STRICT: "waiting for the protected ones (strict)",
    Cause.TURN: "being evicted",
}
_ADVICE: Final = {
    Cause.BUDGET: "the budget's owner can scale up or relax it; a pod rule with `deleteAfter`"
    " deletes past it",
    Cause.BUDGETS: "the API server evicts no pod that two budgets cover: let one of them select"
    " other pods",
    Cause.EMPTY_DIR: "if the data may go, `despite: [emptyDir]`",
    Cause.UNMANAGED: "if the pod may go for good, `despite: [unmanaged]`",
    Cause.ANNOTATED: "ask its owner, or `despite: [annotated]`",
    Cause.STRICT: "`strict` evicts nothing while a protection blocks any pod",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a drain is.

    ``total``: pods that had to leave, as far as we have seen; ``gone``: those of them that
    are gone; ``left``: the others, each with its cause. ``skipped``: pods that stay, and why.
    ``passed_over``: terminating on a node whose kubelet does not answer. ``trouble``: why
    the pods cannot be seen, if they cannot.
    """

    total: int = 0
    gone: int = 0
    left: tuple[Left, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()
    trouble: str = ""

    @property
    def blockers(self) -> dict[Cause, tuple[Left, ...]]:
        """Return what does not go away by waiting alone, by cause."""
        return {cause: these for cause, these in by_cause(self.left) if cause in STUCK}


def by_cause(left: Iterable[Left]) -> list[tuple[Cause, tuple[Left, ...]]]:
    """Group pods by cause, blockers first; of one cause who has waited longest comes first."""
    groups: dict[Cause, list[Left]] = {}
    for one in left:
        groups.setdefault(one.cause, []).append(one)
    for these in groups.values():
        these.sort(key=lambda one: (one.since is None, one.since or 0.0))
    order = list(Cause)
    ranked = sorted(groups, key=lambda cause: (cause not in STUCK, order.index(cause)))
    return [(cause, tuple(groups[cause])) for cause in ranked]


def line(progress: Progress, now: float) -> str:
    """Say it in one line, blockers first."""
    if progress.trouble:
        return f"the pods cannot be seen: {progress.trouble}"
    parts = [f"{progress.gone} of {progress.total} pods gone"]
    for cause, these in by_cause(progress.left):
        parts.append(f"{len(these)} {_WORDS[cause]}: {_names(these, now)}")
    if progress.passed_over:
        parts.append(f"{len(progress.passed_over)} passed over: terminating, node not ready")
    return "; ".join(parts)


def lines(progress: Progress, now: float) -> Iterator[str]:
    """Say all of it: each cause, what helps, and each pod with the server's own words."""
    yield f"{progress.gone} of {progress.total} pods gone, {len(progress.skipped)} stay"
    if progress.trouble:
        yield f"the pods cannot be seen: {progress.trouble}"
    for cause, these in by_cause(progress.left):
        yield f"{len(these)} {_WORDS[cause]}:"
        for one in these:
            yield f"  {one.pod}{aged(one, now)}{f': {one.why}' if one.why else ''}"
        if cause in _ADVICE:
            yield f"  = {_ADVICE[cause]}"
    for pod in progress.passed_over:
        yield f"passed over: {pod} (terminating, and the node is not ready)"


def trial(left: Sequence[Left], now: float) -> str:
    """Say in one line what became of evictions that the server was only asked about."""
    groups = by_cause(left)
    going = sum(len(these) for cause, these in groups if cause is Cause.TURN)
    parts = [f"{going} of {len(left)} pods would be evicted"]
    for cause, these in groups:
        if cause is not Cause.TURN:
            parts.append(f"{len(these)} {_WORDS[cause]}: {_names(these, now)}")
    return "; ".join(parts)


def ending(progress: Progress) -> str:
    """Say how a finished drain ended, for the record."""
    said = f"{progress.gone} pods gone, {len(progress.skipped)} left in place"
    if progress.passed_over:
        names = ", ".join(progress.passed_over[:NAMED])
        said += (
            f"; {len(progress.passed_over)} passed over, still terminating on a node that is"
            f" not ready ({names})"
        )
    return said


def _names(these: Sequence[Left], now: float) -> str:
    named = [
        f"{one.pod}{aged(one, now)}{f' ({one.why})' if one.why and at == 0 else ''}"
        for at, one in enumerate(these[:NAMED])
    ]
    more = len(these) - NAMED
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def aged(one: Left, now: float) -> str:
    """Say since when it is so, in tens of seconds: a line that changes each second is noise."""
    if one.since is None:
        return ""
    seconds = int(max(0.0, now - one.since) // 10 * 10)
    return f" for {format_duration(float(seconds))}" if seconds else ""
