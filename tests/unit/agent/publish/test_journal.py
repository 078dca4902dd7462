"""The agent's own log: one line an episode, one at the end, and no more than can be read."""

from __future__ import annotations

from typing import Any

import structlog
from structlog.testing import CapturingLogger

from node_agent.health.faults import OpenFault, Seen
from node_agent.health.fold import observe
from node_agent.health.state import NodeHealth
from node_agent.publish.journal import QUIET_SECONDS, FaultJournal
from tests.unit.agent.health.builders import xid


class Told:
    """A journal, and what it has written."""

    def __init__(self, known: dict[str, OpenFault] | None = None) -> None:
        self.output = CapturingLogger()
        log = structlog.wrap_logger(self.output, processors=[])
        self.journal = FaultJournal(known=known or {}, log=log)
        self.health = NodeHealth(faults=known or {})

    def see(self, *seen: Seen, now: float) -> None:
        self.health = observe(self.health, seen, boot_id="b")
        self.journal.observe(self.health.faults, now=now)

    @property
    def lines(self) -> list[tuple[str, str, dict[str, Any]]]:
        return [(c.method_name, c.kwargs["event"], c.kwargs) for c in self.output.calls]


def test_an_episode_is_one_line_as_loud_as_it_is_bad() -> None:
    told = Told()
    told.see(xid(79, 0.0), xid(31, 0.0), now=0.0)
    told.see(xid(79, 1.0, new=False), now=1.0)
    told.see(xid(79, 100.0), now=100.0)
    said = [(how, line["fault"].partition(" on ")[0], line["count"]) for how, _, line in told.lines]
    assert said == [("warning", "Xid 79", 1), ("info", "Xid 31", 1), ("warning", "Xid 79", 2)]


def test_a_storm_of_episodes_is_a_line_now_and_then_with_the_count() -> None:
    told = Told()
    for number in range(1000):
        told.see(xid(31, float(number), f"pid={number}, name=x, "), now=number / 50)
    assert 2 <= len(told.lines) <= 1 + 20 / QUIET_SECONDS
    assert told.lines[-1][2]["count"] > 400


def test_an_end_is_said_and_what_was_known_at_the_start_is_not() -> None:
    before = observe(NodeHealth(), [xid(79, 0.0)], boot_id="b").faults
    told = Told(dict(before))
    told.journal.observe(dict(before), now=0.0)
    assert told.lines == []
    told.journal.observe({}, now=1.0)
    ((how, event, _),) = told.lines
    assert (how, event) == ("info", "a fault is over")
