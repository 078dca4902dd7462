"""Every answer to an eviction means one thing; the two 429s and the two 403s are told apart."""

import pytest

from remediator.act.drain.replies import LAST, Attempt, Reply, attempt, meaning
from remediator.kube.access import access_of
from remediator.kube.errors import TimedOut, from_status
from remediator.kube.objects import Cause, Status, StatusDetails


ACCESS = access_of("POST", "/api/v1/namespaces/x/pods/y/eviction")
BUDGET = "The disruption budget db needs 1 healthy pods and has 1 currently"
MANY = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not"


@pytest.mark.parametrize(
    ("code", "cause", "message", "reply"),
    [
        (404, "", "", Reply.GONE),
        (409, "", "the UID in the precondition does not match", Reply.CHANGED),
        (429, "DisruptionBudget", BUDGET, Reply.BUDGET),
        (429, "", "too many requests, please try again later", Reply.THROTTLED),
        (403, "NamespaceTerminating", "being terminated", Reply.NAMESPACE),
        (403, "", "DisruptedPods map too big - too many evictions", Reply.BUDGET),
        (403, "", "no right", Reply.REFUSED),
        (401, "", "who?", Reply.REFUSED),
        (422, "", "invalid", Reply.REFUSED),
        (500, "", MANY, Reply.BUDGETS),
        (500, "", "etcd is away", Reply.TROUBLE),
        (503, "", "", Reply.TROUBLE),
    ],
)
def test_meaning(code: int, cause: str, message: str, reply: Reply) -> None:
    details = StatusDetails(causes=(Cause(reason=cause, message=message),)) if cause else None
    error = from_status(ACCESS, code, Status(code, "", message, details))

    assert meaning(error)[0] is reply
    if reply is Reply.BUDGET and cause:
        assert meaning(error)[1] == BUDGET


def test_no_answer_may_have_happened() -> None:
    assert meaning(TimedOut(ACCESS))[0] is Reply.TROUBLE


def test_waits_double_up_to_a_minute_and_begin_anew_with_another_reply() -> None:
    known: Attempt | None = None
    waits = []
    for _ in range(6):
        known = attempt(known, Reply.BUDGET, now=100.0)
        waits.append(known.next_at - 100.0)

    assert waits == [5, 10, 20, 40, LAST, LAST]
    assert attempt(known, Reply.TROUBLE, now=0.0).next_at == 1.0


def test_the_server_may_ask_for_more_patience() -> None:
    assert attempt(None, Reply.BUDGET, now=0.0, retry_after=10.0).next_at == 10.0
    assert attempt(None, Reply.BUDGET, now=0.0, retry_after=1.0).next_at == 5.0
