"""What a session does again is another work: no answer to the first try is taken for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from node_agent.contract import Fault
from remediator.decide.requests import Approval
from remediator.decide.session import HoldState
from tests.unit.decide.build import Bench, condition, policy, xid
from tests.unit.decide.test_work import DRAIN, JOB, bench, end, hold, until


LONG = policy("ecc", when=[{"condition": {"type": "GPUMemoryDegraded"}}], steps=[{"cordon": {}}])


def came_back(made: Bench) -> None:
    """The fault clears, its policy lets go of a node that another holds, and it comes back."""
    report(made)
    made.one()
    for _ in range(30):
        report(made)
        made.one(seconds=60.0)
        if made.session().hold("bus") is None:
            break
    assert made.session().hold("bus") is None
    report(made, xid())


def report(made: Bench, *faults: Fault) -> None:
    """Have the agent report these faults beside a degraded memory."""
    made.fault(*faults)
    other = {"GPUMemoryDegraded": condition("GPUMemoryDegraded", "True", now=made.now)}
    made.change(conditions={**other, **made.nodes["n1"].conditions})


def uncordoned_by_its_owner(made: Bench) -> None:
    """Whoever had cordoned the node before us takes that away."""
    made.change(unschedulable=False)


def orphaned_twice(made: Bench) -> None:
    """The policy is gone and comes back, and that again, at the same step."""
    known = made.policies
    for _ in range(2):
        made.policies = type(known)({})
        made.one(seconds=1.0)
        made.policies = known
        made.one(seconds=1.0)


@pytest.mark.parametrize(
    ("again", "cordoned"), [(came_back, False), (uncordoned_by_its_owner, True)]
)
def test_an_earlier_outcome_is_none_of_the_work_that_is_done_again(
    again: Callable[[Bench], None], *, cordoned: bool
) -> None:
    made = bench({"cordon": {}}, {"notify": {"to": ["log"]}}, DRAIN, JOB, more=(LONG,))
    made.change(unschedulable=cordoned)
    report(made, xid())
    until(made, "drain")
    keys = {made.works["drain"].key}
    end(made, "drain")
    until(made, "job")
    keys.add(made.works["job"].key)
    end(made, "job")
    assert hold(made).state is HoldState.DONE
    told = len([key for key in made.sent if "/bus/1" in key])
    again(made)
    until(made, "drain")
    assert made.works["drain"].key not in keys
    end(made, "drain")
    until(made, "job")
    assert made.works["job"].key not in keys
    assert len([key for key in made.sent if "/bus/1" in key]) > told


def test_work_that_is_stopped_again_and_again_has_another_key_each_time() -> None:
    made = until(bench({"cordon": {}}, JOB), "job")
    keys = [made.works["job"].key]
    for _ in range(3):
        orphaned_twice(made)
        until(made, "job")
        keys.append(made.works["job"].key)
    assert len(set(keys)) == len(keys)
    assert len(hold(made).results) <= 2


def test_a_fault_that_comes_and_goes_while_another_holds_the_node_escalates_in_the_end() -> None:
    made = bench({"cordon": {}}, JOB, more=(LONG,), limits={"maxAttempts": 2})
    report(made, xid())
    for _ in range(2):
        until(made, "job")
        end(made, "job")
        came_back(made)
    made.one(seconds=1.0)
    assert hold(made).state is HoldState.ESCALATED
    assert not made.works
    assert "attempt 3 within 24 h" in made.texts()


def test_an_approval_counts_for_one_hold_once_however_many_people_gave_it() -> None:
    made = bench({"cordon": {}}, {"approve": {}}, JOB, more=(LONG,))
    report(made, xid())
    made.one(seconds=1.0)

    def approve(*names: str) -> None:
        session, until = made.session().id, "2040-01-01T00:00:00Z"
        made.change(
            approvals=tuple(
                Approval(session=session, policy="bus", step=1, at="now", by=name, expires=until)
                for name in names
            )
        )

    approve("ann", "bob")
    until(made, "job")
    assert made.nodes["n1"].approvals == ()
    end(made, "job")
    came_back(made)
    until(made)
    for _ in range(3):
        made.one(seconds=1.0)
        assert not made.works
    report(made)
    made.one()
    approve("ann")  # too late: the fault has gone
    came_back(made)
    for _ in range(3):
        made.one(seconds=1.0)
        assert not made.works
    approve("ann")
    until(made, "job")
