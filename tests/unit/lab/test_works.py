"""What becomes of Jobs in the lab's cluster while nobody follows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from remediator.act.side import Side
from remediator.decide.core import World
from remediator.decide.decision import Outcome, Work
from remediator.decide.ledger import Ledger
from remediator.lab.works import Assumed, Assumptions, Works
from remediator.policy.cluster import ClusterSpec
from remediator.policy.steps import Step


class Cluster:
    """Works with a clock of their own."""

    def __init__(self, *, reboot: float | None = None) -> None:
        self.now = 1000.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.rebooted: list[str] = []
        self.real = Side(world=World.REAL, ledger=Ledger(cluster=ClusterSpec(), started=0.0))
        self.works = Works(
            assume=Assumptions(
                work={"job": Assumed(60.0), "drain": Assumed(60.0)},
                reboots=reboot is not None,
                reboot=reboot,
            ),
            call_after=lambda seconds, act: self.due.append((self.now + seconds, act)),
            reboot=self.rebooted.append,
            look=lambda _name: None,
            now=lambda: self.now,
        )

    def begin(self, work: Work) -> None:
        self.works.keep(work.node, (work,), dry_run=False)
        self.works.begin(self.real, work)

    def at(self, now: float) -> None:
        """Let time pass."""
        self.now = now
        due = [one for one in self.due if one[0] <= now]
        self.due = [one for one in self.due if one[0] > now]
        for _, act in due:
            act()

    @property
    def ends(self) -> list[Outcome]:
        return list(self.real.outcomes.values())


def work(action: str = "job", **job: object) -> Work:
    given = {"template": "t", **job} if action == "job" else {}
    return Work(
        key="s/p/1",
        node="gpu-1",
        uid="u",
        policy="p",
        step=1,
        action=action,
        spec=Step.model_validate({action: given}),
        session="s",
        attempt=1,
        since=1000.0,
        deadline=2800.0,
        boot_id="b",
    )


def test_a_drain_stands_still_while_it_is_suspended_and_a_job_does_not() -> None:
    for action, ended in [("drain", False), ("job", True)]:
        it, one = Cluster(), work(action)
        it.begin(one)
        it.begin(replace(one, suspended=True))
        it.at(1500.0)
        assert it.ends == []
        it.begin(replace(one, since=1490.0))
        assert bool(it.ends) is ended
        it.at(1550.0)
        assert [(end.key, end.delivered) for end in it.ends] == [("s/p/1", True)]


@pytest.mark.parametrize(("what", "reboots"), [("nothing", 1), ("suspended", 1), ("stopped", 0)])
def test_a_job_that_is_taken_back_reboots_nothing(what: str, reboots: int) -> None:
    it, one = Cluster(reboot=300.0), work(success="reboot")
    it.begin(one)
    if what == "suspended":
        it.begin(replace(one, suspended=True))
    elif what == "stopped":
        it.works.keep("gpu-1", (), dry_run=False)
    it.at(1300.0)
    assert it.rebooted == ["gpu-1"] * reboots
