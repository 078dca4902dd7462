"""Filters say where a remediation begins; what has begun goes on without them."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.decide.session import History, HoldState
from tests.unit.decide.build import START, xid
from tests.unit.decide.test_work import DRAIN, bench, end, hold, until


XID: dict[str, Any] = {"xid": {"codes": [79]}}
ONCE = {"attempts": {"atLeast": 1, "within": "1h"}}


@pytest.mark.parametrize(
    "when",
    [
        XID | {"cel": "!unschedulable"},
        XID | ONCE,
        {"all": [XID | {"cel": "!unschedulable"}, XID]},
        {"any": [XID | ONCE, {"xid": {"codes": [48]}}]},
    ],
)
def test_a_filter_that_does_not_hold_any_more_stops_nothing(when: dict[str, Any]) -> None:
    made = bench({"cordon": {}}, {"wait": {"for": "2h"}}, DRAIN, when=[when], recover={"for": "1m"})
    made.change(history=History(attempts=(START - 60.0,)))
    made.one()
    assert made.cordoned()
    made.now += 2 * 3600.0
    made.fault(xid())
    until(made, "drain")
    end(made, "drain")
    assert hold(made).state is HoldState.DONE
    made.fault()
    made.one()
    for _ in range(3):
        made.now += 60.0
        made.fault()
        made.decide()
    assert not made.cordoned()


def test_a_filter_still_says_where_it_begins() -> None:
    made = bench({"cordon": {}}, when=[XID | {"cel": "unschedulable"}])
    made.one()
    assert not made.cordoned()
