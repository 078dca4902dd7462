"""Alerts that stay open are sent anew; what ended is not. Real Alertmanagers: test_notify.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from remediator.act.channels.alertmanager import RENEW_SECONDS, AlertmanagerSender
from remediator.act.envelope import RefusedError
from remediator.act.renewal import renew
from remediator.decide.topics import Topics
from remediator.policy.channels import AlertmanagerChannel
from remediator.policy.wording import MAX_TEXT
from tests.unit.act.channels.conftest import NOW, Service, end, envelope, message


Make = Callable[..., AlertmanagerSender]


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(service: Service, session: aiohttp.ClientSession, clock: Clock) -> Make:
    def make(topics: Topics | None = None, **keys: Any) -> AlertmanagerSender:
        spec = AlertmanagerChannel.model_validate({"urls": [service.url], **keys})
        return AlertmanagerSender(spec, session=session, topics=topics or Topics(), wall=clock)

    return make


async def test_what_is_open_is_sent_anew_as_it_was_and_lasts_on(
    service: Service, make: Make, clock: Clock
) -> None:
    sender = make(labels={"team": "gpu"})
    await sender.send(envelope(message(1), message(2)))
    await sender.send(envelope(message(3), dry_run=True))
    clock.now += 20 * 3600
    await sender.renew("oncall")

    told, dry, again = service.bodies
    assert [one["labels"] for one in again] == [one["labels"] for one in (*told, *dry)]
    assert [one["annotations"] for one in again] == [one["annotations"] for one in (*told, *dry)]
    assert [one["startsAt"] for one in again] == [one["startsAt"] for one in (*told, *dry)]
    assert told[0]["endsAt"] < again[0]["endsAt"]


async def test_what_has_ended_is_not_and_nothing_is_sent_of_nothing(
    service: Service, make: Make
) -> None:
    sender = make()
    await sender.renew("oncall")
    await sender.send(envelope(message(1), message(2)))
    await sender.send(envelope(end(1)))
    await sender.renew("oncall")
    await sender.renew("another")

    *_, again = service.bodies
    assert len(service.bodies) == 3
    assert [one["labels"]["node"] for one in again] == ["n2"]


async def test_the_next_leader_goes_on_with_it_and_remembers_a_bounded_text(
    service: Service, make: Make
) -> None:
    before, after = Topics(), Topics()
    await make(before).send(envelope(message(1, text="long " * MAX_TEXT)))
    after.restore(before.state())
    assert len(json.dumps([one.marks for one in before.of("oncall")])) < 1000

    await make(after).renew("oncall")

    assert service.bodies[1][0]["annotations"]["summary"] == "n1: Xid 79"


async def test_of_what_an_earlier_version_opened_the_end_is_told(
    service: Service, make: Make
) -> None:
    topics = Topics()
    sender = make(topics)
    await sender.send(envelope(message(1)))
    (topic,) = topics.of("oncall")
    object.__setattr__(topic, "marks", ("bus|warning",))

    await sender.renew("oncall")
    await sender.send(envelope(end(1)))

    (begin,), (over,) = service.bodies
    assert begin["labels"] == over["labels"]
    assert over["endsAt"] == begin["startsAt"]


async def test_nothing_is_sent_anew_behind_its_end(service: Service, make: Make) -> None:
    sender = make()
    await sender.send(envelope(message(1)))

    await asyncio.gather(sender.renew("oncall"), sender.send(envelope(end(1))))
    await asyncio.gather(sender.send(envelope(message(2))), sender.renew("oncall"))
    await asyncio.gather(sender.send(envelope(end(2))), sender.renew("oncall"))

    last = {one["labels"]["node"]: one["endsAt"] for body in service.bodies for one in body}
    assert set(last.values()) == {"2027-01-15T08:00:00.000+00:00"}


@pytest.mark.parametrize(("lasts", "every"), [("24h", RENEW_SECONDS), ("90s", 30.0), ("1s", 1.0)])
def test_it_is_renewed_long_before_it_would_end(make: Make, lasts: str, every: float) -> None:
    assert make(lasts=lasts).renew_every == every


class Sleep:
    """Waits three times."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) > 2:
            raise RefusedError("the end of the test")


async def test_one_that_is_not_taken_is_said_and_tried_again(service: Service, make: Make) -> None:
    sender, sleep = make(), Sleep()
    await sender.send(envelope(message(1)))
    service.answers = [web.Response(status=400, text="no")]

    with capture_logs() as lines, pytest.raises(ExceptionGroup):
        await renew({"oncall": sender}, sleep=sleep)

    assert [one["event"] for one in lines] == ["alerts_not_renewed"]
    assert sleep.slept == [RENEW_SECONDS] * 3
    assert len(service.bodies) == 3


async def test_what_somebody_wrote_into_our_memory_stops_nobody(make: Make) -> None:
    topics, sleep = Topics(), Sleep()
    sender = make(topics)
    await sender.send(envelope(message(1)))
    (topic,) = topics.of("oncall")
    mark = json.loads(topic.marks[0]) | {"since": 1e300}
    object.__setattr__(topic, "marks", (json.dumps(mark), "5", "{}", ""))

    with capture_logs() as lines, pytest.raises(ExceptionGroup):
        await renew({"oncall": sender}, sleep=sleep)

    assert {one["event"] for one in lines} <= {"alerts_not_renewed"}
    assert len(sleep.slept) == 3
