"""Messages that wait in windows for others like them, and the order of those about one node.

What is alike goes in one envelope, and what is about one node goes in its order. Where a window
was to send a message before an earlier one in another window, the earlier goes first; where such a
one lies between two of its own, those go in two envelopes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from remediator.decide.decision import SendMessage


@dataclass(slots=True)
class Pending:
    """One message; `number`: of its submission, so that an earlier one is known."""

    number: int
    message: SendMessage
    dry_run: bool
    created: float
    waiting: set[str]
    failures: list[str] = field(default_factory=list)


class Group(NamedTuple):
    """What makes messages alike."""

    channel: str
    dry_run: bool
    policy: str
    step: int | None
    kind: str
    resolves: bool


Windows = dict[Group, list[Pending]]


def take_earlier(batch: list[Pending], windows: Windows, channel: str) -> Iterator[list[Pending]]:
    """Take out of the windows what is about a node of the batch and came before it."""
    latest = {one.message.node: one.number for one in batch}
    for group, waiting in windows.items():
        taken = [one for one in waiting if one.number < latest.get(one.message.node, 0)]
        if taken and group.channel == channel:
            numbers = {one.number for one in taken}
            windows[group] = [one for one in waiting if one.number not in numbers]
            yield taken


def take_later(batch: list[Pending], windows: Windows, channel: str) -> list[Pending]:
    """Take off a batch, and return, what comes after a message that comes after one before it."""
    if len({one.message.node for one in batch}) == len(batch):
        return []
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for group, waiting in windows.items():
        for other in waiting if group.channel == channel else ():
            numbers[other.message.node].append(other.number)
    latest: dict[str, int] = {}
    for at, one in enumerate(batch):
        node = one.message.node
        since = latest.get(node, one.number)
        if any(since < number < one.number for number in numbers.get(node, ())):
            rest, batch[at:] = batch[at:], []
            return rest
        latest[node] = one.number
    return []
