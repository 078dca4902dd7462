"""What guards hold is told: a fatal fault soon, any fault once it was held for long."""

from __future__ import annotations

from typing import Any

import pytest

from node_agent.contract import Severity
from remediator.decide.decision import SendMessage, Urgency
from remediator.decide.facts import ClusterFacts, SourceFact
from remediator.decide.ledger import Pause
from tests.unit.decide.build import Bench, alert, alive, ledger, node, policy, xid


HOUR = 3600.0
BUSY: dict[str, Any] = {"unless": [{"alert": {"name": "Maintenance"}}]}
FAILING = SourceFact(ok=False, since=0.0, why="connection refused")


def held(severity: Severity = Severity.WARNING, after: str = "1h", **spec: Any) -> Bench:
    """One faulty node that ``unless`` holds."""
    budgets = [{"maxUnavailable": "100%", "per": "cluster"}]
    guards = ledger(budgets=budgets, tellHeldAfter=after)
    made = Bench(policy(**({**BUSY, "steps": [{"cordon": {}}]} | spec)), guards=guards)
    made.known = alive(alerts=(alert("Maintenance"),))
    made.see(node(faults=(xid(severity=severity),)))
    made.one()
    return made


def passes(made: Bench, seconds: float) -> None:
    """Let time pass while the agent lives, with a look each 5 minutes."""
    until = made.now + seconds
    while made.now < until:
        made.now = min(made.now + 300.0, until)
        made.fault(*made.nodes["n1"].faults)
        made.decide()


def said(made: Bench) -> list[tuple[str, Urgency]]:
    found = [one for one in made.sent.values() if isinstance(one, SendMessage)]
    return [(one.title, one.urgency) for one in found]


def test_a_lesser_fault_is_told_once_when_it_was_held_for_long() -> None:
    made = held()
    passes(made, HOUR - 1.0)
    assert said(made) == []
    assert made.one().next_look == pytest.approx(made.now + 1.0)
    passes(made, 1.0)
    assert said(made) == [("n1: Xid 79 on 0000:9b:00.0, still held", Urgency.WARNING)]
    assert "held by unless: alert Maintenance fires" in made.texts()
    passes(made, 3 * HOUR)
    assert len(said(made)) == 1


def test_a_fatal_fault_is_told_soon_and_once_more() -> None:
    made = held(Severity.FATAL)
    passes(made, 60.0)
    assert [urgency for _, urgency in said(made)] == [Urgency.CRITICAL]
    passes(made, HOUR)
    assert [title.rpartition(", ")[2] for title, _ in said(made)] == ["held", "still held"]
    passes(made, HOUR)
    assert len(said(made)) == 2


@pytest.mark.parametrize("severity", [Severity.WARNING, Severity.FATAL])
def test_what_is_long_is_a_setting(severity: Severity) -> None:
    made = held(severity, "30s")
    passes(made, 30.0)
    assert [title.rpartition(", ")[2] for title, _ in said(made)] == ["still held"]


def test_what_is_let_go_in_time_is_not_told_and_the_next_hold_counts_anew() -> None:
    made = held(steps=[{"cordon": {}}, {"job": {"template": "reset"}}])
    passes(made, HOUR / 2)
    made.known = alive()
    made.one(seconds=1.0)
    assert made.cordoned()
    made.known = alive(alerts=(alert("Maintenance"),))
    passes(made, HOUR - 300.0)
    assert said(made) == []
    passes(made, 600.0)
    assert len(said(made)) == 1


@pytest.mark.parametrize(
    ("guard", "spec"),
    [
        ("windows", {"windows": [{"start": "13:00", "end": "13:01"}]}),
        ("sources", {}),
        ("budget", {"limits": {"budget": {"maxUnavailable": 0}}}),
        ("pause", {}),
    ],
)
def test_whichever_guard_it_is(guard: str, spec: dict[str, Any]) -> None:
    made = held(**({"unless": []} | spec), when=[{"alert": {"name": "GpuFell"}}])
    made.known = alive()
    made.change(alerts=(alert(severity="warning"),))
    if guard == "sources":
        made.known = ClusterFacts(sources={"alertmanager/main": FAILING})
    if guard == "pause":
        made.ledger.pause = Pause(by="ann", at="noon")
    made.one()
    passes(made, HOUR)
    assert f"held by {guard}" in made.texts()
    assert not made.cordoned()


def test_a_hold_that_people_chose_or_that_tells_by_itself_is_not_told() -> None:
    made = held(unless=[], when=[{"alert": {"name": "GpuFell"}}])
    made.ledger.open_breaker("bus", "a storm", made.now)
    made.change(alerts=(alert(severity="warning"),))
    made.one()
    passes(made, 2 * HOUR)
    assert said(made) == []
