"""When what is open at receivers is closed: at the second look, and behind what is under way."""

from __future__ import annotations

from remediator.decide.closings import Standing
from remediator.decide.decision import SendMessage
from remediator.decide.topics import Topics, opened
from remediator.term.closing import Closing


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
