"""One task for each piece of work that is wanted, none for any other, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
import structlog
from structlog.testing import capture_logs

from remediator.act.work import LAST_RETRY, TAKE_BACK_TRIES, Works
from remediator.decide.decision import Outcome, Work
from remediator.kube.tenure import NotLeading
from remediator.policy.steps import Step


pytestmark = pytest.mark.looptime


def work(key: str = "s/p/1", node: str = "n1", *, action: str = "job") -> Work:
    return Work(
        key=key,
        node=node,
        uid="uid",
        policy="p",
        step=1,
        action=action,
        spec=Step.model_validate({"job": {"template": "reset"}}),
        session="s",
        attempt=1,
        since=0.0,
        deadline=100.0,
    )


class Patient:
    """Works for ten seconds, as often as it is asked; can stop."""

    def __init__(self, *troubles: Exception) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.stopped: list[str] = []
        self.troubles = list(troubles)

    async def run(self, work: Work, *, say: Callable[[str], None]) -> Outcome:
        self.begun.append(work.key)
        say(f"run {len(self.begun)}")
        if self.troubles:
            raise self.troubles.pop(0)
        try:
            await asyncio.sleep(10.0)
        except asyncio.CancelledError:
            self.cancelled.append(work.key)
            raise
        return Outcome(key=work.key, delivered=True, note="well")

    async def stop(self, work: Work) -> None:
        self.stopped.append(work.key)


class Bench:
    def __init__(self, *troubles: Exception) -> None:
        self.patient = Patient(*troubles)
        self.ended: list[Outcome] = []
        self.news = 0
        self.works = Works(
            workers={"job": self.patient},
            ended=lambda _, outcome: self.ended.append(outcome),
            said=self.tell,
        )

    def tell(self, work: Work, line: str) -> None:
        assert self.works.progress[work.key] == line
        self.news += 1


async def test_work_runs_once_however_often_it_is_wanted_and_after_it_ended() -> None:
    bench = Bench()
    for _ in range(3):
        bench.works.want("n1", [work()])
        await asyncio.sleep(1.0)
    assert bench.works.progress == {"s/p/1": "run 1"}
    await asyncio.sleep(20.0)
    assert [one.note for one in bench.ended] == ["well"]
    bench.works.want("n1", [work()])
    await asyncio.sleep(20.0)
    assert bench.patient.begun == ["s/p/1"]
    bench.works.want("n1", [])
    await asyncio.sleep(1.0)
    assert bench.works.progress == {}
    assert bench.patient.stopped == [], "it had ended"


async def test_what_is_not_wanted_is_cancelled_then_taken_back() -> None:
    bench = Bench()
    bench.works.want("n1", [work()])
    bench.works.want("n2", [work("s/p/2", "n2")])
    await asyncio.sleep(1.0)
    bench.works.want("n1", [])
    await asyncio.sleep(1.0)
    assert bench.patient.cancelled == ["s/p/1"]
    assert bench.patient.stopped == ["s/p/1"]
    await asyncio.sleep(10.0)
    assert [one.key for one in bench.ended] == ["s/p/2"]


class Refused(Patient):
    """Cannot stop, for these troubles."""

    def __init__(self, *refusals: Exception) -> None:
        super().__init__()
        self.refusals = list(refusals)
        self.works = Works(workers={"job": self}, ended=lambda *_: None)

    async def stop(self, work: Work) -> None:
        await super().stop(work)
        if self.refusals:
            raise self.refusals.pop(0)

    async def tried(self) -> int:
        """Take a piece of work back, and return how often that was tried in an hour."""
        self.works.want("n1", [work()])
        await asyncio.sleep(0.1)
        self.works.want("n1", [])
        await asyncio.sleep(3600.0)
        return len(self.stopped)


@pytest.mark.parametrize(("refusals", "tries"), [(2, 3), (1000, TAKE_BACK_TRIES)])
async def test_what_cannot_be_taken_back_is_tried_again_and_not_for_ever(
    refusals: int, tries: int
) -> None:
    assert await Refused(*[TimeoutError()] * refusals).tried() == tries


async def test_who_leads_no_more_takes_nothing_back() -> None:
    """What is then there is the next leader's to keep or to delete, by the session it finds."""
    lost = NotLeading("the lease is not ours")
    with capture_logs() as logs:
        assert await Refused(TimeoutError(), lost).tried() == 2
    levels = [one["log_level"] for one in logs if one["event"] == "work_not_taken_back"]
    assert levels == ["warning", "error"]


async def test_a_term_that_ends_ends_the_tries_too() -> None:
    patient = Refused(*[TimeoutError()] * 1000)
    patient.works.want("n1", [work()])
    await asyncio.sleep(0.1)
    patient.works.want("n1", [])
    await asyncio.sleep(2.0)
    tries = len(patient.stopped)
    assert 1 < tries < TAKE_BACK_TRIES
    await patient.works.close()
    await asyncio.sleep(3600.0)
    assert len(patient.stopped) == tries


@pytest.mark.parametrize("suspended", [False, True])
async def test_work_that_is_wanted_again_begins_when_its_last_run_has_come_to_rest(
    *, suspended: bool
) -> None:
    """Otherwise what takes back the last run would take away what the new one has made."""
    bench = Bench()
    said: list[str] = []

    class Slow(Patient):
        async def run(self, work: Work, *, say: Callable[[str], None]) -> Outcome:
            said.append("run")
            try:
                return await super().run(work, say=say)
            except asyncio.CancelledError:
                await asyncio.sleep(3.0)
                said.append("cancelled")
                raise

        async def stop(self, work: Work) -> None:
            await asyncio.sleep(3.0)
            await super().stop(work)
            said.append("stopped")

    bench.works = Works(workers={"job": Slow()}, ended=lambda _, one: bench.ended.append(one))
    bench.works.want("n1", [work()])
    await asyncio.sleep(1.0)
    bench.works.want("n1", [replace(work(), suspended=True)] if suspended else [])
    await asyncio.sleep(1.0)
    bench.works.want("n1", [work()])
    await asyncio.sleep(30.0)
    stopped = [] if suspended else ["stopped"]
    assert said == ["run", "cancelled", *stopped, "run"]
    assert [one.note for one in bench.ended] == ["well"]
    await bench.works.close()


async def test_keep_begins_nothing() -> None:
    bench = Bench()
    bench.works.keep("n1", [work()])
    await asyncio.sleep(1.0)
    assert bench.patient.begun == []


@pytest.mark.parametrize("how", ["suspended", "frozen", "closed"])
async def test_work_that_is_to_stay_is_left_as_it_is_and_taken_up_again(how: str) -> None:
    bench = Bench()
    bench.works.want("n1", [work()])
    await asyncio.sleep(1.0)
    if how == "suspended":
        bench.works.want("n1", [replace(work(), suspended=True)])
    elif how == "frozen":
        bench.works.keep("n1", [], take_back=False)
    else:
        await bench.works.close()
    await asyncio.sleep(1.0)
    assert bench.patient.cancelled == ["s/p/1"]
    assert bench.patient.stopped == []
    bench.works.want("n1", [work()])
    await asyncio.sleep(11.0)
    assert bench.patient.begun == ["s/p/1", "s/p/1"]
    assert len(bench.ended) == 1


async def test_trouble_is_shown_and_the_work_run_again_ever_more_slowly() -> None:
    bench = Bench(*(RuntimeError("no luck") for _ in range(10)))
    bench.works.want("n1", [work()])
    await asyncio.sleep(0.5)
    assert bench.works.progress["s/p/1"] == "in trouble, tried again in 1 s: no luck"
    await asyncio.sleep(LAST_RETRY * 10)
    assert len(bench.patient.begun) == 11
    assert [one.note for one in bench.ended] == ["well"]
    assert bench.news > 10


async def test_an_action_that_nobody_does_fails_and_says_so() -> None:
    bench = Bench()
    bench.works.want("n1", [work(action="dance")])
    await asyncio.sleep(0.1)
    (outcome,) = bench.ended
    assert not outcome.delivered
    assert "dance" in outcome.note


async def test_what_a_worker_logs_says_what_it_is_for() -> None:
    logged = asyncio.Event()

    class Logs:
        async def run(self, work: Work, *, say: Callable[[str], None]) -> Outcome:
            say("begun")
            structlog.get_logger().info("from_within")
            logged.set()
            return Outcome(key=work.key, delivered=True)

    works = Works(workers={"job": Logs()}, ended=lambda _work, _outcome: None)
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        works.want("n1", [work()])
        await logged.wait()
    await works.close()
    (said,) = [one for one in logs if one["event"] == "from_within"]
    assert said["node"] == "n1"
    assert (said["policy"], said["key"], said["step"]) == ("p", "s/p/1", 2)
    assert structlog.contextvars.get_contextvars() == {}
