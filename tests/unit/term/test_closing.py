"""When what is open at receivers is closed: at the second look, and behind what is under way."""

from __future__ import annotations

import asyncio
import itertools

from remediator.act.envelope import Envelope, RefusedError
from remediator.act.outbox import Outbox as RealOutbox
from remediator.decide.closings import Standing
from remediator.decide.decision import SendMessage
from remediator.decide.topics import Topics, conversation, opened
from remediator.term.closing import MAX_WAIT_LOOKS, Closing


HELD = "held/uid-1/bus/7"


class Outbox:
    def __init__(self) -> None:
        self.busy: set[str] = set()
        self.sent: list[tuple[SendMessage, bool]] = []

    def conversations(self) -> set[str]:
        return self.busy

    def submit(self, message: SendMessage, *, dry_run: bool) -> bool:
        self.sent.append((message, dry_run))
        return True


class Bench:
    def __init__(self, *channels: str) -> None:
        self.outbox, self.topics = Outbox(), Topics()
        self.worlds = {one: Standing(nodes={"uid-1": "n1"}) for one in (True, False)}
        first = SendMessage(key=HELD, to=(), title="", text="", node="n1", policy="bus")
        for one in channels:
            self.topics.put(one, opened("1", [first], title=""))
        self.closing = Closing(
            topics=self.topics, outbox=self.outbox, standing=lambda dry_run: self.worlds[dry_run]
        )

    def sees(self, *, held: bool, dry_run: bool = False) -> None:
        known = {("bus", "uid-1")} if held else set[tuple[str, str]]()
        self.worlds[dry_run] = Standing(nodes={"uid-1": "n1"}, decided={"uid-1"}, held=known)


def test_it_is_closed_at_the_second_look() -> None:
    made = Bench("oncall")
    made.sees(held=False)
    made.closing.look()
    assert not made.outbox.sent
    made.closing.look()
    ((message, dry_run),) = made.outbox.sent
    assert (message.to, message.node, dry_run) == (("oncall",), "n1", False)


def test_not_if_it_is_there_again() -> None:
    made = Bench("oncall")
    for held in (False, True, False):
        made.sees(held=held)
        made.closing.look()
    assert not made.outbox.sent


def test_what_is_under_way_comes_first() -> None:
    made = Bench("oncall")
    made.sees(held=False)
    made.outbox.busy = {HELD}
    for _ in range(3):
        made.closing.look()
    assert not made.outbox.sent


def test_each_world_for_itself() -> None:
    made = Bench("oncall", "dry-run/oncall")
    made.sees(held=True)
    made.sees(held=False, dry_run=True)
    for _ in range(2):
        made.closing.look()
    ((message, dry_run),) = made.outbox.sent
    assert (message.to, dry_run) == (("oncall",), True)


def test_it_is_closed_wherever_it_is_open() -> None:
    made = Bench("mail", "oncall")
    made.sees(held=False)
    for _ in range(2):
        made.closing.look()
    ((message, _),) = made.outbox.sent
    assert sorted(message.to) == ["mail", "oncall"]


def test_one_that_was_given_up_is_tried_again_ever_later_and_under_way_not_at_all() -> None:
    made = Bench("oncall")
    made.sees(held=False)
    at: list[int] = []
    for look in range(2000):
        made.closing.look()
        if len(made.outbox.sent) > len(at):
            at.append(look)
            made.outbox.busy = {HELD}
            made.closing.look()
            made.outbox.busy = set()
    waits = [later - sooner for sooner, later in itertools.pairwise(at)]
    assert waits[:3] == [3, 5, 9]
    assert max(waits) == waits[-1] == MAX_WAIT_LOOKS + 1
    keys = [message.key for message, _ in made.outbox.sent]
    assert len(set(keys)) == len(keys)
    assert {conversation(message) for message, _ in made.outbox.sent} == {HELD}


class Receiver:
    give_up_after = 60.0

    def __init__(self, *, refuses: bool) -> None:
        self.refuses, self.got = refuses, list[str]()

    async def send(self, envelope: Envelope) -> None:
        if self.refuses:
            raise RefusedError("not now")
        self.got.append(envelope.key)


async def test_who_refused_the_first_gets_another_and_who_has_it_none() -> None:
    made = Bench("mail", "oncall")
    made.sees(held=False)
    mail, oncall = Receiver(refuses=False), Receiver(refuses=True)
    outbox = RealOutbox(channels={"mail": mail, "oncall": oncall}, report=lambda _: None)
    closing = Closing(
        topics=made.topics, outbox=outbox, standing=lambda dry_run: made.worlds[dry_run]
    )
    task = asyncio.create_task(outbox.run())
    for _ in range(2):
        closing.look()
    assert await outbox.drain(60.0)
    assert (len(mail.got), oncall.got) == (1, [])

    (topic,) = made.topics.of("mail")
    made.topics.forget("mail", topic.id)  # as its sender does
    oncall.refuses = False
    for _ in range(3):
        closing.look()
    assert await outbox.drain(60.0)
    assert (len(mail.got), len(oncall.got)) == (1, 1)
    task.cancel()
