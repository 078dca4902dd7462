"""What is not told survives the process, and so do the threads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from remediator.act.envelope import Envelope, RetryLaterError
from remediator.act.outbox import Outbox, Report
from remediator.act.told import MAX_TOLD, TOLD_FOR, Told
from remediator.decide.decision import SendMessage, Urgency
from remediator.decide.topics import Topic, Topics, opened
from remediator.kube.access import access_of
from remediator.kube.errors import Transient
from remediator.kube.objects import ConfigMap
from remediator.record.messages import (
    MAX_BYTES,
    MAX_TEXT,
    MAX_UNSENT,
    MESSAGES_KEY,
    UNREADABLE_KEY,
    Correspondence,
    MessageMemory,
    Source,
    Unsent,
    encode,
)


NOW = 1_800_000_000.0
BREAKER = SendMessage(
    key="breaker/bus/1",
    to=("down", "up"),
    title="breaker of bus opened",
    text="9 of 10",
    policy="bus",
    urgency=Urgency.CRITICAL,
)


class Store:
    """ConfigMaps in memory."""

    def __init__(self) -> None:
        self.data: dict[str, str] = {}
        self.down = False

    async def read(self, name: str) -> ConfigMap | None:
        if self.down:
            raise Transient(access_of("GET", "/api/v1/x"))
        return ConfigMap(name, "default", "u1", "1", dict(self.data))

    async def write(
        self, name: str, data: Mapping[str, str | None], *, known: ConfigMap | None
    ) -> ConfigMap:
        del known
        self.data |= {key: value for key, value in data.items() if value is not None}
        return ConfigMap(name, "default", "u1", "1", dict(self.data))


class Receiver:
    give_up_after = 3600.0

    def __init__(self, *, works: bool) -> None:
        self.works = works
        self.got: list[Envelope] = []

    async def send(self, envelope: Envelope) -> None:
        if not self.works:
            raise RetryLaterError("down")
        self.got.append(envelope)


async def term(
    store: Store,
    *,
    works: bool,
    messages: tuple[SendMessage, ...] = (),
    now: float = NOW,
    reports: list[Report] | None = None,
) -> Receiver:
    """One leader's life: decide and send (what it is asked to), take over, keep what is left."""
    up, down = Receiver(works=True), Receiver(works=works)
    reports = [] if reports is None else reports
    memory = MessageMemory(configmaps=store)
    outbox = Outbox(
        channels={"up": up, "down": down},
        report=reports.append,
        changed=memory.touch,
        now=lambda: now,
    )
    for message in messages:
        outbox.submit(message, dry_run=False)
    left = await memory.load(now=now + 60)
    assert left is not None
    outbox.take_over(left.told)
    memory.keep(Source(unsent=outbox.unsent, topics=dict, told=outbox.told))
    task = asyncio.create_task(outbox.run())
    for one in left.unsent:
        outbox.submit(one.message, dry_run=False, created=one.created)
    for message in messages:
        outbox.submit(message, dry_run=False)
    await asyncio.sleep(0.05)
    await memory.flush()
    task.cancel()
    return down


async def test_a_message_of_no_session_survives_until_it_is_told() -> None:
    store = Store()
    step = replace(BREAKER, key="a-12345678/bus/1", node="n1", step=1)

    assert (await term(store, works=False, messages=(step, BREAKER))).got == []
    kept = msgspec.json.decode(store.data[MESSAGES_KEY], type=Correspondence)
    # That of the step stands in its session, too, while there is one. "up" has both.
    assert [(one.message.key, one.message.to) for one in kept.unsent] == [
        (step.key, ("down",)),
        ("breaker/bus/1", ("down",)),
    ]
    told = (await term(store, works=True)).got
    assert [(one.key, one.created) for one in told] == [(step.key, NOW), (BREAKER.key, NOW)]
    assert (await term(store, works=True)).got == []


async def test_the_next_leader_tells_of_a_node_in_the_order_in_which_it_happened() -> None:
    store = Store()
    begin = replace(BREAKER, key="a-12345678/bus/1", node="n1", step=1, to=("down",))
    end = replace(begin, key="a-12345678/bus/end", step=None, kind="end", resolves=True)

    await term(store, works=False, messages=(begin, end))
    told = (await term(store, works=True)).got

    assert [one.key for one in told] == [begin.key, end.key]


async def test_without_room_for_all_those_of_no_session_are_kept_and_still_in_order() -> None:
    store = Store()
    of_steps = [
        replace(BREAKER, key=f"a-12345678/p{n}/1", node="n1", policy=f"p{n}", step=1, to=("down",))
        for n in range(MAX_UNSENT)
    ]
    last = replace(BREAKER, to=("down",))

    await term(store, works=False, messages=(*of_steps, last))

    kept = msgspec.json.decode(store.data[MESSAGES_KEY], type=Correspondence)
    assert [one.message.key for one in kept.unsent] == [
        *(one.key for one in of_steps[:-1]),
        last.key,
    ]


async def test_what_arrived_is_not_sent_again_by_the_next_leader_that_is_asked_to() -> None:
    store, reports = Store(), list[Report]()
    end = replace(BREAKER, key="a-12345678/bus/end", node="n1")

    assert len((await term(store, works=True, messages=(end,))).got) == 1
    again = await term(store, works=True, messages=(end,), now=NOW + TOLD_FOR - 1, reports=reports)
    assert again.got == []
    assert [(one.message.key, one.outcome.delivered) for one in reports] == [(end.key, True)]


async def test_what_failed_or_was_of_a_dry_run_is_not_counted_as_told() -> None:
    store = Store()
    end = replace(BREAKER, key="a-12345678/bus/end", node="n1")
    await term(store, works=False, messages=(end,))
    assert [one.key for one in (await term(store, works=True, messages=(end,))).got] == [end.key]
    told = msgspec.json.decode(store.data[MESSAGES_KEY], type=Correspondence).told
    assert set(told) == {end.key}


def test_only_the_newest_are_remembered_and_not_for_ever() -> None:
    told = Told()
    for at in range(MAX_TOLD + 10):
        told.add(f"k{at}", NOW + at / 1000)
    assert set(told.lately(NOW + 1)) == {f"k{at}" for at in range(10, MAX_TOLD + 10)}
    told.take_over({"k0": NOW, "k10": 0.0})
    assert "k0" in told
    assert told.lately(NOW + TOLD_FOR + 10) == {}


async def test_what_nobody_could_be_told_for_a_day_is_no_news() -> None:
    store = Store()
    await term(store, works=False, messages=(BREAKER,))

    left = await MessageMemory(configmaps=store).load(now=NOW + 2 * 86400)

    assert left == Correspondence()


async def test_a_damaged_document_is_kept_aside_and_an_unread_one_is_not_overwritten() -> None:
    store = Store()
    store.data[MESSAGES_KEY] = "{damaged"

    await term(store, works=True)
    assert store.data[UNREADABLE_KEY] == "{damaged"
    assert msgspec.json.decode(store.data[MESSAGES_KEY])["version"] == 1

    store.down = True
    memory = MessageMemory(configmaps=store)
    assert await memory.load(now=NOW) is None
    assert await memory.flush()


def test_topics_return_as_they_were_and_the_document_is_bounded() -> None:
    topics, again = Topics(), Topics()
    topics.put("slack", opened("1.0", [replace(BREAKER, node="n1")], title="t", place="C1"))
    found = msgspec.json.decode(encode(Correspondence(topics=topics.state())), type=Correspondence)
    again.restore(found.topics)
    assert again.state() == topics.state()

    large = [
        Topic(id=str(n), conversations=("c" * 900,), members=("m" * 900,), total=1)
        for n in range(2000)
    ]
    text = encode(Correspondence(topics={"slack": large}))
    assert len(text) <= MAX_BYTES
    kept = msgspec.json.decode(text, type=Correspondence).topics["slack"]
    assert kept[-1].id == "1999"


def test_words_of_many_bytes_do_not_make_the_document_larger_than_it_may_be() -> None:
    wide = "\N{CJK UNIFIED IDEOGRAPH-8B66}" * MAX_TEXT
    unsent = tuple(
        Unsent(replace(BREAKER, key=f"k{n}", title=wide, text=wide), NOW) for n in range(MAX_UNSENT)
    )

    text = encode(Correspondence(unsent=unsent))

    assert len(text.encode()) <= MAX_BYTES
    kept = msgspec.json.decode(text, type=Correspondence).unsent
    assert kept == unsent[: len(kept)] != ()
