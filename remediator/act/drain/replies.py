"""What the API server's answer to an eviction means, and when to ask again.

The same 429 comes from a PodDisruptionBudget and from a server that is overloaded; only
the cause tells them apart. The first is about one pod, the second about the whole client.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from remediator.kube.errors import (
    ApiError,
    Conflict,
    Denied,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    Throttled,
)


class Reply(StrEnum):
    """What an answer means for the pod."""

    ACCEPTED = "accepted"
    """It is on its way; gone is something else."""
    GONE = "gone"
    CHANGED = "changed"
    """Another pod has its name now, or it changed in between: look again."""
    BUDGET = "budget"
    """A PodDisruptionBudget forbids it for now."""
    BUDGETS = "budgets"
    """More than one PodDisruptionBudget covers it, and then none can be asked."""
    NAMESPACE = "namespace"
    """Its namespace is being deleted, which takes it away by itself."""
    THROTTLED = "throttled"
    """The server asks the whole client for patience."""
    REFUSED = "refused"
    """Not allowed or not valid: only people can change that."""
    TROUBLE = "trouble"
    """No answer, or a failure of the server: it may have happened."""


BUDGET_CAUSE: Final = "DisruptionBudget"
NAMESPACE_CAUSE: Final = "NamespaceTerminating"
_MANY_BUDGETS: Final = "more than one PodDisruptionBudget"
_FULL_BUDGET: Final = "DisruptedPods map too big"

_FIRST: Final = {
    Reply.ACCEPTED: 60.0,  # and it still does not terminate: an admission webhook took it over
    Reply.GONE: 5.0,
    Reply.CHANGED: 1.0,
    Reply.BUDGET: 5.0,
    Reply.BUDGETS: 60.0,
    Reply.NAMESPACE: 10.0,
    Reply.THROTTLED: 1.0,
    Reply.REFUSED: 60.0,
    Reply.TROUBLE: 1.0,
}
"""Seconds until the first repetition; each further one waits twice as long."""
LAST: Final = 60.0
"""Seconds of the longest wait, also where the server's ``Retry-After`` asks for a longer one: it
would hold all drains, and what it is about may be over much sooner."""


class Attempt(NamedTuple):
    """How far we got with one pod: the last reply, how many of its kind in a row, when next.

    ``deletion``: it was asked to be deleted, past its budget, and not to be evicted. ``since``:
    when the first of those replies came.
    """

    reply: Reply
    message: str = ""
    times: int = 1
    next_at: float = 0.0
    deletion: bool = False
    since: float | None = None


def meaning(error: ApiError) -> tuple[Reply, str]:  # noqa: PLR0911 - one for each answer
    """Return what an error in answer to an eviction or deletion means, and the server's words."""
    causes = {reason: message for reason, _, message in error.causes}
    match error:
        case NotFound():
            return Reply.GONE, ""
        case Conflict():
            return Reply.CHANGED, error.message
        case Throttled() if BUDGET_CAUSE in causes:
            return Reply.BUDGET, causes[BUDGET_CAUSE] or error.message
        case Throttled():
            return Reply.THROTTLED, error.message
        case Forbidden() if NAMESPACE_CAUSE in causes:
            return Reply.NAMESPACE, error.message
        case Forbidden() if _FULL_BUDGET in error.message:
            return Reply.BUDGET, error.message
        case ServerError() if _MANY_BUDGETS in error.message:
            return Reply.BUDGETS, error.message
        case Denied() | Invalid():
            return Reply.REFUSED, str(error)
        case _:
            return Reply.TROUBLE, str(error)


def attempt(
    before: Attempt | None,
    reply: Reply,
    message: str = "",
    *,
    now: float,
    retry_after: float = 0.0,
    spread: float = 1.0,
    deletion: bool = False,
) -> Attempt:
    """Take in a reply.

    Args:
        before: how far we had got.
        reply: what the answer means.
        message: the server's words.
        now: seconds.
        retry_after: what the server asks for, 0 when it does not.
        spread: factor on the wait, about 1, so that pods are not asked about in step.
        deletion: of what kind the request was.
    """
    same = before if before is not None and before.reply is reply else None
    times = same.times + 1 if same is not None else 1
    since = same.since if same is not None and same.since is not None else now
    wait = min(LAST, _FIRST[reply] * 2 ** min(times - 1, 10)) * spread
    return Attempt(reply, message, times, now + max(wait, retry_after), deletion, since)
