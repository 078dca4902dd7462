"""The outbox: nobody waits for it, a storm becomes few messages, every key ends once.

Virtual time throughout: an hour of retries takes no time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random

import pytest

from remediator.act.envelope import Envelope, RefusedError, RetryLaterError
from remediator.act.outbox import MAX_MERGED, Outbox, OutboxObserver, Report
from remediator.decide.decision import SendMessage, Urgency


pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

Behaviour = Callable[[Envelope], BaseException | None]


def arrives(_: Envelope) -> None:
    return None


class FakeChannel:
    """Notes what it is given and when; `behaviour` decides whether it arrives."""

    def __init__(self, behaviour: Behaviour = arrives, *, takes: float = 0.0) -> None:
        self.give_up_after = 600.0
        self.tried: list[tuple[float, Envelope]] = []
        self.arrived: list[Envelope] = []
        self.behaviour = behaviour
        self.takes = takes

    async def send(self, envelope: Envelope) -> None:
        self.tried.append((asyncio.get_running_loop().time(), envelope))
        await asyncio.sleep(self.takes)
        error = self.behaviour(envelope)
        if error is not None:
            raise error
        self.arrived.append(envelope)

    @property
    def times(self) -> list[float]:
        start = self.tried[0][0]
        return [at - start for at, _ in self.tried]


def message(
    number: int, *, to: tuple[str, ...] = ("a",), key: str = "", **more: object
) -> SendMessage:
    fields: dict[str, object] = {
        "key": key or f"session-{number}/0",
        "to": to,
        "title": f"n{number} cordoned",
        "text": f"Xid 79 on n{number}",
        "node": f"n{number}",
        "policy": "bus",
        "step": 1,
    }
    return SendMessage(**{**fields, **more})  # type: ignore[arg-type]


@asynccontextmanager
async def running(outbox: Outbox) -> AsyncIterator[None]:
    task = asyncio.create_task(outbox.run())
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def make(
    *,
    capacity: int = 100,
    waits: Mapping[str, float] | None = None,
    observer: OutboxObserver | None = None,
    **channels: FakeChannel,
) -> tuple[Outbox, list[Report]]:
    reports: list[Report] = []
    outbox = Outbox(
        channels=channels,
        report=reports.append,
        capacity=capacity,
        waits=waits or {},
        observer=observer,
        now=lambda: 1000.0,
        rng=Random(1),  # noqa: S311 - jitter
    )
    return outbox, reports


async def test_submit_does_not_wait_and_the_first_message_goes_at_once() -> None:
    channel = FakeChannel(takes=30.0)
    outbox, reports = make(a=channel)
    async with running(outbox):
        assert outbox.submit(message(1), dry_run=False)
        assert reports == []
        assert outbox.pending == 1
        await asyncio.sleep(30.1)

    assert channel.times == [0.0]
    assert [report.outcome.delivered for report in reports] == [True]
    assert reports[0].message.node == "n1"
    assert outbox.pending == 0


async def test_one_key_is_sent_once_also_after_its_end() -> None:
    channel = FakeChannel()
    outbox, reports = make(a=channel)
    async with running(outbox):
        assert outbox.submit(message(1), dry_run=False)
        assert not outbox.submit(message(1), dry_run=False)
        await asyncio.sleep(20)
        assert not outbox.submit(message(1), dry_run=False)
        await asyncio.sleep(20)

    assert len(channel.arrived) == 1
    assert len(reports) == 1


async def test_a_storm_is_the_first_message_and_one_that_lists_the_rest() -> None:
    channel = FakeChannel()
    outbox, reports = make(a=channel)
    async with running(outbox):
        for number in range(50):
            outbox.submit(message(number), dry_run=False)
        await asyncio.sleep(20)

    assert channel.times == [0.0, 5.0]
    first, rest = channel.arrived
    assert first.nodes == ("n0",)
    assert rest.nodes == tuple(f"n{number}" for number in range(1, 50))
    assert rest.title == "49 nodes: ... cordoned"
    assert all(f"- n{number}: Xid 79 on n{number}" in rest.text for number in range(1, 50))
    assert {report.outcome.key for report in reports} == {f"session-{n}/0" for n in range(50)}


async def test_where_its_channel_waits_a_storm_is_one_message_and_nothing_waits_for_longer() -> (
    None
):
    channel, other = FakeChannel(), FakeChannel()
    outbox, _ = make(waits={"a": 30.0}, a=channel, b=other)
    async with running(outbox):
        for number in range(50):
            outbox.submit(message(number, to=("a", "b")), dry_run=False)
            await asyncio.sleep(0.5)
        breaker = message(0, key="breaker/bus/1", node="")
        outbox.submit(breaker, dry_run=False)
        await asyncio.sleep(40)
        outbox.submit(message(99), dry_run=False)
        assert await outbox.drain(2.0), "an orderly end does not wait"

    assert [len(one.nodes) for one in channel.arrived] == [0, 50, 1]
    assert channel.times[1] - channel.times[0] == 5.0, "what is about no node goes at once"
    assert other.arrived[0].nodes == ("n0",)


async def test_a_lasting_storm_gives_one_message_a_window_and_then_the_next_goes_at_once() -> None:
    channel = FakeChannel()
    outbox, _ = make(a=channel, capacity=1000)
    async with running(outbox):
        for number in range(20):
            outbox.submit(message(number), dry_run=False)
            await asyncio.sleep(1.0)
        await asyncio.sleep(60)
        outbox.submit(message(99), dry_run=False)
        await asyncio.sleep(0.1)

    assert channel.times == [0.0, 5.0, 10.0, 15.0, 20.0, 80.0]


async def test_an_envelope_has_a_bounded_number_of_messages() -> None:
    channel = FakeChannel()
    outbox, _ = make(a=channel, capacity=1000)
    async with running(outbox):
        for number in range(1 + MAX_MERGED + 1):
            outbox.submit(message(number), dry_run=False)
        await asyncio.sleep(20)

    assert [len(envelope.messages) for envelope in channel.arrived] == [1, MAX_MERGED, 1]
    assert "and 150 more" in channel.arrived[1].text


async def test_a_storm_that_is_about_no_policy_is_merged_too() -> None:
    channel = FakeChannel()
    outbox, _ = make(a=channel, capacity=1000)
    async with running(outbox):
        for number in range(500):
            frozen = message(
                number, policy="", step=None, kind="frozen", title=f"n{number} is frozen"
            )
            outbox.submit(frozen, dry_run=False)
        await asyncio.sleep(20)

    assert len(channel.arrived) == 4  # the first, and three of 200 at most
    assert channel.arrived[1].title == "200 nodes: ... is frozen"


async def test_a_merged_message_says_what_is_true_of_all() -> None:
    channel = FakeChannel()
    outbox, _ = make(a=channel)
    async with running(outbox):
        outbox.submit(message(0), dry_run=False)
        for number, fault in enumerate(["Xid 79", "Xid 48", "Xid 79"], 1):
            title, text = f"n{number}: {fault}", "policy bus holds it\nmore"
            outbox.submit(message(number, title=title, text=text), dry_run=False)
        outbox.submit(message(3, key="again", title="n3: Xid 48", text=""), dry_run=False)
        await asyncio.sleep(20)

    merged = channel.arrived[1]
    assert merged.title == "3 nodes: ...: Xid 79; and others, see the text"
    assert merged.text.splitlines() == [
        "4 messages about 3 nodes within a few seconds:",
        "- n1: Xid 79: policy bus holds it",
        "- n2: Xid 48: policy bus holds it",
        "- n3: Xid 79: policy bus holds it",
        "- n3: Xid 48",
    ]


async def test_a_name_within_a_title_is_not_taken_for_the_nodes() -> None:
    channel = FakeChannel()
    outbox, _ = make(a=channel)
    async with running(outbox):
        for number in range(3):
            node = "a" * (number + 1)
            one = message(number, node=node, title=f"{node}: a fatal fault")
            outbox.submit(one, dry_run=False)
        await asyncio.sleep(20)

    assert channel.arrived[1].title == "2 nodes: ...: a fatal fault"


async def test_what_differs_is_not_merged() -> None:
    channel = FakeChannel()
    outbox, _ = make(a=channel)
    async with running(outbox):
        outbox.submit(message(1), dry_run=False)
        outbox.submit(message(2, policy="memory"), dry_run=False)
        outbox.submit(message(3, resolves=True, key="x"), dry_run=False)
        outbox.submit(message(4), dry_run=True)
        outbox.submit(message(5, policy="", node="", key="breaker"), dry_run=False)
        outbox.submit(message(6, policy="", node="", key="pause"), dry_run=False)
        outbox.submit(message(7, kind="failed"), dry_run=False)
        await asyncio.sleep(0.1)

    assert len(channel.arrived) == 7


async def test_a_merged_message_is_as_urgent_as_its_most_urgent() -> None:
    channel = FakeChannel()
    outbox, _ = make(a=channel)
    async with running(outbox):
        for number, urgency in enumerate([Urgency.INFO, Urgency.WARNING, Urgency.CRITICAL]):
            outbox.submit(message(number, urgency=urgency), dry_run=False)
        await asyncio.sleep(10)

    assert [envelope.urgency for envelope in channel.arrived] == [Urgency.INFO, Urgency.CRITICAL]


async def test_dry_run_is_said_first_and_has_keys_of_its_own() -> None:
    channel = FakeChannel()
    outbox, reports = make(a=channel)
    async with running(outbox):
        outbox.submit(message(1), dry_run=True)
        outbox.submit(message(1), dry_run=False)
        await asyncio.sleep(1)

    virtual, real = channel.arrived
    assert virtual.title == "[dry-run] n1 cordoned"
    assert virtual.text.startswith("[dry-run] ")
    assert virtual.key != real.key
    assert [report.dry_run for report in reports] == [True, False]
    assert {report.outcome.key for report in reports} == {"session-1/0"}


async def test_it_is_tried_again_later_and_later_until_it_arrives() -> None:
    failures = iter([RetryLaterError("HTTP 500")] * 6)
    channel = FakeChannel(lambda _: next(failures, None))
    outbox, reports = make(a=channel)
    async with running(outbox):
        outbox.submit(message(1), dry_run=False)
        await asyncio.sleep(600)

    waits = [
        later - sooner for sooner, later in zip(channel.times, channel.times[1:], strict=False)
    ]
    assert len(waits) == 6
    assert all(wait >= 0.5 for wait in waits)
    assert len({envelope.key for _, envelope in channel.tried}) == 1
    assert [report.outcome.delivered for report in reports] == [True]


async def test_the_receivers_own_wish_is_heeded() -> None:
    failures = iter([RetryLaterError("HTTP 429", after=120.0)])
    channel = FakeChannel(lambda _: next(failures, None))
    outbox, _ = make(a=channel)
    async with running(outbox):
        outbox.submit(message(1), dry_run=False)
        await asyncio.sleep(200)

    assert channel.times == [0.0, 120.0]


async def test_it_is_given_up_after_its_time_counted_and_said() -> None:
    channel = FakeChannel(lambda _: RetryLaterError("HTTP 503"))
    outbox, reports = make(a=channel)
    async with running(outbox):
        outbox.submit(message(1), dry_run=False)
        await asyncio.sleep(700)

    assert channel.times[-1] <= 600.0
    assert len(channel.tried) > 10
    assert [report.outcome.delivered for report in reports] == [False]
    assert reports[0].outcome.note == "a: HTTP 503"
    assert (outbox.failed, outbox.last_failure, outbox.pending) == (1, "a: HTTP 503", 0)


async def test_a_refusal_is_not_tried_again() -> None:
    channel = FakeChannel(lambda _: RefusedError("HTTP 400: no such room"))
    outbox, reports = make(a=channel)
    async with running(outbox):
        outbox.submit(message(1), dry_run=False)
        await asyncio.sleep(60)

    assert len(channel.tried) == 1
    assert reports[0].outcome.note == "a: HTTP 400: no such room"


async def test_a_broken_channel_fails_its_message_and_stops_nobody() -> None:
    broken = FakeChannel(lambda _: ZeroDivisionError())
    good = FakeChannel()
    outbox, reports = make(a=broken, b=good)
    async with running(outbox):
        outbox.submit(message(1), dry_run=False)
        outbox.submit(message(2, to=("b",)), dry_run=False)
        await asyncio.sleep(60)

    assert len(good.arrived) == 1
    assert {r.outcome.key: r.outcome.delivered for r in reports} == {
        "session-1/0": False,
        "session-2/0": True,
    }


async def test_a_message_to_two_channels_ends_when_both_have_and_fails_if_one_does() -> None:
    good, bad = FakeChannel(), FakeChannel(lambda _: RefusedError("no"), takes=5.0)
    outbox, reports = make(a=good, b=bad)
    async with running(outbox):
        outbox.submit(message(1, to=("a", "b")), dry_run=False)
        await asyncio.sleep(1)
        assert reports == []
        await asyncio.sleep(10)

    assert [report.outcome.note for report in reports] == ["b: no"]


async def test_an_unknown_channel_is_named_with_those_that_exist() -> None:
    outbox, reports = make(a=FakeChannel(), log=FakeChannel())
    async with running(outbox):
        outbox.submit(message(1, to=("onkall",)), dry_run=False)
        await asyncio.sleep(1)

    assert "no channel 'onkall'; RemediatorConfig has: a, log" in reports[0].outcome.note


async def test_beyond_its_capacity_a_message_fails_at_once_and_the_others_do_not() -> None:
    channel, counted = FakeChannel(), list[tuple[str, str]]()

    class Observer:
        def message_ended(self, channel: str, result: str) -> None:
            counted.append((channel, result))

    outbox, reports = make(a=channel, capacity=2, observer=Observer())
    for number in range(3):
        outbox.submit(message(number), dry_run=False)
    assert counted == [("a", "failed")]
    assert [report.outcome.key for report in reports] == ["session-2/0"]
    assert "outbox is full" in reports[0].outcome.note
    async with running(outbox):
        await asyncio.sleep(20)

    assert len(reports) == 3
    assert outbox.failed == 1


async def test_recovered_is_not_tried_before_cordoned_of_the_same_node() -> None:
    first = iter([RetryLaterError("HTTP 500")])
    channel = FakeChannel(lambda e: None if e.resolves else next(first, None), takes=1.0)
    outbox, _ = make(a=channel)
    async with running(outbox):
        outbox.submit(message(1), dry_run=False)
        outbox.submit(message(1, key="session-1/r", resolves=True), dry_run=False)
        await asyncio.sleep(60)

    assert [envelope.resolves for envelope in channel.arrived] == [False, True]


async def test_what_waits_in_a_window_goes_before_a_later_message_about_its_node() -> None:
    channel = FakeChannel()
    outbox, _ = make(a=channel)
    async with running(outbox):
        for number in range(4):
            outbox.submit(message(number), dry_run=False)
        await asyncio.sleep(1)
        failed = message(2, key="session-2/failed", kind="failed")
        outbox.submit(failed, dry_run=False)
        outbox.submit(message(2, key="session-2/r", resolves=True), dry_run=False)
        await asyncio.sleep(20)

    assert [envelope.nodes for envelope in channel.arrived] == [
        ("n0",),
        ("n2",),  # cordoned
        ("n2",),  # failed
        ("n2",),  # recovered
        ("n1", "n3"),  # the storm's others, still together
    ]
    told = [one.key for envelope in channel.arrived for one in envelope.messages]
    assert told.index("session-2/0") < told.index(failed.key) < told.index("session-2/r")


async def test_what_came_between_two_messages_of_a_window_goes_between_them() -> None:
    channel = FakeChannel()
    outbox, reports = make(a=channel)
    told = []
    async with running(outbox):
        for number in range(2):
            outbox.submit(message(number, key=f"before-{number}"), dry_run=False)
            outbox.submit(message(number, key=f"over-{number}", resolves=True), dry_run=False)
        for key in ("s1/0", "s1/end", "s2/0", "s2/end", "s3/0"):
            told.append(key)
            outbox.submit(message(2, key=key, resolves=key.endswith("end")), dry_run=False)
        outbox.submit(message(3), dry_run=False)
        await asyncio.sleep(20)

    arrived = [one for envelope in channel.arrived for one in envelope.messages]
    assert [one.key for one in arrived if one.node == "n2"] == told
    assert len(arrived) == len(reports) == 10


async def test_a_message_that_cannot_arrive_delays_later_ones_of_its_node_by_a_minute_only() -> (
    None
):
    channel = FakeChannel(lambda e: None if e.resolves else RetryLaterError("HTTP 500"))
    outbox, _ = make(a=channel)
    async with running(outbox):
        outbox.submit(message(1), dry_run=False)
        outbox.submit(message(1, key="session-1/r", resolves=True), dry_run=False)
        await asyncio.sleep(61)

    assert [envelope.resolves for envelope in channel.arrived] == [True]


async def test_a_hanging_channel_does_not_hold_up_another() -> None:
    hanging, log = FakeChannel(takes=3600.0), FakeChannel()
    outbox, _ = make(a=hanging, log=log)
    async with running(outbox):
        for number in range(20):
            outbox.submit(message(number, policy=f"p{number}"), dry_run=False)
        outbox.submit(message(99, to=("log",)), dry_run=False)
        await asyncio.sleep(1)

    assert len(log.arrived) == 1
    assert len(hanging.tried) == 8


async def test_drain_sends_what_waits_in_windows_and_gives_up_waiting_in_time() -> None:
    channel = FakeChannel()
    outbox, reports = make(a=channel)
    async with running(outbox):
        for number in range(5):
            outbox.submit(message(number), dry_run=False)
        await asyncio.sleep(0.1)
        assert await outbox.drain(2.0)
        assert channel.times[-1] < 1.0
        assert len(reports) == 5

        channel.behaviour = lambda _: RetryLaterError("down")
        outbox.submit(message(9), dry_run=False)
        assert not await outbox.drain(2.0)
    assert len(reports) == 5, "of what is under way at the end nothing is reported"


async def test_why_a_channel_does_not_take_what_is_pending_is_known_until_it_does() -> None:
    down, well = FakeChannel(lambda _: RetryLaterError("no such file")), FakeChannel()
    outbox, _ = make(down=down, well=well)
    async with running(outbox):
        outbox.submit(message(1, to=("down", "well")), dry_run=False)
        await asyncio.sleep(0.1)
        assert list(outbox.trouble) == ["down: no such file"]
        down.behaviour = arrives
        await asyncio.sleep(60.0)
        assert [outbox.pending, *outbox.trouble] == [0]

        down.behaviour = lambda _: RetryLaterError("gone again")
        outbox.submit(message(2, to=("down",)), dry_run=False)
        await asyncio.sleep(700.0)
        assert [outbox.pending, *outbox.trouble] == [0], "given up, and nothing waits"
