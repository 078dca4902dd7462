"""What every scene needs: to wait for something, or to fail with words that help."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from demo.stage import Controller, Stage
from demo.witness import Sight


T = TypeVar("T")
PATIENCE = 40.0
"""Seconds to wait for anything; nearly all of it normally takes milliseconds."""


class DemoFailedError(Exception):
    """Something did not happen that must. The text says what, and how to go on."""


def seen(
    stage: Stage, node: str, holds: Callable[[Sight], bool], *, since: float, otherwise: str
) -> Sight:
    """The first version of a Node for which this holds, as the independent reader sees it."""
    found = stage.witness.wait_for(node, holds, since=since, timeout=PATIENCE)
    if found is None:
        raise DemoFailedError(otherwise)
    return found


def until(found: Callable[[], T | None], otherwise: str) -> T:
    """What `found` answers, once that is something."""
    deadline = time.monotonic() + PATIENCE
    while not (result := found()):
        if time.monotonic() > deadline:
            raise DemoFailedError(otherwise)
        time.sleep(0.02)
    return result


def written(controller: Controller, mode: str, action: str) -> dict[str, object] | None:
    """What the controller's audit log has of such a write."""
    for record in controller.said("write"):
        if record["mode"] == mode and record["action"] == action and record["result"] == "done":
            return record
    return None


def status(stage: Stage, *words: str) -> str:
    """The status, once the leader has published one with these words."""
    deadline = time.monotonic() + PATIENCE
    while not all(word in (text := stage.remediator("status")) for word in words):
        if time.monotonic() > deadline:
            raise DemoFailedError(f"`remediator status` does not show {words}:\n{text}")
        time.sleep(0.3)
    return text


def when(record: dict[str, object]) -> float:
    """The time of a log line, in seconds since the epoch."""
    return datetime.fromisoformat(str(record["timestamp"])).astimezone(UTC).timestamp()


def wait_out_settling() -> None:
    """The controllers of the demo settle for a second."""
    time.sleep(1.2)
